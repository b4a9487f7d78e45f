"""The WebGPU engine: the adapters of this machine, whether they compute, and how they are opened."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import wgpu

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.target import Target
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.engines.driver import Bytes, Command, Counters, Dispatch, Extent
from anygpu.engines.protocol import Memory, failed, verified
from anygpu.engines.webgpu.device import (
    VulkanFacts,
    alignment_of,
    classify,
    describe,
    destroy,
    find_types_fast,
    one_per_card,
    open_device,
    round_down,
    seen_through,
    target_of,
    why_nothing,
)
from anygpu.engines.webgpu.encoder import BLOCK_USAGE, CommandStep, Downloads, Encoder, Uploads
from anygpu.engines.webgpu.pipelines import (
    GRANULE,
    BindGroups,
    BuiltKernel,
    Numbers,
    Pipelines,
    WebGPUBlock,
    buffer_of,
    round_up,
)
from anygpu.engines.webgpu.submission import (
    DISPATCH_SECONDS,
    TICKS_BYTES,
    Gate,
    KernelPace,
    Replay,
    Stopwatch,
    SubmittedWork,
    native_calls,
    plan,
    stopwatch_of,
)
from anygpu.errors import AnyGPUError, DeviceLost, DeviceUnavailable, TooBig
from anygpu.hardware.device import Device, Unavailable, VerifiedType, unknown_facts

# -- one open WebGPU device: memory, kernels and submissions


#: Work that is guessed to take less teaches nothing about the device's pace.
_WORTH_MEASURING = 0.02


class LiveObjects(NamedTuple):
    """Counts of the objects that a driver holds, for leak checks."""

    blocks: int = 0
    block_bytes: int = 0
    pipelines: int = 0
    bind_groups: int = 0
    staging_bytes: int = 0


class PreparedCommands(NamedTuple):
    """A submission that repeats."""

    commands: tuple[Command, ...]
    replay: Replay
    #: The generation of the table that its numbers are in.
    generation: int
    #: The carefully guessed seconds; 0 if they are known, and short enough.
    careful: float


class _Measurement(NamedTuple):
    """Work that is being timed."""

    kernels: tuple[str, ...]
    careful: float
    #: By the caller, and not only to learn from it.
    asked: bool
    began: float


class _Open:
    """Everything that holds on to the library's objects; gone as a whole when the device is."""

    def __init__(self, device: Any, device_id: str, target: Target, counters: Counters) -> None:
        """All objects of an open device that commands need."""
        alignment = alignment_of(device)
        gate = Gate(device, counters)
        self.device = device
        self.gate = gate
        self.native = native_calls(device)
        self.numbers = Numbers(device)
        self.programs = Pipelines(device, device_id, target)
        self.groups = BindGroups(device, device_id, target, alignment, self.numbers.buffer)
        self.stopwatch: Stopwatch | None = stopwatch_of(device)
        self.encoder = Encoder(device, self.groups, self.numbers, self.stopwatch, self.programs.fold, gate)
        self.uploads = Uploads(device, gate)
        self.downloads = Downloads(device, gate)
        #: Kept, so that `ask` makes nothing: the library has equal layouts once.
        self._nothing = device.create_bind_group_layout(entries=[])

    def ask(self) -> None:
        """Raises the library's error if the device is lost.

        An encoder would say so too. But one that is finished and never submitted makes the next one cost the driver
        ten times as much, 200 µs on lavapipe.
        """
        if self.native is not None:
            self.native.ask()
        else:
            self.device.create_bind_group_layout(entries=[])


class WebGPUDriver:
    """`anygpu.engines.driver.Driver` on wgpu.

    The bytes from the end of an extent to the next multiple of four belong to it: writes and copies may change them.
    """

    def __init__(self, opened: Any, *, device_id: str, software: bool) -> None:
        """A driver for an open device. Kernels of unknown speed are launched with care, until their pace is known."""
        self._id = device_id
        self._target = target_of(opened, software=software)
        self._alignment = alignment_of(opened)
        self._largest = round_down(opened.limits["max-buffer-size"], GRANULE)
        self._counters = Counters()
        self._blocks: set[WebGPUBlock] = set()
        self._open: _Open | None = _Open(opened, device_id, self._target, self._counters)
        #: Why it is not open any more.
        self._end = ""
        self._pace = KernelPace()
        self._measurement: _Measurement | None = None
        self._device_seconds: float | None = None

    @property
    def target(self) -> Target:
        return self._target

    @property
    def alignment(self) -> int:
        return self._alignment

    @property
    def counters(self) -> Counters:
        return self._counters

    def live(self) -> LiveObjects:
        """The objects that are held at this moment; none after closing."""
        if self._open is None:
            return LiveObjects()
        return LiveObjects(
            blocks=len(self._blocks),
            block_bytes=sum(block.nbytes for block in self._blocks),
            pipelines=self._open.programs.pipelines,
            bind_groups=len(self._open.groups),
            staging_bytes=self._open.downloads.kept_bytes,
        )

    # Memory

    def allocate(self, nbytes: int) -> WebGPUBlock:
        """A block of whole granules. Raises `TooBig` above the largest buffer, and `OutOfMemory`."""
        size = round_up(max(nbytes, 1), GRANULE)
        if size > self._largest:
            raise TooBig(self._id, nbytes, self._largest)
        with self._calling(requested=size) as library:
            buffer = library.device.create_buffer(size=size, usage=BLOCK_USAGE)
        block = WebGPUBlock(buffer, size)
        self._blocks.add(block)
        self._counters.allocations += 1
        return block

    def release(self, block: WebGPUBlock) -> None:
        """Let go of a block and of the bind groups that use it."""
        if self._open is not None:
            self._open.groups.forget(block)
        self._blocks.discard(block)
        block.buffer = None

    def write(self, extent: Extent, data: Bytes) -> None:
        """Copy bytes to the device. They may be changed as soon as this returns.

        Bytes before a position inside of a word are read first, because only whole words can be written.
        """
        with self._calling() as library:
            if data.nbytes != extent.nbytes:
                raise ValueError(f"{data.nbytes} bytes were given for an extent of {extent.nbytes}.")
            buffer = buffer_of(extent)
            if not data.nbytes:
                return
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            begin = round_down(extent.offset, 4)
            if begin != extent.offset:
                # The device takes whole words: what comes before in the first one is read and written again.
                before = library.downloads.read([(buffer, begin, extent.offset - begin)])[0]
                data = np.concatenate([before, data])
            library.uploads.write(buffer, begin, data)
        self._counters.bytes_to_device += extent.nbytes

    def read(self, extent: Extent) -> Bytes:
        return self.read_many([extent])[0]

    def read_many(self, extents: Sequence[Extent]) -> list[Bytes]:
        """Like `read` of each, with one wait for all of them."""
        targets = [np.empty(extent.nbytes, np.uint8) for extent in extents]
        self.read_into(extents, targets)
        return targets

    def read_into(self, extents: Sequence[Extent], targets: Sequence[Bytes]) -> None:
        """Copy bytes from the device, after what was submitted before."""
        with self._calling() as library:
            for extent, target in zip(extents, targets, strict=True):
                if target.nbytes != extent.nbytes:
                    raise ValueError(f"{target.nbytes} bytes of room do not fit an extent of {extent.nbytes}.")
            sources = [(buffer_of(extent), extent.offset, extent.nbytes) for extent in extents]
            library.downloads.read_into(sources, targets)
            self._learn(library)
        self._counters.bytes_to_host += sum([extent.nbytes for extent in extents])

    def read_view(self, extent: Extent, *, owner: object) -> Bytes:
        """A copy: WebGPU shows the host only memory that kernels cannot use."""
        return self.read(extent)

    # Kernels

    def build(self, kernel: Kernel) -> BuiltKernel:
        """The kernel with its pipeline, compiled if need be."""
        with self._calling() as library:
            built = library.programs.build(kernel)
            self._counters.compilations = library.programs.compilations
            return built

    def submit(self, commands: Sequence[Command], *, timed: bool = False) -> None:
        """Encode and submit commands; with `timed` they are measured where the device has timestamps.

        Work that could take too long for a watchdog is cut into several submissions.
        """
        with self._calling() as library:
            careful = sum([command.built.careful for command in commands if type(command) is Dispatch])
            measurement = self._measurement_of(commands, careful, timed)
            measured = measurement is not None and library.stopwatch is not None
            submissions: list[list[CommandStep]] = [[(command, None) for command in commands]]
            if careful * max(1.0, self._pace.unknown) > DISPATCH_SECONDS:
                parts = plan([self._work_of(command) for command in commands], fold=library.programs.fold)
                submissions = [[(commands[part.command], part) for part in together] for together in parts]
            last = len(submissions) - 1
            for position, steps in enumerate(submissions):
                begins, ends = measured and position == 0, measured and position == last
                self._counters.dispatches += library.encoder.submit(steps, begins=begins, ends=ends)
            self._measurement = measurement or self._measurement

    def prepared(self, commands: Sequence[Command]) -> PreparedCommands | None:
        """Commands ready to be submitted many times by native calls, or `None` where they might have to be cut."""
        with self._calling() as library:
            if library.native is None:
                return None
            careful = sum([command.built.careful for command in commands if type(command) is Dispatch])
            if not self._runs_whole(library, commands, careful):
                return None
            replay = library.encoder.replay_of(commands, library.native)
            if replay is None:
                return None
            settled = all(self._is_settled(command) for command in commands)
            return PreparedCommands(tuple(commands), replay, library.numbers.generation, 0.0 if settled else careful)

    def submit_prepared(self, prepared: PreparedCommands) -> None:
        """Submit prepared commands, or the commands themselves where something has changed since."""
        library = self._open
        if (
            library is None
            or library.native is None
            or prepared.generation != library.numbers.generation
            or prepared.careful * self._pace.unknown > DISPATCH_SECONDS
        ):
            self.submit(prepared.commands)
            return
        try:
            library.gate.replay(prepared.replay, library.native)
        except Exception:
            with self._calling():
                raise
        self._counters.dispatches += prepared.replay.dispatches

    def _runs_whole(self, library: _Open, commands: Sequence[Command], careful: float) -> bool:
        """Whether these are one submission that nobody measures, now and later."""
        if careful < _WORTH_MEASURING and careful * max(1.0, self._pace.unknown) <= DISPATCH_SECONDS:
            return True
        if not all(self._is_settled(command) for command in commands):
            return False
        parts = plan([self._work_of(command) for command in commands], fold=library.programs.fold)
        # A command that is cut has a submission for each part.
        return len(parts) == 1

    def _is_settled(self, command: Command) -> bool:
        """Whether it was measured as often as it ever will be."""
        return not isinstance(command, Dispatch) or not self._pace.wants(command.built.kernel.source)

    def device_seconds(self) -> float | None:
        """Seconds of the last submission that was timed, on the device; `None` where they are not known."""
        with self._calling() as library:
            self._learn(library)
        return self._device_seconds

    def synchronize(self) -> None:
        """Wait until all that was submitted is done, and learn from its times."""
        with self._calling() as library:
            poll = getattr(library.device, "_poll_wait", None)
            if poll is not None:
                # No part of wgpu's public interface, but the only wait that needs no work of its own. It returns as
                # if nothing had happened when the device is lost, so the device is asked.
                poll()
                library.ask()
            else:
                # A copy comes after everything before it, and its mapped result can be waited for.
                library.downloads.read([(library.numbers.buffer, 0, 4)])
            self._learn(library)

    def close(self) -> None:
        """Let go of the device and of all its objects."""
        if self._open is not None:
            self._let_go("it was closed")
        # wgpu's device and queue refer to each other; what the device holds is freed when both are collected.
        gc.collect()

    # Time

    def _work_of(self, command: Command) -> SubmittedWork:
        """How long a command may take, and whether it can be cut."""
        if not isinstance(command, Dispatch):
            return SubmittedWork(0.0)
        built: BuiltKernel = command.built
        seconds = self._pace.seconds(built.kernel.source, built.careful)
        return SubmittedWork(seconds, built.kernel.groups, built.first_group is not None)

    def _measurement_of(self, commands: Sequence[Command], careful: float, timed: bool) -> _Measurement | None:
        """Whether the stopwatch runs for these: on request, or to learn how long their kernels take."""
        if not timed and (careful < _WORTH_MEASURING or self._measurement is not None):
            return None
        kernels = {command.built.kernel.source for command in commands if isinstance(command, Dispatch)}
        if not timed and not any(self._pace.wants(source) for source in kernels):
            return None
        return _Measurement(tuple(kernels), careful, timed, time.perf_counter())

    def _learn(self, library: _Open) -> None:
        """Read the stopwatch, where it ran. Without one, the time until now is the most that the work took."""
        measurement, self._measurement = self._measurement, None
        if measurement is None:
            return
        seconds: float | None = time.perf_counter() - measurement.began
        if library.stopwatch is not None:
            ticks = library.downloads.read([(library.stopwatch.ticks, 0, TICKS_BYTES)])[0]
            seconds = library.stopwatch.seconds(ticks)
        if measurement.asked:
            self._device_seconds = seconds if library.stopwatch is not None else None
        if seconds is not None and measurement.careful >= _WORTH_MEASURING:
            self._pace.learn(measurement.kernels, seconds / measurement.careful)

    # Failure and the end

    @contextmanager
    def _calling(self, requested: int | None = None) -> Iterator[_Open]:
        """Around every use of the library: none of a device that is lost, and its errors become ours."""
        if self._open is None:
            raise DeviceLost(self._id, detail=self._end)
        try:
            yield self._open
        except AnyGPUError:
            raise
        except Exception as error:
            if self._is_lost(self._open):
                self._let_go("seen earlier")
                raise DeviceLost(self._id) from error
            known = classify(error, self._id, requested=requested)
            if known is None:
                raise
            raise known from error

    def _is_lost(self, library: _Open) -> bool:
        """Whether the device answers with a loss to a command that does nothing."""
        # Errors of a lost device have many shapes; its answer when it is asked has one.
        try:
            library.device.create_command_encoder().finish()
        except wgpu.GPUError as error:
            return isinstance(classify(error, self._id), DeviceLost)
        return False

    def _let_go(self, why: str) -> None:
        """Give everything back. After this, nothing calls the library any more."""
        library, self._open, self._end = self._open, None, why
        for block in self._blocks:
            block.buffer = None
            block.keys.clear()
        self._blocks.clear()
        if library is not None:
            destroy(library.device)


# -- the engine
#
# Which devices there are, whether they compute, and how they are opened.


_WGSL_TYPES = {"float32": "f32", "int32": "i32", "float16": "f16", "float64": "f64", "int64": "i64"}
_FEATURE_OF_TYPE = {"float16": "shader-f16", "float64": "shader-f64", "int64": "shader-int64"}

_KERNEL = """\
{enable}
@group(0) @binding(0) var<storage, read> x: array<{type}>;
@group(0) @binding(1) var<storage, read_write> y: array<{type}>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    if (id.x < arrayLength(&y)) {{
        y[id.x] = x[id.x] * x[id.x] + {type}(3) * x[id.x];
    }}
}}
"""


class WebGPUEngine(CompilingEngine):
    """The engine of WebGPU: every card once, through the best of its interfaces."""

    name: ClassVar[str] = "webgpu"
    libraries: ClassVar[tuple[str, ...]] = ("wgpu",)

    def __init__(self) -> None:
        """Nothing is opened yet."""
        super().__init__()
        find_types_fast()
        # For each device id, the adapters that lead to it, best interface first.
        self._views: dict[str, list[Any]] = {}
        self._opened: list[Any] = []
        self._drivers: weakref.WeakSet[WebGPUDriver] = weakref.WeakSet()

    def discover(self) -> list[Device | Unavailable]:
        """The cards of this machine, each through the first of its adapters, or why there are none."""
        cards = one_per_card(wgpu.gpu.enumerate_adapters_sync())
        if not cards:
            return [why_nothing()]
        facts = VulkanFacts()
        found: list[Device | Unavailable] = []
        for index, views in enumerate(cards):
            device_id = f"{self.name}:{index}"
            self._views[device_id] = views
            others = tuple(view.info["backend_type"] for view in views[1:])
            found.append(describe(device_id, views[0], others, facts.of(views[0].info)))
        return found

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        """The device through the first of its interfaces that computes rightly, or how the last one failed."""
        outcome: Device | Unavailable | None = None
        for view in self._views[device.id]:
            candidate = seen_through(device, view)
            try:
                outcome = verified(candidate, _Computer(self._open_to_verify(view, deep=deep)), deep=deep)
            except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
                outcome = failed(candidate, error)
            if isinstance(outcome, Device):
                return outcome
        assert outcome is not None, "a discovered device has at least one view"
        return outcome

    def _open_to_verify(self, adapter: Any, *, deep: bool) -> Any:
        """Open an adapter for verification, with the features of further types for a deep one."""
        wanted = [name for name in _FEATURE_OF_TYPE.values() if deep and name in adapter.features]
        opened = adapter.request_device_sync(required_features=wanted)
        self._opened.append(opened)
        return opened

    def open(self, device: Device) -> WebGPUDriver:
        """A driver of its own for the device, through the interface that it was found usable with."""
        if device.id not in self._views:
            self.discover()
        for view in self._views.get(device.id, ()):
            if view.info["backend_type"] == device.api:
                opened = open_device(view, device.id)
                driver = WebGPUDriver(opened, device_id=device.id, software=device.software)
                self._drivers.add(driver)
                return driver
        raise DeviceUnavailable(device.id, [f"{device.api} no longer offers {device.name}."], device=device.id)

    def memory(self, device: Device) -> Memory:
        """Total and free memory as Vulkan tells it, and what we use."""
        view = self._views[device.id][0]
        facts = VulkanFacts().of(view.info)
        if facts is None:
            return Memory(
                in_use=self.bytes_in_use(device),
                by_owner=self.bytes_by_owner(device),
                unknown=unknown_facts(f"{device.api} does not tell its memory", "total", "free"),
            )
        unknown = {} if facts.memory_free is not None else {"free": facts.unknown["memory_free"]}
        return Memory(
            total=facts.memory_total,
            free=facts.memory_free,
            in_use=self.bytes_in_use(device),
            by_owner=self.bytes_by_owner(device),
            unknown=unknown,
        )

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        return classify(error, device.id)

    def close(self) -> None:
        """Close sessions, drivers and devices."""
        self.close_sessions()
        while self._drivers:
            self._drivers.pop().close()
        while self._opened:
            destroy(self._opened.pop())


class _Computer:
    """Runs the verification kernel on one open wgpu device."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __call__(self, dtype: VerifiedType, values: HostArray) -> HostArray:
        """The verification's computation by a kernel of its own, which needs nothing else of anygpu."""
        device = self._device
        # A storage buffer's size is a multiple of four bytes; float16 at an odd count is not.
        padded = -(-values.nbytes // 4) * 4
        data = values.tobytes().ljust(padded, b"\0")
        enable = "enable f16;" if dtype == "float16" else ""
        module = device.create_shader_module(code=_KERNEL.format(enable=enable, type=_WGSL_TYPES[dtype]))
        pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
        source = device.create_buffer_with_data(data=data, usage=wgpu.BufferUsage.STORAGE)
        target = device.create_buffer(size=padded, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[
                {"binding": index, "resource": {"buffer": buffer, "offset": 0, "size": padded}}
                for index, buffer in enumerate((source, target))
            ],
        )
        encoder = device.create_command_encoder()
        compute_pass = encoder.begin_compute_pass()
        compute_pass.set_pipeline(pipeline)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(-(-values.size // 64))
        compute_pass.end()
        device.queue.submit([encoder.finish()])
        result = bytes(device.queue.read_buffer(target))
        return np.frombuffer(result, dtype)[: values.size]
