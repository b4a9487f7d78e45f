"""Deferred calls beside plain ones: functions as libraries have them, in turns, with the reason where none is gained.

    python -m benchmarks.deferred [--side 40] [--only NAME …] [--json] [--check]

`--check` fails if a result is not NumPy's, or if a function is slower than 0.9 of NumPy once it has settled.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.placement.native_calls import background
from benchmarks.deferred_functions import FUNCTIONS

#: Seconds and calls before anything is measured, and those in which both sides take turns.
WARM_SECONDS, WARM_CALLS, TURNS, MOST_SECONDS = 3.0, 120, 9, 4.0
LEAST_RATIO = 0.9


def measured(name: str, side: int) -> dict[str, Any]:
    """The seconds of a plain and of a deferred call of one function, and what the last receipt says."""
    function, make = FUNCTIONS[name]
    ours: Any = ag.offload(deferred=True)(function)
    arguments = make(side)
    expected = function(*arguments)
    begin = time.perf_counter()
    for _ in range(WARM_CALLS):
        value = ours(*arguments)
        background.settle(30)
        if time.perf_counter() - begin > WARM_SECONDS:
            break
    plain, deferred = [], []
    begin = time.perf_counter()
    for _ in range(TURNS):
        since = time.perf_counter()
        function(*arguments)
        now = time.perf_counter()
        value = ours(*arguments)
        plain.append(now - since)
        deferred.append(time.perf_counter() - now)
        if time.perf_counter() - begin > MOST_SECONDS:
            break
    receipt = ag.last_receipt()
    assert receipt is not None
    return {
        "numpy": min(plain),
        "deferred": min(deferred),
        "ratio": min(plain) / min(deferred),
        "same": _same(expected, value),
        "reason": ours.why_plain or receipt.reason,
        "how": receipt.how,
    }


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True))


def main() -> int:
    """Run them, print a table or JSON, and return whether a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=sorted(FUNCTIONS))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {}
    for name in given.only or FUNCTIONS:
        each = found[name] = measured(name, given.side)
        if not given.json:
            times = f"{each['numpy'] * 1e3:9.3f} ms {each['deferred'] * 1e3:9.3f} ms {each['ratio']:7.2f} ×"
            _say(f"{name:20} {times}  {each['reason']}{'' if each['same'] else '  DIFFERS'}")
    ratios = [each["ratio"] for each in found.values()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    if given.json:
        _say(json.dumps({"side": given.side, "mean": mean, "functions": found}, indent=1))
    else:
        _say(f"geometric mean {mean:.2f} × NumPy over {len(ratios)}, at worst {min(ratios):.2f} ×")
    wrong = [name for name, each in found.items() if not each["same"] or each["ratio"] < LEAST_RATIO]
    if given.check and wrong:
        sys.stderr.write(f"failed: {', '.join(wrong)}\n")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
