"""Whether a device's result is correct: compared with NumPy's, on the inputs of a real call.

`comparing` is what callers use. A first look takes only what one operation may add; what lies beyond it is judged by
`analysis`, which runs the program node by node and carries for every element how far two right answers may lie apart.
"""
