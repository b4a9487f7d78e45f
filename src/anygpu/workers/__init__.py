"""Workers: the processes that touch devices, so that the caller's own does not have to."""
