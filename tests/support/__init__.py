"""Generators, faulty devices and comparisons that the tests and the benchmarks share; users do not have them."""
