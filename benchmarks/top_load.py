"""An observed process that makes calls at a steady rate: `python -m benchmarks.top_load --rate 500`.

It is what `benchmarks.top` looks at, and what pictures of `anygpu top` are taken of.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

import numpy as np

import anygpu as ag
from anygpu import observe

Floats = Any


def scale(x: Floats) -> Floats:
    return x * 2.0 + 1.0


def normalise(x: Floats) -> Floats:
    return (x - x.mean()) / x.std()


def score(x: Floats) -> Floats:
    return np.tanh(x).sum(axis=-1)


def parse(x: Floats) -> Floats:
    if x[-1] > 0:
        raise ValueError("this one always fails")
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0, help="calls in each second")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--device", help="where some of the calls run")
    parser.add_argument("--tasks", action="store_true", help="submit some of the calls")
    options = parser.parse_args()
    observe.start()
    functions = [ag.offload(each) for each in (scale, normalise, score)]
    failing = ag.offload(parse)
    x = np.linspace(0, 1, 256, dtype=np.float32)
    big = np.ones((256, 256), dtype=np.float32)
    end, made, begin = time.monotonic() + options.seconds, 0, time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < end:
            # A hundredth of a second's calls at once: that is how requests come, and sleeping is not exact.
            wanted = int((time.monotonic() - begin) * options.rate)
            while made < wanted:
                made += 1
                functions[made % 3](x)
                if made % 500 == 0:
                    with contextlib.suppress(ValueError):
                        failing(x)
                if options.device and made % 50 == 0:
                    ag.run(score, big, on=options.device)
                if options.tasks and made % 10 == 0:
                    ag.submit(scale, x, tenant="reports" if made % 20 else "requests")
            time.sleep(0.01)
    sys.exit(0)


if __name__ == "__main__":
    main()
