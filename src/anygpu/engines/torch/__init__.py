"""PyTorch, on whatever its build serves."""
