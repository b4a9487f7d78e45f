"""Whether a device's result is correct: compared with NumPy's, on the inputs of a real call.

`trust` is what a call site has learnt of its results: which were compared, how they lie in memory, of what NumPy warns.
A result that differs is a `Mismatch`, which `mismatches` tells and keeps.

`comparison.judge` is what callers use. It first allows only what one operation may add, which needs no analysis. What
lies beyond that is judged by `analysis`, which runs the program node by node on NumPy and carries a bound for every
element: how far two correct results may differ there. The rules for the bounds are in `elementwise` (functions of one
or two numbers, with the published tolerances) and `along_axes` (sums, sorts, products, transforms, linear algebra).
"""
