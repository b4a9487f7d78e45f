"""Kernels that users write: what their text says, how it is made safe, and how it becomes a launch. Pure text."""
