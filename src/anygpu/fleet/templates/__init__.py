"""Files that deploy a cluster: options in, file names and texts out. Only `write_files` touches a disk."""
