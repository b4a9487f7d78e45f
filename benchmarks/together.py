"""Whether two devices share one program when that pays: `python -m benchmarks.together [--json] [--check]`.

A large matrix product, which NumPy does well and whose matrix takes long to move, beside a long chain of elementwise
operations, which OpenCL does in one pass. Engines are numpy and opencl only; the program starts itself again with them.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import numpy as np

import anygpu as ag
from benchmarks.placement import calibrate, on_host, receipts_of, require_agreement, settle
from benchmarks.report import Figure, arguments, publish
from benchmarks.sampling import Call, in_turns, seconds_of

VARIABLE, ENGINES = "ANYGPU_ENGINES", "numpy,opencl"

#: Both together over the better one of them alone: at least 1.2 times faster.
BOUND = 1 / 1.2

ROWS, COLUMNS = 4096, 64
ELEMENTS, STEPS = 1 << 21, 8
#: Calls until it is expected to have found out; and how long each side is repeated then.
LEARNING, SECONDS = 30, 3.0


def product_and_chain(weights: Any, batch: Any, x: Any) -> tuple[Any, Any]:
    for _ in range(STEPS):
        x = np.sqrt(x * x + 0.5) - 0.25 * x
    return weights @ batch, x


def values() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    shapes = ((ROWS, ROWS), (ROWS, COLUMNS), (ELEMENTS,))
    return tuple(rng.standard_normal(shape, np.float32) for shape in shapes)


def measure() -> list[Figure]:
    given = values()
    expected = on_host(product_and_chain(*given))
    automatic = functools.partial(ag.offload(product_and_chain), *given)
    sides: dict[str, Call] = {
        "numpy": functools.partial(product_and_chain, *given),
        "opencl": functools.partial(ag.offload(on="opencl", fallback="raise")(product_and_chain), *given),
        "automatic": automatic,
    }
    used: list[str] = []
    for number in range(LEARNING):
        seconds = seconds_of(automatic)
        settle()
        sys.stderr.write(f"call {number + 1}: {1e3 * seconds:.1f} ms, {ag.last_receipt()}\n")
    require_agreement(expected, automatic())
    require_agreement(expected, sides["opencl"]())

    def look(name: str) -> None:
        if name == "automatic":
            used.extend(receipt.device for receipt in receipts_of(automatic))

    timings = in_turns(sides, seconds=SECONDS, after_turn=look)
    alone = min(timings["numpy"].seconds, timings["opencl"].seconds)
    ratio = timings["automatic"].seconds / alone
    both = sum("numpy" in device and "opencl" in device for device in used)
    return [
        *(Figure(name=f"{name}", value=1e3 * each.seconds, unit="ms") for name, each in timings.items()),
        Figure(name="automatic / the better one alone", value=ratio, unit="×", bound=BOUND),
        Figure(name="share of calls that were not on both", value=1 - both / len(used), unit="", bound=0.5),
    ]


def main() -> None:
    if os.environ.get(VARIABLE) != ENGINES:
        os.environ[VARIABLE] = ENGINES
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.together", *sys.argv[1:]])
    options = arguments(__doc__)
    calibrate()
    publish(measure(), options)


if __name__ == "__main__":
    main()
