"""The workloads with anygpu: NumPy's functions, decorated."""

from __future__ import annotations

from typing import Any

import anygpu as ag
from benchmarks.peers.in_numpy import FUNCTIONS


def function(name: str) -> Any:
    return ag.offload(FUNCTIONS[name])


def compiled(name: str) -> Any:
    return ag.offload(on="cpu")(FUNCTIONS[name])


def device() -> str:
    """Where the last call ran."""
    receipt = ag.last_receipt()
    return receipt.device if receipt is not None else "numpy"


def end_trials(seconds: float) -> None:
    """Wait until nothing is tried in the background any more, so that no other tool is measured beside it."""
    from anygpu.placement.planner import default

    default().settle(seconds)
