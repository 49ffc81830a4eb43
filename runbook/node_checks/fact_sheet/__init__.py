"""Facts about a node, each with a name and a text, used to compare the nodes in a job."""
