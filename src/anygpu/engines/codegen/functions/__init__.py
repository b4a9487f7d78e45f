"""The meaning of every scalar function that is not a plain operator, in both dialects, as source files."""
