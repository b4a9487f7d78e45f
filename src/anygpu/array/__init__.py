"""Arrays: lazy, and ordinary to use. What is done with them becomes a program, computed when a value is needed."""
