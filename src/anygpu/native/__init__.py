"""Native code in place of NumPy: a call is traced, compiled and compared beside the calls, and used if it is faster.

`loading` imports and starts what this needs. `trial` is the way from a traced call to native code that gave NumPy's
result; `calls` runs it from then on, and compares samples. `speed` measures a machine for predictions.
"""
