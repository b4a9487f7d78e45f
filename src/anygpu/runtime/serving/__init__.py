"""Functions and programs over HTTP: the Open Inference Protocol in front of a runtime."""
