"""Scripts for `python -m benchmarks.profile`: each spends most of its time on the line that says "hot"."""
