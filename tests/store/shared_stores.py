"""What tests of shared stores have in common."""

from __future__ import annotations

from pathlib import Path

from anygpu.store.shared_store import SharedTensors, open_shared

KEY = ("text", "weights")


def another(shared: SharedTensors) -> SharedTensors:
    """As another process would open it."""
    return open_shared(shared.name, within=shared.path.parent)


def files(shared: SharedTensors, prefix: str) -> list[Path]:
    return sorted(shared.path.glob(f"{prefix}*"))
