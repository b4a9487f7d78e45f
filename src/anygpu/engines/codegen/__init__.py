"""Programs become kernels: scheduling, lowering, and two dialects that print one kernel form. All of it is pure."""
