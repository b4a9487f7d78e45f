"""Calls of NumPy that wait: the arrays of a deferred call stand for NumPy's, and what is done with them is recorded."""
