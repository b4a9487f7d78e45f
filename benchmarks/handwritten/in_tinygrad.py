"""Run by a Python that has tinygrad, and perhaps nothing else: answers each line with the seconds of a matmul."""

from __future__ import annotations

import sys
import time


def main() -> None:
    # tinygrad's search starts processes that import this file again: nothing happens there, thanks to the guard below.
    from tinygrad import Context, Device, Tensor, TinyJit  # type: ignore[import-not-found, unused-ignore]

    rows, inner, columns = map(int, sys.argv[1:])
    # The random numbers have kernels too, and no search is needed for those.
    with Context(BEAM=0):
        a = Tensor.rand(rows, inner).realize()
        b = Tensor.rand(inner, columns).realize()
    multiply = TinyJit(lambda a, b: (a @ b).realize())
    device = Device[Device.DEFAULT]
    for _ in range(4):
        multiply(a, b)
    device.synchronize()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        begin = time.perf_counter()
        multiply(a, b)
        device.synchronize()
        sys.stdout.write(f"{time.perf_counter() - begin}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
