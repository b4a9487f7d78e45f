"""The primitives by family, each with all of its rules: shape, axes, vmap, cost, text, cutting and simplifying."""
