"""Threads that use one store at once: no wrong value, and nobody who waits for ever."""

from __future__ import annotations

import pytest

from tests.store.threads import run


@pytest.mark.parametrize(("device", "mode"), [("opencl", "balanced"), ("numpy", "memory")])
def test_threads_at_one_store(device: str, mode: str) -> None:
    assert run(device, 1.5, mode=mode) > 20
