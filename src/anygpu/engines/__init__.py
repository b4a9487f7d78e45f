"""Engines: the libraries that compute. Each module here is the only owner of its import."""
