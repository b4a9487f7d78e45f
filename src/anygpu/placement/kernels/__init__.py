"""Kernels that a user wrote, from their text to a call."""
