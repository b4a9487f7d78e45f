"""The OpenCL engine: which devices there are, whether they compute, and how to open them.

`OpenCLDriver` is one open device that holds memory and runs kernels: the driver of `anygpu.engines.driver`. Commands
are enqueued in order on one queue; copies beside kernels have queues of their own. `OpenCLEngine` finds and verifies
devices.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyopencl as cl

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.target import Target
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.engines.driver import AssumedPace, Bytes, Clear, Command, Counters, Dispatch, Extent, Move
from anygpu.engines.opencl.builder import Builder, KernelFunction, OpenCLKernel, seconds_of
from anygpu.engines.opencl.device import (
    PLATFORM_NOT_FOUND,
    VARIABLE,
    HostSharing,
    OpenDevice,
    Partition,
    can_be_cut,
    classify,
    cut,
    describe,
    no_device,
    no_platform,
    open_device,
    read_partition,
    too_few_units,
)
from anygpu.engines.opencl.memory import (
    BlockMemory,
    MappedBlockMemory,
    OpenCLBlock,
    SharedBlockMemory,
    StagedBlockMemory,
    Submissions,
)
from anygpu.engines.protocol import Memory, failed, verified
from anygpu.errors import AnyGPUError, DeviceLost, InvalidProgram, TooBig
from anygpu.hardware.device import Device, Unavailable, VerifiedType

# -- one open OpenCL device that holds memory and runs kernels: the driver of `anygpu.engines.driver`


_ZERO = {size: np.zeros(1, f"u{size}") for size in (1, 4)}


class OpenCLObjects(NamedTuple):
    """What a driver has given out and has not got back, for tests of leaks."""

    blocks: int
    nbytes: int
    functions: int


class PreparedDispatch(NamedTuple):
    """A kernel in one piece, with what its function has to be bound to."""

    function: KernelFunction
    #: As `KernelFunction.bound`, and the buffers themselves.
    bound: list[int]
    buffers: list[Any]
    numbers: list[int | None]
    items: tuple[int, ...]
    group: tuple[int, ...]


class OpenCLCommands(NamedTuple):
    """What `OpenCLDriver.submit` makes of commands, and the blocks in all of them."""

    steps: list[PreparedDispatch | Move | Clear]
    blocks: list[OpenCLBlock]
    dispatches: int


class OpenCLDriver:
    """An in-order queue, so that nothing has to be waited for between two submissions."""

    def __init__(self, opened: OpenDevice) -> None:
        """A driver for an open device. Blocks are known weakly: they are let go of when nobody holds them."""
        self._opened = opened
        self._queue = opened.queue
        self._closed = False
        self._counters = Counters()
        self._submissions = Submissions(opened.id)
        self._memory = _memory_of(opened, self._submissions, opened.queue)
        self._builder = Builder(opened.device, opened.context, opened.id, self._counters, options=opened.build_options)
        self._pace = AssumedPace()
        self._timed: list[Any] | None = None
        #: For the threads that upload and that download: each on a queue of its own, where the device needs one.
        self._apart: tuple[BlockMemory, BlockMemory] | None = None
        self._blocks: weakref.WeakSet[OpenCLBlock] = weakref.WeakSet()
        #: Blocks that were released while the device was still using them.
        self._leaving: list[OpenCLBlock] = []

    @property
    def target(self) -> Target:
        return self._opened.target

    @property
    def alignment(self) -> int:
        return self._opened.alignment

    @property
    def counters(self) -> Counters:
        return self._counters

    def reflected(self, source: str, entry: str | None, title: str) -> Reflected:
        return self._builder.reflected(source, entry, title)

    @property
    def views_are_free(self) -> bool:
        """Whether `read_view` shows the device's memory itself."""
        return self._opened.sharing != "staged"

    def allocate(self, nbytes: int) -> OpenCLBlock:
        """A block of whole words, at least one. Raises `TooBig` above the largest block of the device."""
        self._require_open()
        nbytes = max(nbytes + 3 & ~3, 4)
        if nbytes > self._opened.largest_block:
            raise TooBig(self._opened.id, nbytes, self._opened.largest_block)
        self._let_go()
        block = self._memory.allocate(nbytes)
        self._counters.allocations += 1
        self._blocks.add(block)
        return block

    def release(self, block: OpenCLBlock) -> None:
        """A view of the block keeps its memory; so does what the device still has to do with it."""
        if not self._closed and not self._submissions.is_done(block.last_use):
            self._leaving.append(block)

    def write(self, extent: Extent, data: Bytes) -> None:
        """Copy bytes to the device. They may be changed as soon as this returns."""
        self._require_open()
        if len(data) != extent.nbytes:
            raise ValueError(f"{len(data)} bytes do not fill an extent of {extent.nbytes}.")
        if extent.nbytes:
            self._memory.write(extent, data)
            self._counters.bytes_to_device += extent.nbytes

    def read(self, extent: Extent) -> Bytes:
        return self.read_many([extent])[0]

    def read_many(self, extents: Sequence[Extent]) -> list[Bytes]:
        """The bytes of extents, each in an array of its own."""
        targets = [np.empty(extent.nbytes, np.uint8) for extent in extents]
        self.read_into(extents, targets)
        return targets

    def read_into(self, extents: Sequence[Extent], targets: Sequence[Bytes]) -> None:
        """Copy bytes from the device, after waiting for the last commands that use them."""
        self._require_open()
        for extent, target in zip(extents, targets, strict=True):
            if len(target) != extent.nbytes:
                raise ValueError(f"{len(target)} bytes of room do not fit an extent of {extent.nbytes}.")
            if extent.nbytes:
                # What went wrong in a submission is raised here, with its own code.
                self._submissions.wait(extent.block.last_use)
                self._memory.read(extent, target)
                self._counters.bytes_to_host += extent.nbytes

    def read_view(self, extent: Extent, *, owner: object = None) -> Bytes:
        """The bytes in place, where the host sees the device's memory, and otherwise a copy.

        The view is for reading. It holds the block and `owner` for as long as it lives itself: give as `owner` whatever
        returns the block to a pool when it dies. A kernel must not write to the block before that.
        """
        self._require_open()
        if not extent.nbytes:
            return np.empty(0, np.uint8)
        self._submissions.wait(extent.block.last_use)
        view = self._memory.view(extent, owner)
        return self.read(extent) if view is None else view

    def build(self, kernel: Kernel) -> OpenCLKernel:
        self._require_open()
        return self._builder.build(kernel)

    def submit(self, commands: Sequence[Command], *, timed: bool = False) -> None:
        """Enqueue commands in order and start them; `timed` keeps their events for `seconds`.

        Whatever is raised, what was enqueued is waited for before its memory is let go of.
        """
        self._require_open()
        self._let_go()
        number = self._submissions.next
        events: list[Any] = []
        try:
            for command in commands:
                match command:
                    case Dispatch():
                        self._launch(command, number, events)
                    case Move(source=source, target=target):
                        self._move(source, target, number, events)
                    case Clear(extent=extent):
                        self._clear(extent, number, events)
        finally:
            # Also when a command is refused: those before it are on their way, and their memory is in use.
            if events:
                self._submissions.add(events[-1])
                self._queue.flush()
                self._counters.submits += 1
        if timed:
            self._timed = events

    def prepared(self, commands: Sequence[Command]) -> OpenCLCommands | None:
        """Commands ready to be submitted many times.

        `None` where a kernel's grid may still be cut in another way, or has no groups.
        """
        steps: list[PreparedDispatch | Move | Clear] = []
        blocks: dict[OpenCLBlock, None] = {}
        for command in commands:
            extents: tuple[Extent, ...]
            if not isinstance(command, Dispatch):
                steps.append(command)
                extents = (command.source, command.target) if isinstance(command, Move) else (command.extent,)
            else:
                extents = command.extents
                step = self._prepared_dispatch(command)
                if step is None:
                    return None
                steps.append(step)
            blocks.update((extent.block, None) for extent in extents)
        dispatches = sum(isinstance(step, PreparedDispatch) for step in steps)
        return OpenCLCommands(steps, list(blocks), dispatches)

    def _prepared_dispatch(self, launch: Dispatch) -> PreparedDispatch | None:
        """A dispatch with its arguments, or `None` where it is not a single launch."""
        built: OpenCLKernel = launch.built
        kernel, function = built.kernel, built.function
        sizes: tuple[tuple[int, ...], tuple[int, ...]] = (kernel.groups * kernel.group_size,), (kernel.group_size,)
        if kernel.grid is not None and kernel.group is not None:
            sizes = tuple(groups * size for groups, size in zip(kernel.grid, kernel.group, strict=True)), kernel.group
        elif not built.is_settled or len(built.cuts(self._pace)) != 1:
            return None
        if not kernel.groups:
            return None
        parts = [block.part(offset, nbytes) for block, offset, nbytes in launch.extents]
        bound, buffers = [part.number for part in parts], [part.buffer for part in parts]
        return PreparedDispatch(function, bound, buffers, list(launch.numbers), *sizes)

    def submit_prepared(self, prepared: OpenCLCommands) -> None:
        """Enqueue prepared commands; arguments are set only where they differ from the last launch's."""
        self._require_open()
        self._let_go()
        number = self._submissions.next
        queue = self._queue
        events: list[Any] = []
        for block in prepared.blocks:
            block.last_use = number
        try:
            for step in prepared.steps:
                if type(step) is PreparedDispatch:
                    function, bound, buffers, numbers, items, group = step
                    if function.bound != bound or function.numbers != numbers:
                        _bind(function, bound, buffers, numbers)
                    events.append(cl.enqueue_nd_range_kernel(queue, function.kernel, items, group))
                elif isinstance(step, Move):
                    self._move(step.source, step.target, number, events)
                elif isinstance(step, Clear):
                    self._clear(step.extent, number, events)
        finally:
            if events:
                self._submissions.add(events[-1])
                queue.flush()
                self._counters.submits += 1
        self._counters.dispatches += prepared.dispatches

    def device_seconds(self) -> float | None:
        """The sum of what each command took, from its start to its end: idle time between two is the host's doing."""
        if self._timed is None:
            return None
        if self._timed:
            self._timed[-1].wait()
        seconds = [seconds_of(event) for event in self._timed]
        known = [each for each in seconds if each is not None]
        return sum(known) if len(known) == len(seconds) else None

    def synchronize(self) -> None:
        """Wait until all that was submitted is done."""
        self._require_open()
        self._submissions.wait_for_all()
        self._queue.finish()
        self._let_go()

    # Transfers on a second thread

    def until_done(self) -> Callable[[], None]:
        self._require_open()
        return _waiting_for(self._submissions.event_of(self._submissions.next - 1))

    def until_free(self, extent: Extent) -> Callable[[], None] | None:
        """A function that waits until the device has passed the last use of memory, or `None` where it has already.

        Makes the queues for copies beside kernels when it is first called.
        """
        self._require_open()
        if self._apart is None:
            there, back = (
                _memory_of(self._opened, Submissions(self._opened.id), self._opened.another_queue(), beside=True)
                for _ in range(2)
            )
            self._apart = (there, back)
        event = self._submissions.event_of(extent.block.last_use)
        return _waiting_for(event) if event is not None else None

    def write_apart(self, extent: Extent, data: Bytes) -> None:
        """Copy bytes to the device on a queue of their own; returns when they are there."""
        memory, _ = self._transfers()
        memory.write(extent, data)
        memory.finish()
        # What this thread did is done, and the numbers of the other queue's submissions mean nothing here.
        extent.block.last_use = 0

    def read_apart(self, extent: Extent, target: Bytes) -> None:
        _, memory = self._transfers()
        memory.read(extent, target)

    def _transfers(self) -> tuple[BlockMemory, BlockMemory]:
        """The memories with queues of their own, there and back. Raises `DeviceLost` after closing."""
        if self._apart is None:
            raise DeviceLost("the OpenCL device", detail="it was closed")
        return self._apart

    def live(self) -> OpenCLObjects:
        """The objects that are held at this moment."""
        blocks = list(self._blocks)
        functions = 0 if self._closed else len(self._builder)
        return OpenCLObjects(len(blocks), sum(block.nbytes for block in blocks), functions)

    def close(self) -> None:
        """Wait for the device and let go of everything. Blocks and views that others hold stay valid memory."""
        if self._closed:
            return
        self._closed = True
        try:
            self._queue.finish()
        finally:
            self._submissions.forget()
            self._leaving.clear()
            self._timed = self._apart = None
            del self._memory, self._builder, self._queue, self._opened

    def _launch(self, launch: Dispatch, number: int, events: list[Any]) -> None:
        """Enqueue a kernel, in several launches where one would take too long for other users of the device.

        Raises `InvalidProgram` for another number of buffers or numbers than the kernel takes.
        """
        built: OpenCLKernel = launch.built
        kernel = built.kernel
        function = built.function
        if len(launch.extents) != len(function.bound) or len(launch.numbers) != len(function.numbers):
            raise InvalidProgram(
                f"kernel {kernel.name} takes {len(function.bound)} buffers and {len(function.numbers)} numbers; it was "
                f"given {len(launch.extents)} and {len(launch.numbers)}."
            )
        compiled = function.kernel
        parts = []
        for block, offset, nbytes in launch.extents:
            parts.append(block.part(offset, nbytes))
            block.last_use = number
        _bind(function, [part.number for part in parts], [part.buffer for part in parts], launch.numbers)
        if kernel.grid is not None and kernel.group is not None:
            if kernel.groups:
                sizes = tuple(groups * size for groups, size in zip(kernel.grid, kernel.group, strict=True))
                events.append(cl.enqueue_nd_range_kernel(self._queue, compiled, sizes, kernel.group))
                self._counters.dispatches += 1
            return
        size = kernel.group_size
        cuts = built.cuts(self._pace)
        for part_of_grid in cuts:
            if len(cuts) > 1:
                where = kernel.numbers.index("first_group")
                _set_number(function, where, launch.numbers[where] + part_of_grid.first_group)
            event = cl.enqueue_nd_range_kernel(self._queue, compiled, (part_of_grid.groups * size,), (size,))
            events.append(event)
            built.ran(event, part_of_grid.groups)
        self._counters.dispatches += len(cuts)

    def _move(self, source: Extent, target: Extent, number: int, events: list[Any]) -> None:
        """Enqueue a copy between two blocks."""
        if not source.nbytes:
            return
        event = cl.enqueue_copy(
            self._queue,
            target.block.buffer,
            source.block.buffer,
            byte_count=source.nbytes,
            src_offset=source.offset,
            dst_offset=target.offset,
        )
        source.block.last_use = target.block.last_use = number
        events.append(event)

    def _clear(self, extent: Extent, number: int, events: list[Any]) -> None:
        """Enqueue zeros for a part of a block."""
        if not extent.nbytes:
            return
        pattern = _ZERO[1 if (extent.offset | extent.nbytes) % 4 else 4]
        event = cl.enqueue_fill_buffer(self._queue, extent.block.buffer, pattern, extent.offset, extent.nbytes)
        extent.block.last_use = number
        events.append(event)

    def _let_go(self) -> None:
        """Drop what was released while it was in use, and is not any more."""
        done = self._submissions.look()
        if self._leaving:
            self._leaving = [block for block in self._leaving if block.last_use > done]

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceLost("the OpenCL device", detail="it was closed")


def _bind(function: KernelFunction, bound: list[int], buffers: list[Any], numbers: Sequence[int | None]) -> None:
    """Give the function its arguments: only those that are others than the last time."""
    for index, part in enumerate(bound):
        if function.bound[index] != part:
            function.bound[index] = 0
            function.kernel.set_arg(function.buffer_places[index], buffers[index])
            function.bound[index] = part
    for index, value in enumerate(numbers):
        if value is not None and function.numbers[index] != value:
            _set_number(function, index, value)


def _set_number(function: Any, index: int, value: int) -> None:
    """Set one number of a function's arguments. If that fails, the argument counts as unknown."""
    function.numbers[index] = None
    # Not `set_arg`: it tries one type after the other, which costs 12 µs against 0.1.
    place, nbytes = function.number_places[index]
    function.kernel._set_arg_buf(place, value.to_bytes(nbytes, "little"))
    function.numbers[index] = value


def _waiting_for(event: Any | None) -> Callable[[], None]:
    """A function that waits for an event; errors of the commands are reported elsewhere."""

    def wait() -> None:
        # What went wrong is raised by `Submissions.wait`, which knows its code.
        if event is not None:
            with contextlib.suppress(cl.Error):
                event.wait()

    return wait


def _memory_of(opened: OpenDevice, submissions: Submissions, queue: Any, *, beside: bool = False) -> BlockMemory:
    """How memory reaches the host: the same memory, mapped, or copied through page-locked pieces."""
    match opened.sharing:
        case "shared":
            return SharedBlockMemory(opened.context, opened.alignment, submissions, beside=beside)
        case "mapped":
            return MappedBlockMemory(opened.context, queue, submissions)
        case "staged":
            return StagedBlockMemory(opened.context, queue, submissions)


_C_TYPES = {"float32": "float", "int32": "int", "float16": "half", "float64": "double", "int64": "long"}
_ENABLE = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64"}

_KERNEL = """\
{enable}
__kernel void verify(__global const {type} *x, __global {type} *y) {{
    const size_t i = get_global_id(0);
    y[i] = x[i] * x[i] + ({type})3 * x[i];
}}
"""


class OpenCLEngine(CompilingEngine):
    """The engine of OpenCL: every device of every platform, whole or in parts."""

    name: ClassVar[str] = "opencl"
    libraries: ClassVar[tuple[str, ...]] = ("pyopencl", "pocl-binary-distribution")

    def __init__(self, subdevices: str | None = None) -> None:
        """`subdevices` is what the variable ANYGPU_OPENCL_SUBDEVICES says, unless it is given."""
        super().__init__()
        self._partition = read_partition(os.environ.get(VARIABLE, "") if subdevices is None else subdevices)
        self._found: dict[str, Any] = {}

    def discover(self) -> list[Device | Unavailable]:
        """The devices of all platforms, or why there are none."""
        try:
            platforms = cl.get_platforms()
        except cl.Error as error:
            if error.code == PLATFORM_NOT_FOUND:
                return [no_platform(str(error))]
            raise
        devices = [device for platform in platforms for device in _devices_of(platform)]
        if not devices:
            return [no_device([platform.name.strip() for platform in platforms])]
        described: list[Device | Unavailable] = []
        for index, device in enumerate(devices):
            device_id = f"{self.name}:{index}"
            parts = dict(_parts_of(device_id, device, self._partition))
            self._found |= parts
            described += [describe(each_id, each) for each_id, each in parts.items()]
            if not parts:
                described.append(too_few_units(device_id, device))
        return described

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        """The device after a computation in each type, or how it failed."""
        try:
            context = cl.Context([self._found[device.id]])
            queue = cl.CommandQueue(context)

            def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
                return _compute(context, queue, dtype, values)

            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
            return failed(device, error)

    def open(self, device: Device, *, sharing: HostSharing | None = None) -> OpenCLDriver:
        """The device ready for kernels. How the host gets at its memory is found out, unless it is given."""
        return OpenCLDriver(open_device(self._found[device.id], device, sharing))

    def reflected(self, source: str, entry: str | None, title: str, device: Device) -> Reflected:
        driver: Any = self.session(device).driver
        with self.session(device).lock:
            return driver.reflected(source, entry, title)  # type: ignore[no-any-return]

    def memory(self, device: Device) -> Memory:
        """Total memory and what we use; OpenCL does not tell what is free."""
        total = int(self._found[device.id].global_mem_size)
        return Memory(
            total=total,
            in_use=self.bytes_in_use(device),
            by_owner=self.bytes_by_owner(device),
            unknown={"free": "OpenCL does not tell how much memory is free"},
        )

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        return classify(error, device.id, device.limits.get("max-buffer-size"))

    def close(self) -> None:
        self.close_sessions()
        self._found.clear()


def _devices_of(platform: Any) -> list[Any]:
    """The devices of a platform; none is not an error here."""
    try:
        return list(platform.get_devices())
    except cl.Error as error:
        if error.code == cl.status_code.DEVICE_NOT_FOUND:
            return []
        raise


def _parts_of(device_id: str, device: Any, partition: Partition | None) -> Iterator[tuple[str, Any]]:
    """The device itself, or its parts; nothing when it is too small for them."""
    if partition is None or not can_be_cut(device):
        yield device_id, device
    elif units := partition.units_of(int(device.max_compute_units)):
        for number, part in enumerate(cut(device, units)):
            yield f"{device_id}.{number}", part


def _compute(context: Any, queue: Any, dtype: VerifiedType, values: HostArray) -> HostArray:
    """The verification's computation by a kernel of its own, which needs nothing else of anygpu."""
    enable = f"#pragma OPENCL EXTENSION {_ENABLE[dtype]} : enable" if dtype in _ENABLE else ""
    program = cl.Program(context, _KERNEL.format(enable=enable, type=_C_TYPES[dtype])).build()
    flags = cl.mem_flags
    source = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=values)
    target = cl.Buffer(context, flags.WRITE_ONLY, values.nbytes)
    cl.Kernel(program, "verify")(queue, values.shape, None, source, target)
    result = np.empty_like(values)
    cl.enqueue_copy(queue, result, target, is_blocking=True)
    return result
