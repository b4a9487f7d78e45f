"""Deferred calls beside plain ones: functions as libraries have them, in turns, with the reason where none is gained.

    python -m benchmarks.deferred [--side 40] [--functions PATH] [--only NAME …] [--json] [--check]

`--functions` names a Python file with other functions: `FUNCTIONS[name] = (function, make)`, where `make(n)` gives the
positional and the named arguments of the n-th call; the environment variable `SIDE` says how large. `--check` fails if
a result is not NumPy's, or if a function is slower than 0.9 of NumPy once it has settled.

For each function, once it has settled: the time of a plain and of a deferred call, how many times faster that is, which
share of the plain call NumPy's operations take that a deferred call sees, and what settling took more than plain calls
would have. Then the means, and the largest gains and losses.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.placement.native_calls import Allowance, allowance, background
from anygpu.placement.signature import signature
from benchmarks.deferred_functions import FUNCTIONS
from benchmarks.deferred_recording import recording_seconds, share, small_function_ratio

#: Seconds of calls before anything is measured, if it has not settled by then; what it is called for at least, and
#: without a change, to have settled; turns that both sides take in any case, and seconds of them.
SETTLING_SECONDS, LEAST_SECONDS, UNCHANGED_SECONDS, TURNS, MOST_SECONDS = 5.0, 1.5, 1.2, 25, 1.2
#: Turns of short functions, in which the clock and the caches count.
MOST_TURNS = 400
LEAST_RATIO = 0.9
#: Functions that are printed with the reason, at both ends.
SHOWN = 10

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def own_cases(side: int) -> dict[str, Callable[[], Case]]:
    """The functions of `deferred_functions`."""

    def made(name: str) -> Callable[[], Case]:
        function, make = FUNCTIONS[name]
        return lambda: (function, make(side), {})

    return {name: made(name) for name in FUNCTIONS}


def cases_of(path: Path, side: int) -> dict[str, Callable[[], Case]]:
    """The functions that a file has."""
    os.environ["SIDE"] = str(side)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, path  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def made(name: str) -> Callable[[], Case]:
        function, make = module.FUNCTIONS[name]
        return lambda: (function, *make(0))

    return {name: made(name) for name in module.FUNCTIONS}


def measured(case: Case) -> dict[str, Any]:
    """The seconds of a plain and of a deferred call of one function, and what the last receipt says."""
    function, arguments, keywords = case
    ours: Any = ag.offload(deferred=True)(function)
    expected = function(*arguments, **keywords)
    value: Any = None
    vars(allowance).update(vars(Allowance()))
    calls, took = _settled(ours, arguments, keywords)
    receipt = ag.last_receipt()
    plain: list[float] = []
    deferred: list[float] = []
    begin = time.perf_counter()
    while len(plain) < MOST_TURNS:
        # What one returns is gone before the other begins: memory that was just freed is the fastest there is.
        for call, times in ((function, plain), (ours, deferred)):
            value = None
            since = time.perf_counter()
            value = call(*arguments, **keywords)
            times.append(time.perf_counter() - since)
        if len(plain) >= TURNS and time.perf_counter() - begin > MOST_SECONDS:
            break
    assert receipt is not None
    return {
        "numpy": min(plain),
        "deferred": min(deferred),
        "ratio": min(plain) / min(deferred),
        "share": share(function, arguments, keywords, min(plain)),
        "same": _same(expected, value),
        "reason": ours.why_plain or receipt.reason,
        "how": receipt.how,
        "settling": took - calls * statistics.median(plain),
    }


def _settled(ours: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[int, float]:
    """Call a function until receipts have said the same for a while, or for the longest; calls, and what they took."""
    seen: tuple[Any, ...] = ()
    calls, took, since = 0, 0.0, 0.0
    while took < SETTLING_SECONDS and not (took > LEAST_SECONDS and took - since > UNCHANGED_SECONDS):
        begin = time.perf_counter()
        ours(*arguments, **keywords)
        took += time.perf_counter() - begin
        calls += 1
        background.settle(30)
        if calls % 16 == 0 or took > SETTLING_SECONDS / 100 * calls:
            now = (ours.why_plain, getattr(ours._known.native.get(_key(ours, arguments, keywords)), "note", None))
            now += tuple(each.site is not None and each.site.runs > 0 for each in ours._segments)
            if now != seen:
                seen, since = now, took
    return calls, took


def _key(ours: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return signature(arguments, keywords, ours._known.lifted)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True))
    except (TypeError, ValueError):
        return str(one) == str(other)


def mean_of(found: list[dict[str, Any]]) -> float:
    """The geometric mean of how many times faster they are."""
    return math.exp(sum(math.log(each["ratio"]) for each in found) / max(len(found), 1))


def _line(name: str, each: dict[str, Any]) -> str:
    times = f"{each['numpy'] * 1e3:9.3f} ms {each['deferred'] * 1e3:9.3f} ms {each['ratio']:7.2f} ×"
    in_numpy = "   ? %" if each["share"] is None else f"{each['share'] * 100:4.0f} %"
    settling = f"{each['settling']:6.2f} s"
    return f"{name:26} {times} {in_numpy} {settling}  {each['reason']}{'' if each['same'] else '  DIFFERS'}"


def _summary(found: dict[str, dict[str, Any]]) -> list[str]:
    every = list(found.values())
    in_numpy = [each for each in every if each["share"] is not None and each["share"] > 0.5]
    ratios = [each["ratio"] for each in every]
    ranked = sorted(found, key=lambda name: found[name]["ratio"])
    lines = [
        f"geometric mean {mean_of(every):.2f} × NumPy over {len(every)}, at worst {min(ratios):.2f} ×; "
        f"{sum(each > 1.03 for each in ratios)} faster, {sum(each < 0.97 for each in ratios)} below 0.97",
        f"geometric mean {mean_of(in_numpy):.2f} × NumPy over the {len(in_numpy)} with more than half of their time in "
        "NumPy's operations",
    ]
    if len(ranked) > 2 * SHOWN:
        lines += ["", "largest losses:", *(_line(name, found[name]) for name in ranked[:SHOWN])]
        lines += ["", "largest gains:", *(_line(name, found[name]) for name in reversed(ranked[-SHOWN:]))]
    return lines


def main() -> int:
    """Run them, print a table or JSON, and return whether a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=40)
    parser.add_argument("--functions", type=Path, help="a Python file with other functions")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = own_cases(given.side) if given.functions is None else cases_of(given.functions, given.side)
    unknown = set(given.only or ()) - set(cases)
    if unknown:
        parser.error(f"--only: no such function: {', '.join(sorted(unknown))}")
    recording = recording_seconds()
    if not given.json:
        _say("recording: " + ", ".join(f"{name} {seconds * 1e6:.2f} µs" for name, seconds in recording.items()))
        _say(f"20 operations on 1,000 elements, with the option: {small_function_ratio():.3f} of a plain call")
    found = {}
    for name in given.only or cases:
        # Each as in the first process of its own: what others have found out decides what is tried when.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.environ["ANYGPU_CACHE_DIR"] = folder
            each = found[name] = measured(cases[name]())
        if not given.json:
            _say(_line(name, each))
    if given.json:
        every = list(found.values())
        _say(
            json.dumps(
                {"side": given.side, "recording": recording, "mean": mean_of(every), "functions": found}, indent=1
            )
        )
    else:
        _say("\n".join(_summary(found)))
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
