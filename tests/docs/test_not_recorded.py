"""The table of functions that stay on NumPy, in docs/how-to/trust-offload.md, has the sentences that anygpu says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from tests.docs.blocks import ROOT

generator = np.random.default_rng(0)
calls = 0
seen: list[Any] = []


def draws(x: Any) -> Any:
    return x + generator.normal(size=x.shape)


def reads_the_clock(x: Any) -> Any:
    return x * time.time()


def branches(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def selects(x: Any) -> Any:
    return x[x > 0]


def prints(x: Any) -> Any:
    print(x.shape)  # noqa: T201 - it is what the table has
    return x


def asks_for_the_type(x: Any) -> Any:
    return x if type(x) is np.ndarray else -x


def writes(x: Any) -> Any:
    x -= x.mean()
    return x


def counts(x: Any) -> Any:
    global calls
    calls += 1
    return x


def appends(x: Any) -> Any:
    seen.append(x)
    return x


def doubles(x: Any) -> Any:
    return x + x


@pytest.mark.parametrize(
    ("row", "function", "x"),
    [
        ("`x + generator.normal(size=x.shape)`", draws, np.ones(5)),
        ("`x * time.time()`", reads_the_clock, np.ones(5)),
        ("`if x.sum() > 0: …`", branches, np.ones(5)),
        ("`x[x > 0]`, `float(x.sum())`", selects, np.ones(5)),
        ("`print(x.shape)`", prints, np.ones(5)),
        ("`type(x) is np.ndarray`", asks_for_the_type, np.ones(5)),
        ("`x -= x.mean()` on an argument", writes, np.ones(5)),
        ("`global calls; calls += 1`", counts, np.ones(5)),
        ("`seen.append(x)` on a list from outside", appends, np.ones(5)),
        ("arrays of objects or records", doubles, np.array([None])),
    ],
)
def test_the_page_has_the_reason(row: str, function: Callable[[Any], Any], x: np.ndarray[Any, Any]) -> None:
    said = ag.explain(function, x).not_recorded
    assert said is not None
    assert in_the_table(row) == without_line(said)


def in_the_table(row: str) -> str:
    page = (ROOT / "docs/how-to/trust-offload.md").read_text(encoding="utf-8")
    cells = dict(re.findall(r"^\| (.+) \| (.+) \|$", page, re.MULTILINE))
    reason = cells[row] if cells[row] != "the same" else cells["`if x.sum() > 0: …`"]
    return without_line(reason)


def without_line(reason: str) -> str:
    return re.sub(r" \([^ ()]+:\d+\)", "", reason).rstrip(".")
