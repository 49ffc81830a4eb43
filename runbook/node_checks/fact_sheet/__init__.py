"""Facts about a node, each with a name and a text, by which the nodes of a job are compared."""
