"""Ordinary NumPy functions, run on every engine."""
