"""Benchmarks, each `python -m benchmarks.NAME [--json] [--check]`. The bounds stand beside what they bound."""
