"""The kernels that generated ones are measured against: each workload by hand, straight on the library below."""
