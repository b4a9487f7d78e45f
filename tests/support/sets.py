"""The three sets of tests.

- The *gate* runs for every change: `scripts/test`, and in `.ci/run`.
- *Full* is the gate and all tests marked `full`: `scripts/test --full`, every night and before a release.
- *Long* is what is marked `long`: soak tests and the rest of long tables, `scripts/test --long`.

A test without a mark is in the gate. One that is slow is marked `full` when a cheaper test in the gate would fail for
the same mistake, or when what it shows is one more of its kind. Of a table marked `sampled(gate=40, full=4)`, one case
in 40 is in the gate and one in 4 in the full set; the gate has at least one case for each engine.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import pytest

TestSet = Literal["gate", "full", "long"]

ENGINES = ("numpy", "cpu", "torch", "jax", "webgpu", "opencl")


def sets_of_cases(cases: Iterable[tuple[str, str]], *, gate: int, full: int = 1) -> dict[str, TestSet]:
    """The smallest set that has each case of a table; `cases` are names, each with the engine that it is for, or "".

    The names decide, so that a new case hardly changes which of the others are chosen.
    """
    chosen: dict[str, TestSet] = {}
    of_engine: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, engine in cases:
        number = zlib.crc32(name.encode())
        chosen[name] = "long" if number % full else "full"
        of_engine[engine].append((number, name))
    for numbered in of_engine.values():
        least = sorted((chosen[name] == "long", number, name) for number, name in numbered)
        for _, _, name in least[: -(-len(numbered) // gate)]:
            chosen[name] = "gate"
    return chosen


def mark_samples(items: Iterable[pytest.Item]) -> None:
    """Marks the cases of sampled tables that are not in the gate as `full` or `long`."""
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            tables[item.nodeid.partition("[")[0]].append(item)
    for table in tables.values():
        sampled = table[0].get_closest_marker("sampled")
        assert sampled is not None
        chosen = sets_of_cases([(item.nodeid, _engine(item)) for item in table], **sampled.kwargs)
        for item in table:
            if chosen[item.nodeid] != "gate":
                item.add_marker(chosen[item.nodeid])


def _engine(item: pytest.Item) -> str:
    """The engine among the parameters of a case, by its name or by the name of one of its devices."""
    spec = getattr(item, "callspec", None)
    values = spec.params.values() if spec is not None else ()
    return next((engine for value in values for engine in ENGINES if str(value).partition(":")[0] == engine), "")
