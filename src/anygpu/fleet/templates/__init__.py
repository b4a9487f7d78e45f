"""Files that deploy a cluster: options in, a dictionary of file names and texts out. Only `write_files` touches a disk."""
