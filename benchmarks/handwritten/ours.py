"""The same workloads through anygpu, as a user calls it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.workers.device_arrays.registry import registry
from benchmarks.handwritten.workloads import Workload


class NotOnTheDevice(Exception):
    """A part of a workload would run on the host: then there is nothing to compare."""


class Ours:
    def __init__(self, engine: str) -> None:
        # In this process, as the kernels by hand are.
        self._place = registry.find(engine, isolation="thread")
        self.name = self._place.device
        self.is_software = self._place.facts.kind == "cpu"

    def prepared(self, workload: Workload, arguments: Sequence[HostArray], result: HostArray) -> Prepared:
        return Prepared(self._place, workload, arguments)


class Prepared:
    def __init__(self, place: Any, workload: Workload, arguments: Sequence[HostArray]) -> None:
        engine: CompilingEngine = place.worker.engine
        self._function = workload.function
        self._values = arguments
        self._place = place
        self._session = engine.session(place.facts)
        program = record(workload.function, *arguments)
        lacks = engine.supports(program, place.facts)
        if lacks:
            raise NotOnTheDevice(f"{workload}: {lacks[0]}")
        self._executable = engine.compile(program, place.facts)
        self._arrays = [ag.asarray(each, device=self._place) for each in arguments]
        # The memory of these very arrays: a run on a copy of them would find nothing in the caches.
        self._buffers = [each._value.buffer.buffer for each in self._arrays]

    def resident(self) -> float:
        begin = time.perf_counter()
        result = self._function(*self._arrays).compute()
        self._session.synchronize()
        elapsed = time.perf_counter() - begin
        del result
        return elapsed

    def device_seconds(self) -> tuple[float, float]:
        begin = time.perf_counter()
        results = self._session.run(self._executable, self._buffers, timed=True)
        self._session.synchronize()
        elapsed = time.perf_counter() - begin
        seconds = self._session.driver.device_seconds()
        del results
        return elapsed if seconds is None else seconds, elapsed

    def round_trip(self) -> HostArray:
        arrays = (ag.asarray(each, device=self._place) for each in self._values)
        return np.asarray(self._function(*arrays))

    @property
    def kernels(self) -> int:
        return len(self._executable.schedule.kernels)
