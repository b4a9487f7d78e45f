"""Restoring arrays, after their device was lost or after they were evicted: on the device, or on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.errors import DeviceLost
from anygpu.program.graph import Program
from anygpu.residency.lineage import (
    Lineage,
    Producer,
    Step,
    TrackedBuffer,
    describe_loss,
    missing_ancestors,
    topological_order,
)
from anygpu.workers.worker import Handle, Worker


class Restoration:
    """One restoration: uploads and computes everything that the wanted arrays need, each thing once."""

    def __init__(self, worker: Worker, wanted: Sequence[TrackedBuffer], now: int) -> None:
        """`now` becomes `TrackedBuffer.used` of the wanted arrays."""
        self._worker = worker
        self._wanted = wanted
        self._now = now
        #: By the id of its lineage: what is on the device, and what is on the host.
        self._held: dict[int, Handle] = {}
        self._values: dict[int, HostArray] = {}

    def carry_out(self) -> dict[int, Handle]:
        """The handles of all wanted arrays. Raises `DeviceLost` for an array that cannot be restored."""
        order = topological_order([buffer.lineage for buffer in self._wanted], self._is_available)
        _require(order, self._wanted, self._is_available, self._worker.device.id)
        uses = _uses(order, self._wanted)
        done: set[int] = set()
        for lineage, producer in order:
            if producer is None and id(lineage) in self._values:
                self._restored(lineage, self._worker.upload(self._values.pop(id(lineage))))
            elif producer is not None and id(producer) not in done:
                done.add(id(producer))
                self._compute(lineage, producer, uses)
        for buffer in self._wanted:
            buffer.used = self._now
        return self._held

    def _is_available(self, lineage: Lineage) -> bool:
        """Whether it is on the device, or has a copy, which is held from now on."""
        if id(lineage) in self._held or id(lineage) in self._values:
            return True
        buffer = lineage.array() if lineage.array is not None else None
        handle = buffer.handle if buffer is not None else None
        if handle is not None and handle.generation == self._worker.generation:
            self._held[id(lineage)] = handle
            return True
        copy = lineage.copy
        values = copy.values if copy is not None else None
        if values is not None:
            self._values[id(lineage)] = values
        return values is not None

    def _compute(self, wanted: Lineage, producer: Producer, uses: dict[int, int]) -> None:
        given = [self._held[id(source)] for source in producer.inputs]
        ran = self._worker.run(producer.program, given, keep=True, wait=False)
        for source in producer.inputs:
            uses[id(source)] -= 1
            if not uses[id(source)]:
                self._held.pop(id(source), None)
        lineages = [each() for each in producer.results] or [wanted]
        for lineage, handle in zip(lineages, ran.results, strict=True):
            if lineage is not None:
                self._restored(lineage, handle, needed=id(lineage) in uses)

    def _restored(self, lineage: Lineage, handle: Handle, *, needed: bool = True) -> None:
        """Record that it is on the device again, also for the array that the user holds."""
        if needed:
            self._held[id(lineage)] = handle
        buffer = lineage.array() if lineage.array is not None else None
        if buffer is not None and (buffer.handle is None or buffer.handle.generation != handle.generation):
            buffer.handle, buffer.generation = handle, handle.generation


class HostRestoration:
    """The restoration of arrays whose device cannot be opened any more: NumPy computes what has no copy."""

    def __init__(self, device: str, wanted: Sequence[TrackedBuffer]) -> None:
        self._device = device
        self._wanted = wanted
        #: By the id of its lineage.
        self._values: dict[int, HostArray] = {}
        #: The programs that were run again.
        self.programs: list[Program] = []

    def carry_out(self) -> list[HostArray]:
        """The values of all wanted arrays. Raises `DeviceLost` for an array that cannot be restored."""
        order = topological_order([buffer.lineage for buffer in self._wanted], self._is_available)
        _require(order, self._wanted, self._is_available, self._device)
        uses = _uses(order, self._wanted)
        for lineage, producer in order:
            # Another result of the same program may have been computed with it.
            if producer is not None and id(lineage) not in self._values:
                self._compute(lineage, producer, uses)
        return [self._values[id(buffer.lineage)] for buffer in self._wanted]

    def _is_available(self, lineage: Lineage) -> bool:
        """Whether it has a copy, which is held from now on."""
        copy = lineage.copy
        values = copy.values if copy is not None else None
        if values is not None:
            self._values[id(lineage)] = values
        return id(lineage) in self._values

    def _compute(self, wanted: Lineage, producer: Producer, uses: dict[int, int]) -> None:
        if any(spec.dtype == "bfloat16" for spec in producer.program.specs):
            detail = f"{wanted.describe()} cannot be restored: NumPy has no bfloat16"
            raise DeviceLost(self._device, detail=detail)
        self.programs.append(producer.program)
        results = lowering.run(producer.program, [self._values[id(source)] for source in producer.inputs])
        for source in producer.inputs:
            uses[id(source)] -= 1
            if not uses[id(source)]:
                self._values.pop(id(source), None)
        lineages = [each() for each in producer.results] or [wanted]
        for lineage, values in zip(lineages, results, strict=True):
            if lineage is not None and id(lineage) in uses:
                self._values[id(lineage)] = values


def _require(
    order: Sequence[Step], wanted: Sequence[TrackedBuffer], is_available: Callable[[Lineage], bool], device: str
) -> None:
    """Raise `DeviceLost` for the first array that cannot be restored."""
    missing = missing_ancestors(order, is_available)
    for buffer in wanted:
        cause = missing[id(buffer.lineage)]
        if cause is not None:
            why = describe_loss(buffer.lineage, cause)
            detail = f"{buffer.lineage.describe()} cannot be restored: {why}"
            raise DeviceLost(device, detail=detail, generation=buffer.generation)


def _uses(order: Sequence[Step], wanted: Sequence[TrackedBuffer]) -> dict[int, int]:
    """How often each lineage is still needed, so that it can be released afterwards."""
    uses: dict[int, int] = {}
    producers = {id(producer): producer for _, producer in order if producer is not None}
    inputs = [source for producer in producers.values() for source in producer.inputs]
    for lineage in (*inputs, *(buffer.lineage for buffer in wanted)):
        uses[id(lineage)] = uses.get(id(lineage), 0) + 1
    return uses
