"""`anygpu verify`."""
