"""The commands of the command line, one module for a group of them."""
