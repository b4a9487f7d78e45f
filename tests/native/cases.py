"""Calls of a function beside those of the same function as native code, for tests of its answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anygpu as ag
from anygpu.calls.offload import Offloaded
from tests.semantics.outcomes import difference, outcome_of
from tests.support.native_placement import settle

#: Makes the arguments of one call anew.
Given = Callable[[], tuple[Any, ...]]


def device() -> str:
    """Where the last call ran."""
    receipt = ag.last_receipt()
    assert receipt is not None
    return receipt.device


def natively(function: Any, *arguments: Any, **keywords: Any) -> Offloaded[..., Any]:
    """The function, whose next calls with such arguments are native code."""
    offloaded = function if isinstance(function, Offloaded) else ag.offload(function)
    offloaded.prepare(*arguments, **keywords)
    for _ in range(2):
        offloaded(*arguments, **keywords)
    assert device() == "cpu", ag.last_receipt()
    return offloaded


def compare(function: Any, *calls: Given, offloaded: Any = None) -> list[str]:
    """Where calls ran, each of which did what it does on NumPy."""
    expected = []
    for given in calls:
        arguments = given()
        expected.append(outcome_of(partial(function, *arguments), arguments, lambda: None))
    offloaded = ag.offload(function) if offloaded is None else offloaded
    where = []
    for number, given in enumerate(calls):
        arguments = given()
        with ag.collect_receipts() as receipts:
            got = outcome_of(partial(offloaded, *arguments), arguments, lambda: None)
        where.append(receipts[-1].device if receipts else "raised")
        settle()
        differs = difference(expected[number], got)
        assert differs is None, f"call {number} on {where[-1]}: {differs}"
    return where
