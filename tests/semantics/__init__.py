"""What a function returns with `offload` is what it returns without: a corpus of functions, and random ones."""
