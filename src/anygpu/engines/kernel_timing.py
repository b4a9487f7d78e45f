"""Kernels run to find something out: how long they take, how accurate a device's own functions are, what they store.

They run on memory of their own, beside everything else that a session does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from anygpu.codegen.functions import accuracy
from anygpu.codegen.kernel import Kernel, Schedule
from anygpu.engines.block_ref import TUNING, BlockRef, window_of
from anygpu.engines.driver import Bytes, Clear, Command, Counters, Dispatch, Driver, Move, difference
from anygpu.errors import AllocationError
from anygpu.memory.adaptors import Stats

#: A race is run so often; the first time is for the compiler.
_RACES = 4


class KernelTimer:
    """The lock is the session's: it is held around every use of the driver, and never while memory is asked for."""

    def __init__(self, driver: Driver, lock: threading.Lock, memory: Stats) -> None:
        self._driver = driver
        self._lock = lock
        self._memory = memory
        #: What the driver has done for trials alone.
        self.work = Counters()
        #: Kernels that were compiled for a trial, and that no program has used yet.
        self._unused: set[tuple[str, str]] = set()

    def used(self, kernel: Kernel) -> None:
        """A program takes the kernel: if a trial had it compiled, that was for the program."""
        if self._unused:
            name = (kernel.source, kernel.name)
            if name in self._unused:
                self._unused.remove(name)
                self.work.compilations -= 1

    @contextmanager
    def _counted(self) -> Iterator[None]:
        before = msgspec.structs.replace(self._driver.counters)
        try:
            yield
        finally:
            done = difference(self._driver.counters, before)
            for name in Counters.__struct_fields__:
                setattr(self.work, name, getattr(self.work, name) + getattr(done, name))

    def trusted_functions(self, plan: Schedule) -> tuple[str, ...]:
        """The built-in functions to call instead of ours: the accurate ones in WGSL, all or none in OpenCL C."""
        with self._counted():
            return self._trusted_functions(plan)

    def _trusted_functions(self, plan: Schedule) -> tuple[str, ...]:
        held = self._held(plan, range(len(plan.slots)))
        with self._lock:
            for number, slot in enumerate(plan.slots):
                if slot.data is not None:
                    self._driver.write(held[number].extent(slot.nbytes), np.frombuffer(slot.data, np.uint8))
        if self._driver.target.dialect != "wgsl":
            builtins, ours = (self._fastest(plan, kernel, held) for kernel in plan.kernels)
            return accuracy.faster(builtins, ours) if builtins is not None and ours is not None else ()
        commands = self._launches(plan, plan.kernels, held)
        with self._lock:
            self._driver.submit(commands)
            read = self._driver.read_many([held[each.slot].extent(each.spec.nbytes) for each in plan.outputs])
        shaped = zip(read, (each.spec for each in plan.outputs), strict=True)
        results = [data.view(spec.dtype).reshape(spec.shape) for data, spec in shaped]
        return accuracy.trusted(self._driver.target, results)

    def _fastest(self, plan: Schedule, kernel: Kernel, held: Mapping[int, BlockRef]) -> float | None:
        commands = self._launches(plan, [kernel], held)
        times = [self._timed(commands) for _ in range(_RACES)]
        return min((each for each in times[1:] if each is not None), default=None)

    def seconds(self, plan: Schedule, steps: tuple[int, ...], most_bytes: int | None) -> float | None:
        """What some steps of a schedule take, on zeros; `None` when memory or the device's clock is missing."""
        kernels = [plan.steps[number] for number in steps]
        slots = {binding.slot for kernel in kernels for binding in kernel.bindings}
        if most_bytes is not None and sum(plan.slots[slot].nbytes for slot in slots) > most_bytes:
            return None
        with self._counted():
            held = self._held(plan, slots)
            launches = self._launches(plan, kernels, held)
            with self._lock:
                self._driver.submit([Clear(each.extent(plan.slots[slot].nbytes)) for slot, each in held.items()])
            return self._timed(launches)

    def overwrites(self, plan: Schedule, most_bytes: int | None) -> bool | None:
        """Whether nothing that was in memory before shows in the results; `None` when there is no room to find out.

        The schedule runs twice on zeros, once over memory full of zeros and once over memory full of ones. Which
        elements a kernel stores does not depend on values, so one comparison is enough.
        """
        if most_bytes is not None and sum(slot.nbytes for slot in plan.slots) > most_bytes:
            return None
        with self._counted():
            try:
                held = self._held(plan, [number for number, slot in enumerate(plan.slots) if slot.nbytes])
            except AllocationError:
                return None
            seen = [self._over(plan, held, filling) for filling in (0x00, 0xFF)]
        return all(np.array_equal(one, other) for one, other in zip(*seen, strict=True))

    def _over(self, plan: Schedule, held: Mapping[int, BlockRef], filling: int) -> list[Bytes]:
        """The results of a run over memory that is full of one byte."""
        everything = {number: each.extent(plan.slots[number].nbytes) for number, each in held.items()}
        with self._lock:
            for number, extent in everything.items():
                slot = plan.slots[number]
                if slot.data is not None:
                    self._driver.write(extent, np.frombuffer(slot.data, np.uint8))
                elif slot.role in ("temporary", "output"):
                    self._driver.write(extent, np.full(extent.nbytes, filling, np.uint8))
        commands: list[Command] = [
            Clear(extent) for number, extent in everything.items() if plan.slots[number].role in ("input", "status")
        ]
        for kernel, launch in zip(plan.steps, self._launches(plan, plan.steps, held), strict=True):
            for start in kernel.starts:
                target = everything[start.slot]
                commands.append(Clear(target) if start.source is None else Move(everything[start.source], target))
            commands.append(launch)
        outputs = [extent for number, extent in everything.items() if plan.slots[number].role == "output"]
        with self._lock:
            self._driver.submit(commands)
            return self._driver.read_many(outputs)

    def _timed(self, commands: Sequence[Command]) -> float | None:
        with self._lock:
            self._driver.submit(commands, timed=True)
            return self._driver.device_seconds()

    def _held(self, plan: Schedule, slots: Sequence[int] | set[int]) -> dict[int, BlockRef]:
        return {slot: BlockRef(self._memory, plan.slots[slot].nbytes, TUNING) for slot in slots}

    def _launches(self, plan: Schedule, kernels: Sequence[Kernel], held: Mapping[int, BlockRef]) -> list[Command]:
        launches: list[Command] = []
        for kernel in kernels:
            extents = [
                window_of(held[binding.slot].extent(plan.slots[binding.slot].nbytes), binding.window)
                for binding in kernel.bindings
            ]
            with self._lock:
                before = self._driver.counters.compilations
                built = self._driver.build(kernel)
                if self._driver.counters.compilations > before:
                    self._unused.add((kernel.source, kernel.name))
            launches.append(Dispatch(built, tuple(extents), kernel.values or (0,) * len(kernel.numbers)))
        return launches
