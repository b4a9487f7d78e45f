"""Kernels as files, and what fills them in."""
