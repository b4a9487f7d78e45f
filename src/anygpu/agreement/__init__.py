"""Compare a device's result with NumPy's, on the inputs of a real call.

`trust` keeps what a call site has learnt about its results: which programs were compared, how results lie in memory,
and which warnings NumPy gives. A result that differs is a `Mismatch`, which `mismatches` reports and keeps.

`comparison.judge` is what callers use. It first allows only what one operation may add, which needs no analysis. What
lies beyond that is judged by `analysis`, which runs the program node by node on NumPy and carries a bound for every
element: how far two correct results may differ there. The rules for the bounds are in `elementwise` (functions of one
or two numbers, with the published tolerances) and `along_axes` (sums, sorts, products, transforms, linear algebra).
"""
