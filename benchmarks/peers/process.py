"""One workload with one tool: a child process of `benchmarks.peers`, which loads nothing but that tool.

It reads the arguments from files, calls the function, compares the result with NumPy's, warms up, and writes a line of
JSON. After that, each line that it reads is a turn: it calls the function for a while, and writes the seconds of the
calls. When there are no more lines, it writes what memory it took.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from importlib import import_module
from typing import Any

#: Threads of what ran before go on spinning for about 25 ms.
DROPPED_SECONDS, TURN_SECONDS = 0.04, 0.12
#: A sample is the mean of so many calls that the clock does not count.
SAMPLE_SECONDS = 1e-3
WARM_SECONDS, WARM_CALLS = 0.3, 3


def main() -> None:
    begun, folder, module_name, factory, name = sys.argv[1:6]
    # What libraries print does not get between our lines.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import numpy as np

    before = time.perf_counter()
    arguments: list[Any] = _read(np, folder, "argument")
    reading = time.perf_counter() - before

    module = import_module(f"benchmarks.peers.{module_name}")
    function = getattr(module, factory)(name)
    if hasattr(module, "own_array"):
        arguments = [module.own_array(each) for each in arguments]
    result = function(*arguments)
    first = time.perf_counter() - float(begun) - reading

    differing = _differing(np, _read(np, folder, "expected"), result)
    del result
    calls = _warm_up(function, arguments)
    device = module.device() if hasattr(module, "device") else ""
    lines.write(json.dumps({"first": first, "differing": differing, "calls": calls, "device": device}) + "\n")
    devices = [device]
    for _ in sys.stdin:
        lines.write(json.dumps(_turn(function, arguments)) + "\n")
        devices.append(module.device() if hasattr(module, "device") else "")
    # Now and then a call is a sample on another device: the usual one is told.
    lines.write(json.dumps({"peak_bytes": _peaks(), "device": statistics.mode(devices)}) + "\n")
    lines.close()
    # Libraries need not tidy up: nobody waits for that here.
    os._exit(0)


def _read(np: Any, folder: str, what: str) -> list[Any]:
    names = sorted(each for each in os.listdir(folder) if each.startswith(what))
    return [np.load(f"{folder}/{name}") for name in names]


def _differing(np: Any, expected: list[Any], result: Any) -> float:
    """The greatest share of a result's elements that are too far from NumPy's; 1 when its shape is another one."""
    from benchmarks.peers.tolerances import share_that_differs

    found = result if isinstance(result, tuple | list) else (result,)
    if len(found) != len(expected):
        return 1.0
    return max(share_that_differs(a, np.asarray(b)) for a, b in zip(expected, found, strict=True))


def _warm_up(function: Any, arguments: list[Any]) -> int:
    calls, end = 1, time.perf_counter() + WARM_SECONDS
    while calls < WARM_CALLS or time.perf_counter() < end:
        function(*arguments)
        calls += 1
    return calls


def _turn(function: Any, arguments: list[Any]) -> list[float]:
    begin = time.perf_counter()
    function(*arguments)
    once = time.perf_counter() - begin
    calls = max(1, int(SAMPLE_SECONDS / once))
    end = begin + DROPPED_SECONDS
    while time.perf_counter() < end:
        function(*arguments)
    samples: list[float] = []
    end = time.perf_counter() + TURN_SECONDS
    while not samples or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(calls):
            function(*arguments)
        samples.append((time.perf_counter() - begin) / calls)
    return samples


def _peaks() -> int:
    """The most memory this process has had, and those it started that are still there."""
    import psutil

    family = [os.getpid(), *(each.pid for each in psutil.Process().children(recursive=True))]
    return sum(_peak(each) for each in family)


def _peak(process: int) -> int:
    try:
        with open(f"/proc/{process}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


if __name__ == "__main__":
    main()
