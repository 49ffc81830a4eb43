"""What must be there before a training: machine, software, project, token files."""
