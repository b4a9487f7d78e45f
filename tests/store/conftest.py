"""Stores on real devices, and what the engines say of the memory that is in use."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.engines.memory.pool import bucket_size
from anygpu.placement.planner import default
from anygpu.store import Store
from anygpu.store.shared_store import SharedTensors, open_shared
from anygpu.workers.device_arrays.registry import registry

#: Engines that count the memory of arrays.
COUNTING = ("opencl", "webgpu")
EVERY = ("numpy", "cpu", "torch:cpu", "jax", *COUNTING)

MakeStore = Callable[..., Store]


@pytest.fixture
def make_store() -> Iterator[MakeStore]:
    """Stores that are closed in the end, and leave nothing on their device."""
    stores: list[Store] = []
    before: dict[str, int] = {}

    def make(*arguments: Any, **options: Any) -> Store:
        store = Store(*arguments, **options)
        before.setdefault(store.device, in_use(store.device))
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.close()
        statistics = store.statistics()
        assert (statistics.device_bytes, statistics.host_bytes, statistics.disk_bytes) == (0, 0, 0)
    for device, count in before.items():
        assert in_use(device) <= count, f"something was left on {device}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in the file system that shared stores are in by default; whatever a test does, nothing is left in it."""
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
    own = folder / f"anygpu-test-{secrets.token_hex(8)}"
    own.mkdir(mode=0o700)
    yield own
    gc.collect()
    own.rmdir()


@pytest.fixture
def shared(place: Path) -> Iterator[SharedTensors]:
    with open_shared("models", within=place) as opened:
        yield opened


def in_use(device: str) -> int:
    """Bytes of arrays on the device as its engine counts them; 0 for engines that do not."""
    # Calls of the test may have made devices be measured in the background, with arrays of their own.
    default().settle(60)
    gc.collect()
    return registry.worker(device).memory().in_use or 0


def in_blocks(*counts: int) -> int:
    """What an engine takes for arrays of so many bytes."""
    return sum(bucket_size(count) for count in counts)


def some(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).normal(size=shape or (64, 64)) * 100).astype(dtype)
