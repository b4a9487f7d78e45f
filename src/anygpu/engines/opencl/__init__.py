"""OpenCL through pyopencl: GPUs, and CPUs through PoCL, with whatever driver the system has registered."""
