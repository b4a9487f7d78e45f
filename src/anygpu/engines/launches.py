"""Launches of kernels beside those of single runs: repeated ones, prepared once, and those that measure something."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from anygpu.engines.codegen.functions import library
from anygpu.engines.codegen.kernel import Kernel, Schedule
from anygpu.engines.driver import (
    TUNING,
    BlockRef,
    Bytes,
    Clear,
    Command,
    Counters,
    Dispatch,
    Driver,
    DriverBlock,
    Move,
    difference,
    window_of,
)
from anygpu.engines.memory.adaptors import Stats
from anygpu.errors import AllocationError

# -- launches that repeat: commands are worked out once for the blocks of a run, and submitted again as they are
# A pool gives a call that repeats the very same blocks (see `anygpu.engines.memory.pool`). So a run is recognised by
# the numbers of its blocks, of which no two are ever the same, and the offsets in them. The first run of a kind is
# only noted: most do not repeat.
#
# What is prepared holds blocks of the library. It is forgotten when the first of them goes back to the library: because
# memory is short, because the block was idle for long, or because the device is closed.


#: The number and the offset of each argument's block, and the numbers of all others.
LaunchKey = tuple[int, ...]

#: Kinds of runs that are remembered of a program, noted or prepared.
MOST_OF_A_PROGRAM = 16


class ProgramLaunches:
    """Of one compiled program. The caller holds the lock of the device for everything in here."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        #: What the driver made of it and the blocks in it; nothing for a run that was only noted.
        self._known: dict[LaunchKey, tuple[Any, tuple[DriverBlock, ...]]] = {}

    def get(self, key: LaunchKey) -> Any | None:
        known = self._known.get(key)
        return None if known is None else known[0]

    def __contains__(self, key: LaunchKey) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return sum(prepared is not None for prepared, _ in self._known.values())

    def put(
        self, key: LaunchKey, prepared: Any | None, blocks: tuple[DriverBlock, ...]
    ) -> list[tuple[DriverBlock, LaunchKey]]:
        """Returns what was forgotten for it: blocks that are not used by that run any more."""
        forgotten = []
        if key not in self._known and len(self._known) >= MOST_OF_A_PROGRAM:
            oldest = next(iter(self._known))
            forgotten = [(block, oldest) for block in self._known.pop(oldest)[1]]
        self._known[key] = (prepared, blocks)
        return forgotten

    def forget(self, key: LaunchKey) -> tuple[DriverBlock, ...]:
        """Returns the blocks that it used."""
        known = self._known.pop(key, None)
        return () if known is None else known[1]


class PreparedLaunches:
    """Of all programs of a device, by block."""

    def __init__(self) -> None:
        self._users: dict[DriverBlock, set[tuple[ProgramLaunches, LaunchKey]]] = {}

    def note(self, launches: ProgramLaunches, key: LaunchKey) -> None:
        self._put(launches, key, None, ())

    def keep(self, launches: ProgramLaunches, key: LaunchKey, prepared: Any, commands: Sequence[Command]) -> None:
        self._put(launches, key, prepared, _blocks_of(commands))

    def forget(self, block: DriverBlock) -> None:
        """The block goes back to the library, and with it all that was prepared with it."""
        for launches, key in self._users.pop(block, ()):
            for other in launches.forget(key):
                self._unused(other, launches, key)

    def clear(self) -> None:
        """Forget all prepared launches."""
        for users in self._users.values():
            for launches, key in users:
                launches.forget(key)
        self._users.clear()

    def __len__(self) -> int:
        """Blocks that something is prepared with."""
        return len(self._users)

    def _put(
        self, launches: ProgramLaunches, key: LaunchKey, prepared: Any | None, blocks: tuple[DriverBlock, ...]
    ) -> None:
        """Keep a prepared launch, and note it under each block that it uses: it goes when one of them goes."""
        for block, old in launches.put(key, prepared, blocks):
            self._unused(block, launches, old)
        for block in blocks:
            self._users.setdefault(block, set()).add((launches, key))

    def _unused(self, block: DriverBlock, launches: ProgramLaunches, key: LaunchKey) -> None:
        """Note that a prepared launch uses a block no more."""
        users = self._users.get(block)
        if users is not None:
            users.discard((launches, key))
            if not users:
                del self._users[block]


def _blocks_of(commands: Sequence[Command]) -> tuple[DriverBlock, ...]:
    """The blocks that commands use, each once."""
    blocks: dict[DriverBlock, None] = {}
    for command in commands:
        match command:
            case Dispatch(extents=extents):
                blocks.update((extent.block, None) for extent in extents)
            case Move(source=source, target=target):
                blocks.update(((source.block, None), (target.block, None)))
            case Clear(extent=extent):
                blocks[extent.block] = None
    return tuple(blocks)


# -- kernels run to find something out: their times, the accuracy of a device's functions, what they store
# They run on memory of their own, beside everything else that a session does.


#: A race is run so often; the first time is for the compiler.
_RACES = 4


class KernelTimer:
    """The lock is the session's: it is held around every use of the driver, and never while memory is asked for."""

    def __init__(self, driver: Driver, lock: threading.Lock, memory: Stats) -> None:
        """Time kernels on a driver, with memory of its own for them. `work` counts apart from the session's work."""
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
        """Add the driver's counters of what is done inside to `work`."""
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
        """The driver's built-in functions that kernels may call, found by running them once.

        In WGSL these are the ones that are exact enough; in OpenCL C the ones that are faster than ours.
        """
        held = self._held(plan, range(len(plan.slots)))
        with self._lock:
            for number, slot in enumerate(plan.slots):
                if slot.data is not None:
                    self._driver.write(held[number].extent(slot.nbytes), np.frombuffer(slot.data, np.uint8))
        if self._driver.target.dialect != "wgsl":
            builtins, ours = (self._fastest(plan, kernel, held) for kernel in plan.kernels)
            return library.faster(builtins, ours) if builtins is not None and ours is not None else ()
        commands = self._launches(plan, plan.kernels, held)
        with self._lock:
            self._driver.submit(commands)
            read = self._driver.read_many([held[each.slot].extent(each.spec.nbytes) for each in plan.outputs])
        shaped = zip(read, (each.spec for each in plan.outputs), strict=True)
        results = [data.view(spec.dtype).reshape(spec.shape) for data, spec in shaped]
        return library.trusted(self._driver.target, results)

    def _fastest(self, plan: Schedule, kernel: Kernel, held: Mapping[int, BlockRef]) -> float | None:
        """The shortest of several runs of a kernel; the first one warms up."""
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
        """Seconds of the commands on the device, or `None` where it does not measure them."""
        with self._lock:
            self._driver.submit(commands, timed=True)
            return self._driver.device_seconds()

    def _held(self, plan: Schedule, slots: Sequence[int] | set[int]) -> dict[int, BlockRef]:
        return {slot: BlockRef(self._memory, plan.slots[slot].nbytes, TUNING) for slot in slots}

    def _launches(self, plan: Schedule, kernels: Sequence[Kernel], held: Mapping[int, BlockRef]) -> list[Command]:
        """The dispatches of kernels with memory by slot. Kernels that had to be compiled for it are noted."""
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
