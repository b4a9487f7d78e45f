"""The engines that compile, with faults that are real: what happens when, a `Schedule` says. For workers' processes.

A device is destroyed below its library, as when a driver resets it; memory runs out because the process may have no
more; a kernel that never ends is a kernel that never ends. Nothing above the engine knows.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.engines.driver import CONSTANTS
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.engines.memory.adaptors import Limit
from anygpu.engines.memory.resource import reclaim
from anygpu.errors import AllocationError, InvalidOption
from anygpu.program.primitives import Constant
from tests.support.fault_schedule import Ended, Kind, Schedule

if TYPE_CHECKING:
    from anygpu.base.typing import HostArray
    from anygpu.engines.compiling_session import CompiledProgram, DeviceArray, Session
    from anygpu.engines.driver import Driver, DriverBlock
    from anygpu.engines.protocol import Memory
    from anygpu.hardware.device import Device
    from anygpu.program.graph import Program

MEGABYTE = 1 << 20

#: What a process may still take when its memory runs out; then that is taken, down to the smallest of these pieces.
_ROOM = 24 * MEGABYTE
_PIECES = (16 * MEGABYTE, 4 * MEGABYTE, MEGABYTE, MEGABYTE // 4, MEGABYTE // 16)

#: What OpenCL calls a lack of memory: of an object, of resources, of the host.
_OPENCL_CODES = (-4, -5, -6)

#: Less than any result that is worth a device.
_BUDGET = 64

_WGSL = """\
@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>>;

@compute @workgroup_size(1)
fn endless() {
    while (atomicLoad(&words[0]) == 0u) {
        atomicAdd(&words[1], 1u);
    }
}
"""

_OPENCL = """\
__kernel void endless(__global volatile uint *words) {
    while (words[0] == 0) {
        words[1] += 1;
    }
}
"""


def faulty_engine(engine: str, schedule: str, drivers: str = "") -> Any:
    """The named engine, whose runs follow the schedule in that file. `drivers` is the manifest of a Vulkan driver."""
    if drivers:
        # Before the library asks for them, which it does when it is loaded.
        os.environ["VK_ICD_FILENAMES"] = drivers
    if engine == "webgpu":
        from anygpu.engines.webgpu.engine import WebGPUEngine

        return _with_faults(WebGPUEngine)(Schedule(schedule))
    if engine == "opencl":
        from anygpu.engines.opencl.engine import OpenCLEngine

        return _with_faults(OpenCLEngine)(Schedule(schedule))
    raise InvalidOption(f"there are no faults for {engine}; there are for webgpu and opencl.")


def _with_faults(base: Any) -> Any:
    """A class, because workers ask an engine for its type, and what it inherits from is chosen late."""

    class Faulty(base):  # type: ignore[misc]
        """Takes a row of the schedule for each run."""

        def __init__(self, schedule: Schedule) -> None:
            super().__init__()
            self.schedule = schedule
            self._generation = 0
            #: What was asked for last, which is what runs next.
            self._program: Program | None = None
            #: The row of the run that is under way, and whether it has been looked at.
            self._row: int | None = None
            self._looked_at = True
            #: The next run will find the device lost.
            self._lost = False

        def open(self, device: Device, **more: Any) -> Any:
            driver = super().open(device, **more)
            head = self.schedule.head
            self._generation = int(head["generations"][0])
            head["generations"] += 1
            self.schedule.opened[self._generation] = time.monotonic()
            return driver

        # -- the course of a run: compile, reset_peak, upload of each argument, execute, download of each result,
        # peak_bytes

        def compile(self, program: Program, device: Device) -> CompiledProgram:
            self._program = program
            return super().compile(program, device)  # type: ignore[no-any-return]

        def reset_peak(self, device: Device) -> None:
            super().reset_peak(device)
            self._row, self._looked_at = None, not self._is_watched()

        def upload(self, values: HostArray, device: Device) -> DeviceArray:
            if self._begin(values) is Kind.LOSE_BEFORE:
                self._lose(device)
            return super().upload(values, device)  # type: ignore[no-any-return]

        def execute(self, executable: CompiledProgram, buffers: Sequence[DeviceArray]) -> list[DeviceArray]:
            run = super().execute
            return self._through(executable, lambda: run(executable, buffers))  # type: ignore[no-any-return]

        def execute_apart(self, executable: CompiledProgram, buffers: Sequence[DeviceArray]) -> list[DeviceArray]:
            run = super().execute_apart
            return self._through(executable, lambda: run(executable, buffers))  # type: ignore[no-any-return]

        def execute_timed(self, executable: CompiledProgram, buffers: Sequence[DeviceArray]) -> Any:
            run = super().execute_timed
            return self._through(executable, lambda: run(executable, buffers))

        def peak_bytes(self, device: Device) -> int:
            peak: int = super().peak_bytes(device)
            if self._row is not None:
                self.schedule.rows["ended"][self._row] = Ended.ANSWERED
                if self._kind is Kind.LOSE_AFTER:
                    self._lose(device)
                    self._lost = True
                self._row = None
            return peak

        def memory(self, device: Device) -> Memory:
            """Also writes down what arrays and temporaries take now, without what is kept for later."""
            head = self.schedule.head
            held = self.session(device).memory.snapshot()
            constants = held.by_owner[CONSTANTS].bytes if CONSTANTS in held.by_owner else 0
            head["bytes_in_use"], head["bytes_of_constants"] = held.bytes - constants, constants
            return super().memory(device)  # type: ignore[no-any-return]

        # -- faults

        @property
        def _kind(self) -> Kind:
            return Kind(self.schedule.rows["kind"][self._row]) if self._row is not None else Kind.NOTHING

        def _begin(self, values: HostArray | None) -> Kind:
            """What happens in this run, if it is just beginning."""
            if self._looked_at:
                return Kind.NOTHING
            self._looked_at = True
            schedule = self.schedule
            rows = schedule.rows
            row = self._take_row()
            kind = Kind(rows["kind"][row])
            tasks = _tasks_of(values)
            met_before = bool((schedule.hits[tasks] >= schedule.head["most_hits"][0]).any())
            if kind is not Kind.NOTHING and (met_before or self._lost):
                # Another run does.
                following = row + 1
                while rows["kind"][following]:
                    following += 1
                rows["kind"][following], rows["kind"][row] = kind, Kind.NOTHING
                kind = Kind.NOTHING
            if kind not in (Kind.NOTHING, Kind.LOSE_AFTER) or self._lost:
                schedule.hits[tasks] += 1
            return kind

        def _take_row(self, kind: Kind | None = None) -> int:
            """The next one, for this run. A kind that was not planned comes before what was."""
            rows, head = self.schedule.rows, self.schedule.head
            row = self._row
            if row is None:
                row = self._row = int(head["runs"][0])
                rows["generation"][row] = self._generation
                rows["began"][row] = time.monotonic()
                head["runs"] += 1
            if kind is not None:
                rows["kind"][row] = kind
            return row

        def _through(self, executable: CompiledProgram, run: Callable[[], Any]) -> Any:
            self._begin(None)
            kind = self._kind
            marked = self._marked(executable.program)
            if marked is not None:
                kind = marked
                self._take_row(kind)
            session: Session = executable.session
            match kind:
                case Kind.LOSE_BEFORE:
                    self._lose(session.device)
                    return run()
                case Kind.LOSE_AT_SUBMIT:
                    with _before_submitting(session.driver, lambda: self._lose(session.device)):
                        return run()
                case Kind.LOSE_IN_FLIGHT:
                    results = run()
                    self._lose(session.device)
                    return results
                case Kind.NO_ROOM:
                    self._inject()
                    with _without_room(session):
                        return self._watched(run)
                case Kind.OVER_BUDGET:
                    self._inject()
                    with _on_a_budget(session):
                        return self._watched(run)
                case Kind.KILL:
                    run()
                    self._inject()
                    os.kill(os.getpid(), signal.SIGKILL)
                case Kind.HANG:
                    self._inject()
                    _submit_endless(session.driver)
            return run()

        def _is_watched(self) -> bool:
            watched = float(self.schedule.head["watched"][0])
            return math.isnan(watched) or (self._program is not None and watched in _constants_of(self._program))

        def _marked(self, program: Program) -> Kind | None:
            kinds = self.schedule.head["mark_kinds"][0]
            if not kinds.any():
                return None
            values = self.schedule.head["mark_values"][0]
            found = _constants_of(program)
            for value, kind in zip(values, kinds, strict=True):
                if kind and float(value) in found:
                    return Kind(kind)
            return None

        def _watched(self, run: Callable[[], Any]) -> Any:
            try:
                return run()
            except AllocationError:
                self.schedule.rows["ended"][self._row] = Ended.NO_MEMORY
                raise

        def _inject(self) -> None:
            rows = self.schedule.rows
            if self._row is not None and not rows["done"][self._row]:
                rows["injected"][self._row] = time.monotonic()
                rows["done"][self._row] = 1

        def _lose(self, device: Device) -> None:
            self._inject()
            _destroy(self.session(device).driver)

    return Faulty


def _tasks_of(values: HostArray | None) -> list[int]:
    """The numbers of the tasks in a run: the first values of their vectors. A matrix is a batch of vectors."""
    if values is None or not values.size or values.dtype.kind not in "fiu" or values.ndim not in (1, 2):
        return []
    firsts = np.atleast_2d(values)[:, 0]
    limit = 1 << 20
    return [int(each) for each in firsts if each == int(each) and 0 <= each < limit]


def _constants_of(program: Program) -> set[float]:
    found = set()
    for node in program.nodes:
        if isinstance(node.op, Constant) and node.op.dtype in ("float32", "float64") and node.op.data:
            found.add(float(np.float32(np.frombuffer(node.op.data, numpy_dtype(node.op.dtype))[0])))
    return found


# -- what it takes of each library


def _destroy(driver: Any) -> None:
    """As when a driver resets the device: below wgpu-py, which does not hear of it."""
    from wgpu.backends.wgpu_native import lib

    opened = driver._open
    if opened is not None:
        lib.wgpuDeviceDestroy(opened.device._internal)


@contextlib.contextmanager
def _before_submitting(driver: Any, act: Callable[[], None]) -> Iterator[None]:
    """However it submits: through wgpu-py, or a submission that repeats by the library's own functions."""
    queue, native = driver._open.device.queue, driver._open.native
    submit = queue.submit

    def act_and_submit(buffers: Any) -> None:
        act()
        submit(buffers)

    queue.submit = act_and_submit
    repeat: Any = native._submit if native is not None else None

    def act_and_repeat(*arguments: Any) -> None:
        act()
        repeat(*arguments)

    if native is not None:
        native._submit = act_and_repeat
    try:
        yield
    finally:
        del queue.submit
        if native is not None:
            native._submit = repeat


@contextlib.contextmanager
def _without_room(session: Session) -> Iterator[None]:
    """The process has as much memory as it may have, and its device holds the last of it."""
    reclaim(session.memory)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    driver: Driver = session.driver
    ballast: list[DriverBlock] = []
    with open("/proc/self/statm", "rb") as figures:  # noqa: PTH123 - a path object would allocate more
        mapped = int(figures.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM, hard))
    try:
        for piece in _PIECES:
            while (block := _allocated(driver, piece)) is not None:
                ballast.append(block)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for block in ballast:
            driver.release(block)


def _allocated(driver: Driver, nbytes: int) -> DriverBlock | None:
    try:
        return driver.allocate(nbytes)
    except MemoryError:  # ours, or the interpreter's own
        return None
    except Exception as error:
        # Drivers raise their libraries' errors, and OpenCL's are known by their code.
        if getattr(error, "code", 0) not in _OPENCL_CODES:
            raise
        return None


@contextlib.contextmanager
def _on_a_budget(session: Session) -> Iterator[None]:
    """What is allocated now comes through a `Limit` that lets next to nothing be out."""
    memory = session.memory
    session.memory = Limit(memory, _BUDGET, device=session.device.id)  # type: ignore[assignment]
    try:
        yield
    finally:
        session.memory = memory


def _submit_endless(driver: Any) -> None:
    """A kernel that never ends, in front of whatever comes next."""
    if hasattr(driver, "_opened"):
        import pyopencl as cl

        opened = driver._opened
        words = cl.Buffer(opened.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=np.zeros(2, np.uint32))
        kernel = cl.Kernel(cl.Program(opened.context, _OPENCL).build(), "endless")
        kernel(opened.queue, (1,), (1,), words)
        opened.queue.flush()
        return
    import wgpu

    device = driver._open.device
    words = device.create_buffer(size=8, usage=wgpu.BufferUsage.STORAGE)
    module = device.create_shader_module(code=_WGSL)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "endless"})
    entry = {"binding": 0, "resource": {"buffer": words, "offset": 0, "size": 8}}
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=[entry])
    encoder = device.create_command_encoder()
    computing = encoder.begin_compute_pass()
    computing.set_pipeline(pipeline)
    computing.set_bind_group(0, group)
    computing.dispatch_workgroups(1)
    computing.end()
    device.queue.submit([encoder.finish()])
