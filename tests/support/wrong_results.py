"""Devices that are wrong on purpose: in one element of one result, as a kernel with a bug would be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines import Isolation
from anygpu.hardware.device import Device, Unavailable
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.worker import Argument, Ran, Worker

#: Says of a program and the number of its run on this worker whether its result is to be spoilt.
When = Callable[[Program, int], bool]


def spoil(results: Sequence[HostArray], rng: random.Random) -> list[HostArray]:
    """Copies, in which one element of one array is another one; nothing if there are no elements."""
    spoilt = [np.array(each) for each in results]
    having = [each for each in spoilt if each.size]
    if not having:
        return spoilt
    array = rng.choice(having)
    place = rng.randrange(array.size)
    array.flat[place] = other_than(array.flat[place], array.dtype, rng)
    return spoilt


def other_than(value: Any, dtype: np.dtype[Any], rng: random.Random) -> Any:
    """A wrong value that is not far-fetched: a flipped bool or bit, a float that is 0, NaN or a tenth off."""
    if dtype.kind == "b":
        return not value
    if dtype.kind in "iu":
        return value ^ dtype.type(1 << rng.randrange(8 * dtype.itemsize - 1))
    if not np.isfinite(value):
        return dtype.type(1)
    if value == 0:
        return dtype.type(rng.choice((1.0, -0.5, np.nan)))
    kinds = (dtype.type(0), value * dtype.type(1.1), -value, dtype.type(np.nan), value + value)
    return rng.choice(kinds)


class Wrong:
    """A worker whose results are spoilt when `when` says so."""

    def __init__(self, inner: Worker, when: When, rng: random.Random) -> None:
        self.inner = inner
        self.when = when
        self.rng = rng
        self.runs = 0
        self.spoilt = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, program: Program, arguments: Sequence[Argument], **options: Any) -> Ran:
        ran = self.inner.run(program, arguments, **options)
        self.runs += 1
        if options.get("keep") or not self.when(program, self.runs):
            return ran
        self.spoilt += 1
        return ran._replace(results=spoil(ran.results, self.rng))


class WrongRegistry(DeviceRegistry):
    """NumPy, and one more device of this machine that is wrong when `when` says so."""

    def __init__(self, device: str, when: When, *, seed: int = 0) -> None:
        super().__init__()
        self._names = ("numpy", device)
        self.wrong = Wrong(registry.worker(device), when, random.Random(seed))

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        """Without a probe: that it can be opened is enough here."""
        found = [registry.worker("numpy").device, self.wrong.inner.device]
        return [msgspec.structs.replace(device, state="verified") for device in found]

    def unavailable(self) -> list[Unavailable]:
        return []

    def worker(self, device_id: str, *, isolation: Isolation | None = None) -> Worker:
        return self.wrong if device_id == self._names[1] else registry.worker(device_id, isolation=isolation)

    def explorer(self, device_id: str) -> Worker:
        return self.worker(device_id)

    def is_open(self, device_id: str) -> bool:
        return True


def real_values(spec: Spec, rng: np.random.Generator, *, spread: float) -> HostArray:
    """As measurements are: nothing is exact in binary, and magnitudes span `spread` powers of ten."""
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 40, spec.shape).astype(dtype)
    values = rng.normal(size=spec.shape) * 10.0 ** rng.uniform(-spread, spread, spec.shape)
    if dtype.kind == "c":
        values = values + 1j * rng.normal(size=spec.shape)
    limit = float(np.finfo(dtype).max) / 16
    return np.asarray(np.clip(values.real, -limit, limit) + (1j * values.imag if dtype.kind == "c" else 0)).astype(
        dtype
    )
