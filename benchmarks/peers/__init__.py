"""Ten workloads in anygpu and in what users might pick instead: `python -m benchmarks.peers`."""
