"""From an ordinary function to a program: what it captures, what guards a trace, and the trace itself."""
