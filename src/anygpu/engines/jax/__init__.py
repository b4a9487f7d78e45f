"""JAX: programs compiled by XLA."""
