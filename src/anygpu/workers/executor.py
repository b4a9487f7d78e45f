"""Executes programs on a device of this process, and measures that: for workers in threads and in children alike.

`Executor` uploads, compiles, runs and reads back, and translates the library's errors. Operations that the device lacks
are run on the host one by one, between parts of the program that stay on the device.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import EngineEntry, load
from anygpu.engines.host_arrays import dtype_name, numpy_dtype
from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import (
    Borrows,
    Buffer,
    Counting,
    Executable,
    Lack,
    Memory,
    Notes,
    Overlaps,
    Prepares,
    ProgramEngine,
    ReadsInto,
    Reclaims,
    Reflects,
)
from anygpu.errors import AnyGPUError, DeviceUnavailable, InvalidOption, Unsupported
from anygpu.hardware.device import Device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Broadcast, Cast, Constant, Input, Reshape, Spec
from anygpu.receipts.receipt import Account, DriverWork, HostedNode, HostOperation

if TYPE_CHECKING:
    from anygpu.engines.codegen.custom.reflected import Reflected
    from anygpu.engines.driver import Counters


# -- operations that a device lacks, run on the host one by one: never silently, and nothing else goes along


def run_with_host(
    engine: ProgramEngine, device: Device, program: Program, buffers: Sequence[Buffer], lacks: Sequence[Lack]
) -> tuple[list[Buffer], list[HostedNode]]:
    """Cut the program at the nodes that the device lacks: what lies between runs on the device as ever.

    Also returns what ran on the host, which the caller has to tell.
    """
    reasons = {lack.node: lack.reason for lack in lacks}
    if any(program.specs[node].dtype == "bfloat16" for node in reasons):
        raise Unsupported("bfloat16", device.id, instead="NumPy on the host has none either: cast to float32.")
    values: dict[int, Buffer] = dict(enumerate(buffers))
    waiting: list[int] = []
    hosted: list[HostedNode] = []

    def flush(needed: Sequence[int]) -> None:
        if waiting:
            part, sources, results = _part(program, waiting, needed, reasons)
            executable = engine.compile(part, device)
            outputs = engine.execute(executable, [values[source] for source in sources])
            values.update(zip(results, outputs, strict=True))
            waiting.clear()

    for position, node in enumerate(program.nodes):
        if isinstance(node.op, Input):
            continue
        if position not in reasons:
            waiting.append(position)
            continue
        flush(_needed_later(program, waiting, position))
        inputs = [engine.download(values[source]) for source in node.inputs]
        result = lowering.run_node(node.op, inputs)
        values[position] = engine.upload(result, device)
        moved = sum(each.nbytes for each in inputs) + result.nbytes
        # Its line is added by the caller's side (`ran_by`), which knows it.
        operation = HostOperation(operation=node.op.name, reason=reasons[position], line=None, bytes_moved=moved)
        hosted.append((position, operation))
    flush(_needed_later(program, waiting, len(program.nodes)))
    return [values[output] for output in program.outputs], hosted


def _needed_later(program: Program, part: Sequence[int], after: int) -> list[int]:
    """The results of a part that other parts, or the caller, need."""
    inside = set(part)
    users = [node.inputs for position, node in enumerate(program.nodes) if position >= after]
    needed = {source for inputs in users for source in inputs} | set(program.outputs)
    return sorted(inside & needed)


def _part(
    program: Program, part: Sequence[int], results: Sequence[int], lacking: Collection[int]
) -> tuple[Program, list[int], list[int]]:
    """The nodes of a part as a program of its own, with the values it takes and gives.

    Constants go along, wherever they stand: what is a number in the program stays one.
    """
    part = sorted({*part, *_constants_of(program, part, lacking)})
    inside = set(part)
    sources = sorted({source for position in part for source in program.nodes[position].inputs} - inside)
    numbers = {source: number for number, source in enumerate(sources)}
    nodes = [Node(Input(*program.specs[source])) for source in sources]
    for position in part:
        op, inputs = program.nodes[position]
        numbers[position] = len(nodes)
        nodes.append(Node(op, tuple(numbers[source] for source in inputs)))
    return Program(nodes, [numbers[result] for result in results]), sources, list(results)


def _constants_of(program: Program, part: Sequence[int], lacking: Collection[int]) -> set[int]:
    """The operands of the nodes that are made of constants alone, by repeating and casting."""
    found: set[int] = set()
    for position in part:
        for source in program.nodes[position].inputs:
            chain = [source]
            while isinstance(program.nodes[chain[-1]].op, Broadcast | Reshape | Cast):
                chain.append(program.nodes[chain[-1]].inputs[0])
            if isinstance(program.nodes[chain[-1]].op, Constant) and not any(each in lacking for each in chain):
                found.update(chain)
    return found


_NOT_COUNTED = {
    "peak_bytes": "this engine does not count memory",
    "kernels": "this engine does not report how many kernels it launches",
}
_NOT_ASKED = "not requested: reading the device's clock costs another round trip"
#: Below, a copy costs less than to find out whether it is needed.
_WORTH_LENDING = 64 << 10
_NO_CLOCK = "this engine has no device clock"
_SHARED_PEAK = "another call's arrays may have been on the device at the same time"


class Resident:
    """An array on the device, and what it looks like."""

    __slots__ = ("buffer", "spec")

    def __init__(self, buffer: Buffer, spec: Spec) -> None:
        self.buffer = buffer
        self.spec = spec


class Executed(NamedTuple):
    """One run on a device of this process."""

    #: The results of `deliver`, `None` for values with a target, or buffers if they were to be kept.
    results: list[Any]
    account: Account


#: Makes of the values of a result, given its position, what its caller gets.
DeliverResult = Callable[[int, HostArray], Any]


def open_engine(entry: EngineEntry, device: Device, budget: int | None) -> ProgramEngine:
    """The engine with this device open, and the slow work of a first use done."""
    engine = load(entry)
    if not isinstance(engine, ProgramEngine):
        raise DeviceUnavailable(f'on="{device.id}"', [f"{entry.name} does not run programs."], device=device.id)
    prepare_device(engine, device, budget)
    return engine


def prepare_device(engine: ProgramEngine, device: Device, budget: int | None, *, listed: bool = False) -> None:
    """Open the device of an engine. `listed` says that the engine has discovered its devices already."""
    if not listed:
        found = {item.id: item for item in engine.discover() if isinstance(item, Device)}
        now = found.get(device.id)
        if now is None or now.name != device.name:
            what = f"it is {now.name} now" if now is not None else "it is gone"
            refusal = f"{device.id} was {device.name}, and {what}."
            raise DeviceUnavailable(f'on="{device.id}"', [refusal], device=device.id)
    if isinstance(engine, Prepares):
        engine.prepare(device, budget=budget)


class Executor:
    """Runs programs on one device of an engine. Not to be used by two threads at once.

    Only the methods named `apart` may be called by a second thread, where `can_overlap` says so.
    """

    def __init__(self, engine: ProgramEngine, device: Device) -> None:
        """Makes the executor of a device that the engine has open.

        Each optional ability of the engine is looked up once.
        """
        self.engine = engine
        self.device = device
        self.translating = Translating(engine, device)
        self._counting: Counting | None = engine if isinstance(engine, Counting) else None
        self._reads_into: ReadsInto | None = engine if isinstance(engine, ReadsInto) else None
        self._borrows: Borrows | None = engine if isinstance(engine, Borrows) else None
        self._overlaps: Overlaps | None = None
        if isinstance(engine, Overlaps) and engine.can_overlap(device):
            self._overlaps = engine
        self._in_host_memory = device.form == "host" and self._counting is None

    def supports(self, program: Program) -> list[Lack]:
        with self.translating:
            return self.engine.supports(program, self.device)

    def reflected(self, source: str, entry: str | None, title: str) -> Reflected:
        """Return what a user's kernel takes, where the engine's own compiler has to read it."""
        if not isinstance(self.engine, Reflects):
            raise Unsupported("reading a kernel's text", self.device.id)
        with self.translating:
            return self.engine.reflected(source, entry, title, self.device)

    def prepare(self, program: Program) -> float:
        """Compile it. What is cut by operations on the host is compiled when it runs."""
        begin = time.perf_counter()
        with self.translating:
            if not self.engine.supports(program, self.device):
                self.engine.compile(program, self.device)
        return time.perf_counter() - begin

    def run(
        self,
        program: Program,
        arguments: Sequence[HostArray | Resident],
        *,
        keep: bool,
        wait: bool,
        timed: bool,
        deliver: DeliverResult,
        targets: Sequence[HostArray | None] | None = None,
        lend: bool = False,
        apart: bool = False,
    ) -> Executed:
        """Runs a program on arrays of the host and of the device, and returns its results with what they took.

        With `lend`, an engine that works in the host's memory may read arguments where they are. With `apart` another
        thread may transfer meanwhile; the results are there on return. `targets` are arrays that results are wanted in;
        a result without one is delivered.
        """
        give = self._lent if lend and not keep and self._in_host_memory else self._uploaded
        clock, device, counting = time.perf_counter, self.device, self._counting
        with self.translating:
            begin = clock()
            before = counting.counters(device) if counting is not None else None
            lacks = self.engine.supports(program, device)
            executable = None if lacks else self.engine.compile(program, device)
            if counting is not None:
                # Only now: kernels may have been tried out, on memory that the program itself does not need.
                counting.reset_peak(device)
            compiled = clock()
            buffers = [each.buffer if isinstance(each, Resident) else give(each) for each in arguments]
            skipped = sum([each.spec.nbytes for each in arguments if isinstance(each, Resident)])
            to_device = sum([each.nbytes for each in arguments if not isinstance(each, Resident)])
            written = clock()
            results, seconds, hosted = self._execute(program, executable, buffers, lacks, timed=timed, apart=apart)
            noted = self.engine.noted() if isinstance(self.engine, Notes) else 0
            if wait or not keep:
                self.engine.synchronize(device)
            ran = clock()
            if keep:
                delivered, to_host = results, 0
                skipped += sum(spec.nbytes for spec in program.results)
            else:
                delivered, to_host = self._delivered(results, deliver, targets)
            times = (compiled - begin, written - compiled, ran - written, clock() - ran)
            for node, _ in hosted:
                to_device += program.specs[node].nbytes
                to_host += sum(program.specs[source].nbytes for source in program.nodes[node].inputs)
            peak, work, unknown = self._counted(before, seconds, timed, apart)
        account = Account(*times, to_device, to_host, skipped, seconds, peak, work, hosted, unknown, noted)
        return Executed(delivered, account)

    def _execute(
        self,
        program: Program,
        executable: Executable | None,
        buffers: list[Buffer],
        lacks: list[Lack],
        *,
        timed: bool,
        apart: bool,
    ) -> tuple[list[Buffer], float | None, list[HostedNode]]:
        """The results, the device's own seconds if they are wanted and known, and what ran on the host."""
        if executable is None:
            results, hosted = run_with_host(self.engine, self.device, program, buffers, lacks)
            return results, None, hosted
        if timed and self._counting is not None:
            results, seconds = self._counting.execute_timed(executable, buffers)
            return results, seconds, []
        if apart and self._overlaps is not None:
            return self._overlaps.execute_apart(executable, buffers), None, []
        return self.engine.execute(executable, buffers), None, []

    def _uploaded(self, values: HostArray) -> Buffer:
        return self.engine.upload(values, self.device)

    def _lent(self, values: HostArray) -> Buffer:
        """A buffer on the caller's memory if the engine can use it in place, and a copy of it otherwise."""
        if self._borrows is not None:
            return self._borrows.borrow(values, self.device)
        if values.nbytes >= _WORTH_LENDING and values.flags.c_contiguous:
            try:
                return self.engine.adopt(exportable(values), self.device)
            except (BufferError, RuntimeError, TypeError, ValueError):
                # A type or an address that the library does not take as it is.
                return self._uploaded(values)
        return self._uploaded(values)

    def _delivered(
        self, results: Sequence[Buffer], deliver: DeliverResult, targets: Sequence[HostArray | None] | None
    ) -> tuple[list[Any], int]:
        """The results on the host, `None` for those that were read into a target, and the bytes that were read."""
        delivered: list[Any] = []
        nbytes = 0
        for position, buffer in enumerate(results):
            target = targets[position] if targets is not None else None
            if target is not None:
                self._read_into(buffer, target)
                nbytes += target.nbytes
                delivered.append(None)
            else:
                values = self.engine.download(buffer)
                nbytes += values.nbytes
                delivered.append(deliver(position, values))
        return delivered, nbytes

    def _counted(
        self, before: Counters | None, seconds: float | None, timed: bool, apart: bool
    ) -> tuple[int | None, DriverWork | None, dict[str, str]]:
        """The peak of memory and the driver's work of a run as far as the engine counts, and why others are unknown."""
        counting = self._counting
        unknown: dict[str, str] = {}
        if seconds is None:
            unknown["device_seconds"] = _NO_CLOCK if timed or counting is None else _NOT_ASKED
        if counting is None or before is None:
            return None, None, unknown | _NOT_COUNTED
        work = _difference(before, counting.counters(self.device))
        if apart:
            return None, work, unknown | {"peak_bytes": _SHARED_PEAK}
        return counting.peak_bytes(self.device), work, unknown

    def upload(self, values: HostArray) -> Resident:
        with self.translating:
            return Resident(self.engine.upload(values, self.device), spec_of(values))

    def download(self, resident: Resident) -> HostArray:
        with self.translating:
            return self.engine.download(resident.buffer)

    def download_into(self, resident: Resident, target: HostArray) -> None:
        with self.translating:
            self._read_into(resident.buffer, target)

    @property
    def can_overlap(self) -> bool:
        return self._overlaps is not None

    def upload_apart(self, values: HostArray) -> Resident:
        """Uploads on a second thread while a program runs, where the engine can."""
        if self._overlaps is None:
            return self.upload(values)
        with self.translating:
            return Resident(self._overlaps.upload_apart(values, self.device), spec_of(values))

    def download_apart(self, resident: Resident, target: HostArray) -> None:
        """Reads an array on a second thread, while a program runs that does not compute it."""
        if self._overlaps is None:
            self.download_into(resident, target)
            return
        with self.translating:
            self._overlaps.download_apart(resident.buffer, target)

    def _read_into(self, buffer: Buffer, target: HostArray) -> None:
        """Copies a buffer into the target, without a copy in between where the engine can."""
        if self._reads_into is not None:
            self._reads_into.download_into(buffer, target)
        else:
            np.copyto(target, self.engine.download(buffer))

    def memory(self) -> Memory:
        with self.translating:
            return self.engine.memory(self.device)

    def reclaim(self) -> int:
        """Give back cached memory of the device, also that of arrays in unreachable cycles."""
        gc.collect()
        if not isinstance(self.engine, Reclaims):
            return 0
        with self.translating:
            return self.engine.reclaim(self.device)


class Translating:
    """The block around every use of an engine: its library's errors become ours, and others pass unchanged."""

    def __init__(self, engine: ProgramEngine, device: Device) -> None:
        self._engine = engine
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise the engine's errors as ours; other errors pass unchanged."""
        if error is not None and isinstance(error, Exception) and not isinstance(error, AnyGPUError):
            known = self._engine.classify(error, self._device)
            if known is not None:
                try:
                    raise known from error
                finally:
                    # Its traceback holds this frame: without this, both would keep the run's arrays until the next
                    # garbage collection.
                    del known


class _Writable:
    """Memory that may not be written to, shown as if it might be: DLPack has no word for the difference everywhere."""

    def __init__(self, values: HostArray) -> None:
        self._values = values
        self.__array_interface__ = {**values.__array_interface__, "data": (values.ctypes.data, False)}


def exportable(values: HostArray) -> HostArray:
    """Returns the same memory as an array that every library takes.

    Engines only read arguments, so it is never written to.
    """
    if values.flags.writeable or not values.dtype.isbuiltin:
        return values
    return np.asarray(_Writable(values))


def spec_of(values: HostArray) -> Spec:
    return Spec(values.shape, dtype_name(values.dtype))


def check_arguments(program: Program, arguments: Sequence[Any]) -> list[Any]:
    """The arguments, values in the host's byte order. Raises `InvalidOption` where one does not fit the program."""
    wanted = program.inputs
    if len(arguments) != len(wanted):
        raise InvalidOption(f"the program takes {len(wanted)} arguments, and {len(arguments)} were given.")
    checked = []
    for position, (spec, argument) in enumerate(zip(wanted, arguments, strict=True)):
        if isinstance(argument, np.ndarray):
            values = native_order(argument)
            if values.shape != spec.shape or values.dtype != numpy_dtype(spec.dtype):
                raise _does_not_fit(position, spec, spec_of(values))
            checked.append(values)
        else:
            if argument.spec != spec:
                raise _does_not_fit(position, spec, argument.spec)
            checked.append(argument)
    return checked


def native_order(values: HostArray) -> HostArray:
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def _does_not_fit(position: int, wanted: Spec, given: Spec) -> InvalidOption:
    return InvalidOption(f"argument {position} of the program is {wanted}, and {given} was given.")


def _difference(before: Counters, after: Counters) -> DriverWork:
    """Returns the driver's calls between two readings of its counters."""
    return DriverWork(
        allocations=after.allocations - before.allocations,
        compilations=after.compilations - before.compilations,
        submits=after.submits - before.submits,
        dispatches=after.dispatches - before.dispatches,
    )
