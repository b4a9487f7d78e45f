"""The workloads with anygpu: NumPy's functions, decorated."""

from __future__ import annotations

from typing import Any

import anygpu as ag
from benchmarks.peers.in_numpy import FUNCTIONS


def function(name: str) -> Any:
    return ag.offload(FUNCTIONS[name])


def compiled(name: str) -> Any:
    return ag.offload(on="cpu")(FUNCTIONS[name])


def exact(name: str) -> Any:
    return ag.offload(exact=True)(FUNCTIONS[name])


def device() -> str:
    """Where the last call ran."""
    receipt = ag.last_receipt()
    return receipt.device if receipt is not None else "numpy"
