"""Data larger than memory: read, computed and written chunk by chunk, each while the others go on."""
