"""An open device of an engine that compiles: programs become schedules, and schedules run through its driver.

An array on such a device is a `DeviceArray`: a part of a block of memory, its shape and type, and the rules that the
kernels before it may have found broken. Nothing waits for the device until values are downloaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anygpu.base.cache_folder import cache_folder
from anygpu.base.disturbance import Reading, conditions, read_processors
from anygpu.base.lazy import cached_property
from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.functions import library
from anygpu.engines.codegen.kernel import Check, Kernel, Schedule, Start, shared_temporaries
from anygpu.engines.codegen.lower import buffer_names
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target, part_of
from anygpu.engines.codegen.value_analysis import IndexFacts
from anygpu.engines.disk_cache import DiskCache, stamp_of
from anygpu.engines.driver import (
    ARRAYS,
    CONSTANTS,
    TEMPORARIES,
    BlockRef,
    Built,
    Bytes,
    Clear,
    Command,
    Counters,
    Dispatch,
    Driver,
    Extent,
    Move,
    TransfersApart,
    difference,
    why_not,
    window_of,
)
from anygpu.engines.host_arrays import ProgramCache, numpy_dtype, raise_broken, refused
from anygpu.engines.launches import KernelTimer, LaunchKey, PreparedLaunches, ProgramLaunches
from anygpu.engines.memory.adaptors import pooled
from anygpu.engines.memory.resource import DeviceMemory, reclaim
from anygpu.engines.numpy.lowering import evaluate_constant
from anygpu.engines.protocol import Lack
from anygpu.engines.tuner import Tuner, budget
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    CannotCompile,
    InvalidOption,
    InvalidProgram,
    TooBig,
)
from anygpu.hardware.device import Device
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.graph import Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.primitives import Gather, Primitive, Scatter, Spec
from anygpu.program.transforms import simplified

_STORED = ("temporary", "output")

#: Operations of a program that is not run to see what it stores: clearing costs it less than that would.
_MUCH_WORK, _MUCH_WORK_A_BYTE = 4e9, 200


class Pending(NamedTuple):
    """Rules of a run that has not been looked at yet, and where it writes what went wrong.

    Every array that depends on the run has it, through any number of later runs. A broken rule is raised whenever a
    value of such an array is wanted, each time; rules that were found kept are not looked at again for that array.
    """

    held: BlockRef
    checks: tuple[Check, ...]


class DeviceArray:
    """An array on a device that compiles."""

    __slots__ = ("held", "offset", "pending", "session", "spec")

    def __init__(
        self, session: Session, held: BlockRef, spec: Spec, offset: int = 0, pending: tuple[Pending, ...] = ()
    ) -> None:
        """An array in a block of device memory, from `offset` bytes on.

        `held` keeps the block alive. `pending` are checks of the program that made it, which are read with its values.
        """
        self.session = session
        self.held = held
        self.spec = spec
        #: In bytes.
        self.offset = offset
        self.pending = pending

    def __repr__(self) -> str:
        return f"<{self.spec} on {self.session.device.id}>"


class _Step(NamedTuple):
    """A kernel with the slots that it takes."""

    built: Built
    #: Slot, first byte and number of bytes; `None` for all that there is.
    slots: tuple[tuple[int, tuple[int, int] | None], ...]
    #: For each number the input whose offset it is; -1 for the first group, which the driver knows.
    numbers: tuple[int, ...]
    #: The numbers themselves, where they are known beforehand.
    values: tuple[int, ...]
    starts: tuple[Start, ...]


class CompiledProgram:
    """A schedule whose kernels are built, and whose constants are on the device."""

    def __init__(
        self, session: Session, program: Program, plan: Schedule, offsets: tuple[bool, ...], *, overwrites: bool
    ) -> None:
        """A schedule ready to run: constants are uploaded, kernels built, and temporaries placed.

        `offsets` says which inputs may begin inside of their blocks. With `overwrites` kernels write every byte of
        their results, so memory need not be cleared first.
        """
        self.session = session
        #: Whether results surely show nothing of what was in their memory before; else the memory is cleared.
        self.overwrites = overwrites
        self.program = program
        self.schedule = plan
        self.offsets = offsets
        self.constants: dict[int, BlockRef] = {}
        for number, slot in enumerate(plan.slots):
            if slot.role == "constant" and slot.data:
                self.constants[number] = session.uploaded(np.frombuffer(slot.data, np.uint8), CONSTANTS)
        inputs = buffer_names(program)[: program.input_count]
        names = {f"offset_{name}": position for position, name in enumerate(inputs)}
        self.steps = [_step(session, step, names) for step in plan.steps]
        self.places, self.sizes = shared_temporaries(plan)
        #: Slots that every run has new memory for, and its bytes.
        self.made = tuple(
            (number, slot.nbytes) for number, slot in enumerate(plan.slots) if slot.role in ("output", "status")
        )
        #: Whether a run has nothing to submit: its results are its arguments, or constants.
        self.idle = not self.steps and plan.status is None and not (self.made and not overwrites)
        self.launches = ProgramLaunches()


class Session:
    """One open device: its driver, its memory, and what was compiled for it.

    The lock is held around every use of the driver. Memory is asked for outside of it, because its own release may
    come from the garbage collector at any moment (see `anygpu.engines.memory.resource`).
    """

    def __init__(
        self,
        driver: Driver,
        device: Device,
        *,
        classify: Callable[[BaseException, Device], AnyGPUError | None],
        libraries: tuple[str, ...],
        budget: int | None,
    ) -> None:
        """`classify` translates the driver's errors; versions of `libraries` change what kernels become."""
        self.driver = driver
        self._alignment = driver.alignment
        self.device = device
        self.lock = threading.Lock()
        self._classify = classify
        self._executables: ProgramCache[CompiledProgram] = ProgramCache()
        self._lacks: LRUCache[list[Lack]] = LRUCache()
        self._prepared = PreparedLaunches()
        self.kept = DiskCache(cache_folder() / "kernels", stamp_of(device, libraries))
        self._root = DeviceMemory(driver.allocate, self._release, classify=self._translated, guard=self.lock)
        # What is idle may be a quarter of the memory there is: enough for any program that fits.
        keep = (device.memory_total or 1 << 30) // 4
        self.memory = pooled(self._root, device=device.id, keep_bytes=keep, budget=budget)
        self._trials = KernelTimer(driver, self.lock, self.memory)
        #: Says how busy the machine is while kernels are measured.
        self.read_processors: Callable[[], Reading] = read_processors
        # Kernels are timed by the device's own clock: how busy the processors are matters where they are the device.
        read = (lambda: self.read_processors()) if device.computes_on_processor else None
        self._tuner = Tuner(self.kept, self._measured, read=read)

    @cached_property
    def target(self) -> Target:
        """The device as kernels see it, with the built-in functions that proved good there."""
        return msgspec.structs.replace(self.driver.target, trusted=self._trusted())

    def _trusted(self) -> tuple[str, ...]:
        """Measured once for a device and its driver; after that it is on disk."""
        target = self.driver.target
        plan = library.measurement(target) if target.dialect == "wgsl" else library.race()
        key = "\n".join([library.JUDGED_BY, *(kernel.source for kernel in plan.kernels)])
        known = self.kept.record("functions", key, tuple[str, ...])
        if known is None:
            before = self.read_processors()
            known = self._trials.trusted_functions(plan)
            # In OpenCL C it is the faster ones, which a busy machine cannot tell: the next process tries again.
            if target.dialect == "wgsl" or not conditions(before, self.read_processors()).disturbed:
                self.kept.put_record("functions", key, known)
        return known

    @property
    def counters(self) -> Counters:
        return self.driver.counters

    def work(self) -> Counters:
        """The counters without trials. A kernel that a trial compiled counts once a program uses it."""
        return difference(self.driver.counters, self._trials.work)

    def _translated(self, error: Exception) -> AnyGPUError | None:
        return self._classify(error, self.device)

    # -- arrays

    def uploaded(self, data: Bytes, owner: str = ARRAYS) -> BlockRef:
        """A new block with these bytes."""
        held = BlockRef(self.memory, data.nbytes, owner)
        if data.nbytes:
            with self.lock:
                self.driver.write(held.extent(data.nbytes), data)
        return held

    def downloaded_into(self, array: DeviceArray, target: Bytes) -> None:
        """Like `downloaded`, into memory of the caller, in one wait with the rules."""
        pending = array.pending
        extents = [held.extent(4 * len(checks)) for held, checks in pending]
        targets = [np.empty(extent.nbytes, np.uint8) for extent in extents]
        if target.nbytes:
            extents.append(Extent(array.held.block.handle, array.offset, target.nbytes))
            targets.append(target)
        with self.lock:
            self.driver.read_into(extents, targets)
        if pending:
            _raise_broken(pending, targets[: len(pending)])
            array.pending = ()

    def downloaded(self, array: DeviceArray) -> HostArray:
        """On the host, after every rule on the way to it has been looked at."""
        spec = array.spec
        dtype = numpy_dtype(spec.dtype)
        # Bytes are read in whole words; an array that begins inside of one is cut out on the host.
        first = array.offset // 4 * 4
        inside = array.offset - first
        extent = Extent(array.held.block.handle, first, inside + spec.nbytes)
        if array.pending:
            status = [held.extent(4 * len(checks)) for held, checks in array.pending]
            with self.lock:
                read = self.driver.read_many([*status, extent] if spec.size else status)
            _raise_broken(array.pending, read[: len(status)])
            array.pending = ()
            data = read[-1] if spec.size else np.empty(0, np.uint8)
        elif spec.size:
            with self.lock:
                data = self.driver.read_view(extent, owner=array.held)
        else:
            data = np.empty(0, np.uint8)
        return np.asarray(data[inside : inside + spec.nbytes].view(dtype).reshape(spec.shape))

    # -- programs

    def lacks(self, program: Program) -> list[Lack]:
        return self._lacks.get(program.key, lambda: why_not(program, self.target, self.device.id))

    def compiled(self, program: Program, offsets: tuple[bool, ...] = ()) -> CompiledProgram:
        return self._executables.get((program.key, offsets), lambda: self._compiled(program, offsets))

    def _compiled(self, program: Program, offsets: tuple[bool, ...]) -> CompiledProgram | CannotCompile:
        """What a device's compiler refuses, and what code generation trips over, another device may do."""
        try:
            return self._compile(program, offsets)
        except InvalidProgram as error:
            return CannotCompile(self.device.id, str(error))
        except AnyGPUError:
            # Memory, the device itself, or a kernel that a user wrote.
            raise
        except Exception as error:
            if self._translated(error) is not None:
                raise
            return refused(self.device, error)

    def _compile(self, program: Program, offsets: tuple[bool, ...]) -> CompiledProgram:
        """Schedule a program, tune what is worth it within the budget, and build its kernels.

        Raises `AllocationError` where the program can never fit on the device.
        """
        # What is constant is computed here: compilers take liberties with constants that NumPy does not.
        simple = simplified(with_references(program, self.target.dialect), _evaluated)
        facts = IndexFacts(simple)

        def in_range(node: int) -> bool:
            op, inputs = simple.nodes[node]
            if not isinstance(op, Gather | Scatter):
                return True
            return facts.surely_in_range(inputs[1], simple.specs[inputs[0]].shape[op.axis])

        def again(chosen: Mapping[str, msgspec.Struct]) -> Schedule:
            return schedule(
                simple,
                self.target,
                in_range=in_range,
                distinct=facts.surely_distinct,
                offsets=offsets,
                chosen=chosen,
            )

        plan = again({})
        self._refuse_what_never_fits(plan)
        chosen = self._tuner.choose(plan, again, budget())
        plan = again(chosen) if chosen else plan
        return CompiledProgram(self, program, plan, offsets, overwrites=self._overwrites(plan))

    def _overwrites(self, plan: Schedule) -> bool:
        """Whether results show nothing of what was in memory before: found out once for a device and its driver.

        A user's kernel may store what it likes: its results are cleared before it runs in any case.
        """
        stored = sum(slot.nbytes for slot in plan.slots if slot.role in ("temporary", "output"))
        if not stored or all(kernel.own is not None for kernel in plan.steps):
            return True
        if sum(kernel.flops for kernel in plan.steps) > max(_MUCH_WORK, _MUCH_WORK_A_BYTE * stored):
            return False
        sizes = [slot.nbytes for slot in plan.slots]
        key = "\n".join([*(kernel.source for kernel in plan.steps), repr(sizes)])
        if self.kept.record("overwriting", key, bool):
            return True
        free = self.device.memory_free
        try:
            if not self._trials.overwrites(plan, free // 4 if free is not None else None):
                return False
        except (MemoryError, AllocationError):
            return False  # there is no room to find out, and clearing needs none
        self.kept.put_record("overwriting", key, True)
        return True

    def _refuse_what_never_fits(self, plan: Schedule) -> None:
        """Raise before anything is compiled: the compiler's own refusal of such a kernel would not say why."""
        limit = self.device.limits.get("max-buffer-size")
        largest = max((slot.nbytes for slot in plan.slots), default=0)
        if limit is not None and largest > limit:
            raise TooBig(self.device.id, largest, limit)

    def _measured(self, plan: Schedule, steps: tuple[int, ...]) -> float | None:
        free = self.device.memory_free
        return self._trials.seconds(plan, steps, free // 4 if free is not None else None)

    def built(self, kernel: Kernel) -> Built:
        """The kernel ready to be dispatched."""
        # Binaries are not kept: drivers keep what they compile themselves, and asking PoCL for one has made it abort.
        with self.lock:
            built = self.driver.build(kernel)
        self._trials.used(kernel)
        return built

    def run(
        self,
        executable: CompiledProgram,
        arrays: Sequence[DeviceArray],
        *,
        timed: bool = False,
        hold: list[BlockRef] | None = None,
    ) -> list[DeviceArray]:
        """Submit it. `hold` gets the memory of temporary values, which otherwise is anybody's at once."""
        alignment = self._alignment
        numbers: list[int] = []
        pending: tuple[Pending, ...] = ()
        for array in arrays:
            if array.offset % alignment:
                executable = self._for_offsets(executable, arrays)
            numbers.append(array.held.block.number)
            numbers.append(array.offset)
            if array.pending:
                pending = tuple(dict.fromkeys((*pending, *array.pending)))
        temporaries = [BlockRef(self.memory, size, TEMPORARIES) for size in executable.sizes]
        if hold is not None:
            hold += temporaries
        made = {number: BlockRef(self.memory, nbytes, ARRAYS) for number, nbytes in executable.made}
        if not executable.idle:
            numbers += [held.block.number for held in temporaries]
            numbers += [held.block.number for held in made.values()]
            with self.lock:
                self._launch(executable, tuple(numbers), arrays, temporaries, made, timed=timed)
        plan = executable.schedule
        if plan.status is not None:
            pending = (*pending, Pending(made[plan.status], plan.checks))
        results = []
        for output in plan.outputs:
            held = made.get(output.slot)
            if held is not None:
                results.append(DeviceArray(self, held, output.spec, output.offset, pending))
            elif plan.slots[output.slot].role == "input":
                source = arrays[output.slot]
                results.append(DeviceArray(self, source.held, output.spec, source.offset + output.offset, pending))
            else:
                held = executable.constants[output.slot]
                results.append(DeviceArray(self, held, output.spec, output.offset, pending))
        return results

    def _for_offsets(self, executable: CompiledProgram, arrays: Sequence[DeviceArray]) -> CompiledProgram:
        offsets = tuple(array.offset % self._alignment != 0 for array in arrays)
        return executable if executable.offsets == offsets else self.compiled(executable.program, offsets)

    def _launch(
        self,
        executable: CompiledProgram,
        key: LaunchKey,
        arrays: Sequence[DeviceArray],
        temporaries: Sequence[BlockRef],
        made: Mapping[int, BlockRef],
        *,
        timed: bool,
    ) -> None:
        """Submit what was prepared for these blocks, or work it out. The caller holds the lock."""
        launches = executable.launches
        if not timed:
            prepared = launches.get(key)
            if prepared is not None:
                self.driver.submit_prepared(prepared)
                return
        commands = self._commands(executable, arrays, temporaries, made)
        if commands:
            self.driver.submit(commands, timed=timed)
        if timed:
            return
        if key not in launches:
            self._prepared.note(launches, key)
        elif (prepared := self.driver.prepared(commands)) is not None:
            self._prepared.keep(launches, key, prepared, commands)

    def _commands(
        self,
        executable: CompiledProgram,
        arrays: Sequence[DeviceArray],
        temporaries: Sequence[BlockRef],
        made: Mapping[int, BlockRef],
    ) -> list[Command]:
        """The commands of one run: clearing what must be cleared, moves, and a dispatch for each kernel.

        Inputs are bound from the last multiple of the alignment before their first byte; the rest is passed as a
        number.
        """
        plan, alignment = executable.schedule, self._alignment
        whole: list[tuple[BlockRef | None, int]] = []
        for number, slot in enumerate(plan.slots):
            match slot.role:
                case "input":
                    array = arrays[number]
                    whole.append((array.held, array.offset // alignment * alignment))
                case "constant":
                    whole.append((executable.constants[number], 0))
                case "temporary":
                    # A value that stays inside of its kernel has a slot, but no memory.
                    piece = executable.places.get(number)
                    whole.append((temporaries[piece] if piece is not None else None, 0))
                case _:
                    whole.append((made[number], 0))
        commands: list[Command] = []
        if plan.status is not None:
            commands.append(Clear(made[plan.status].extent(4 * len(plan.checks))))
        if not executable.overwrites:
            stored = [held for (held, _), slot in zip(whole, plan.slots, strict=True) if slot.role in _STORED]
            commands += [Clear(held.extent(held.block.nbytes)) for held in dict.fromkeys(stored) if held is not None]
        everything: list[Extent] = []
        for number, (held, first) in enumerate(whole):
            rest = arrays[number].offset - first if number < len(arrays) else 0
            handle = held.block.handle if held is not None else None
            everything.append(Extent(handle, first, rest + plan.slots[number].nbytes))
        for step in executable.steps:
            for start in step.starts:
                target = everything[start.slot]
                commands.append(Clear(target) if start.source is None else Move(everything[start.source], target))
            extents = tuple(window_of(everything[slot], window) for slot, window in step.slots)
            numbers = step.values or tuple(
                0
                if position < 0
                else arrays[position].offset % alignment // ITEMSIZE[part_of(arrays[position].spec.dtype)]
                for position in step.numbers
            )
            commands.append(Dispatch(step.built, extents, numbers))
        return commands

    def _release(self, block: Any) -> None:
        """To the library. Called with the lock held."""
        self._prepared.forget(block)
        self.driver.release(block)

    def synchronize(self) -> None:
        with self.lock:
            self.driver.synchronize()

    # -- transfers on a second thread. The lock is not held while bytes move, nor while a program is waited for

    @property
    def apart(self) -> TransfersApart | None:
        return self.driver if isinstance(self.driver, TransfersApart) else None

    def run_apart(self, executable: CompiledProgram, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Run and wait. Nothing that the program uses becomes the memory of an upload before it is done."""
        temporaries: list[BlockRef] = []
        results = self.run(executable, arrays, hold=temporaries)
        if self.apart is not None:
            with self.lock:
                wait = self.apart.until_done()
            wait()
        self.synchronize()
        return results

    def uploaded_apart(self, data: Bytes) -> BlockRef:
        """A new block with these bytes, written beside running kernels where the driver can do that.

        Waits, without the lock, for commands that still use the memory.
        """
        apart = self._require_apart()
        held = BlockRef(self.memory, data.nbytes, ARRAYS)
        if data.nbytes:
            extent = held.extent(data.nbytes)
            with self.lock:
                wait = apart.until_free(extent)
            if wait is not None:
                wait()
            apart.write_apart(extent, data)
            with self.lock:
                self.driver.counters.bytes_to_device += data.nbytes
        return held

    def downloaded_apart(self, array: DeviceArray, target: Bytes) -> None:
        """Copy an array into host memory beside running kernels.

        Checks of the program that made it are read first, and what is broken is raised.
        """
        apart, pending = self._require_apart(), array.pending
        status = [held.extent(4 * len(checks)) for held, checks in pending]
        words = [np.empty(extent.nbytes, np.uint8) for extent in status]
        whole = [Extent(array.held.block.handle, array.offset, target.nbytes)] if target.nbytes else []
        for extent, room in zip([*status, *whole], [*words, target], strict=False):
            with self.lock:
                wait = apart.until_free(extent)
            if wait is not None:
                wait()
            apart.read_apart(extent, room)
        _raise_broken(pending, words)
        array.pending = ()
        with self.lock:
            self.driver.counters.bytes_to_host += target.nbytes

    def _require_apart(self) -> TransfersApart:
        """The transfers beside kernels. Raises `InvalidOption` where the driver has none."""
        if self.apart is None:
            raise InvalidOption(f"{self.device.id} cannot transfer while it computes.")
        return self.apart

    def reclaim(self) -> int:
        """Give cached memory back to the device; returns the bytes."""
        before = self._root.live_bytes
        reclaim(self.memory)
        return max(0, before - self._root.live_bytes)

    def close(self) -> None:
        """Let go of executables and memory, and close the driver. Arrays that are still held are lost."""
        with self.lock:
            self._prepared.clear()
        self._executables.clear()
        self._lacks.clear()
        reclaim(self.memory)
        # Arrays that outlive the session must not give their memory to a driver that is gone.
        self._root.close()
        with self.lock:
            self.driver.close()


def _evaluated(op: Primitive, constants: Sequence[tuple[Spec, bytes]]) -> bytes | None:
    """A user's kernel runs where it was asked for, whatever it is given."""
    return None if isinstance(op, Custom) else evaluate_constant(op, constants)


def _step(session: Session, kernel: Kernel, names: dict[str, int]) -> _Step:
    """A kernel as it is dispatched: its slots, and for each number the input whose offset it is."""
    numbers = tuple(names.get(name, -1) for name in kernel.numbers)
    slots = tuple((binding.slot, binding.window) for binding in kernel.bindings)
    return _Step(session.built(kernel), slots, numbers, kernel.values, kernel.starts)


def _raise_broken(pending: Sequence[Pending], words: Sequence[Bytes]) -> None:
    for (_, checks), status in zip(pending, words, strict=True):
        raise_broken(checks, status)
