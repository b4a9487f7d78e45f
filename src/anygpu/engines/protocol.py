"""The protocol of an engine: the one seam between anygpu and a library that can compute.

An engine is one module that owns one import. Probing has two steps, so that a device which hangs or crashes while it is
verified does not hide the ones that come after it: `discover` lists, `verify` computes on one device. Both may take
down the process they run in; that is why callers run them in a child (see `anygpu.workers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from anygpu.base.typing import HostArray
from anygpu.errors import AnyGPUError
from anygpu.hardware.device import Device, Unavailable, VerifiedType, inputs, mistake, types_to_verify
from anygpu.program.graph import Program
from anygpu.program.ops.custom import SPOKEN, Custom, reference_of

if TYPE_CHECKING:
    from anygpu.engines.codegen.custom.reflected import Reflected
    from anygpu.engines.driver import Counters


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on one device, now. What the engine cannot tell is `None` with a reason."""

    total: int | None = None
    free: int | None = None
    #: Of arrays that this process has there, in whole blocks; `None` where the engine does not count them.
    in_use: int | None = None
    #: All that this process has there, by what it is for: "arrays", "temporaries", …; empty where nothing counts it.
    by_owner: dict[str, int] = {}
    unknown: dict[str, str] = {}


@runtime_checkable
class Engine(Protocol):
    """One library that computes, seen through the few things anygpu needs of it."""

    @property
    def name(self) -> str:
        """The engine's name in `on="webgpu"`, and the first part of every device id."""

    def discover(self) -> list[Device | Unavailable]:
        """Everything this engine could use, opened no further than listing needs; devices are `usable`."""

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        """Compute on the device and check the result: `verified`, or an `Unavailable` that says what went wrong."""

    def memory(self, device: Device) -> Memory:
        """What the device has in all, and has free now."""

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        """The library's error as one of ours, by type and code; `None` when it is the user's own."""

    def close(self) -> None:
        """Let go of everything that was opened. May be called twice."""


class Lack(msgspec.Struct, frozen=True):
    """A node of a program that a device cannot compute, and why."""

    node: int
    reason: str


#: What an engine makes of a program, and of an array: its own business.
Executable = Any
Buffer = Any


@runtime_checkable
class ProgramEngine(Engine, Protocol):
    """An engine that runs programs."""

    def supports(self, program: Program, device: Device) -> list[Lack]:
        """What the device cannot do of the program; empty when it can do it all."""

    def compile(self, program: Program, device: Device) -> Executable:
        """The program ready to run there; the engine keeps what it has compiled, by the program's key."""

    def upload(self, values: HostArray, device: Device) -> Buffer:
        """A copy on the device, which shares no memory with `values`."""

    def download(self, buffer: Buffer) -> HostArray:
        """The values on the host, after everything that they depend on is done."""

    def execute(self, executable: Executable, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Run it. Results stay on the device; buffers that exist are not written to."""

    def native(self, buffer: Buffer) -> Any:
        """The library's own array, which speaks DLPack."""

    def adopt(self, array: Any, device: Device) -> Buffer:
        """A buffer from any array that speaks DLPack, without a copy where that is possible."""

    def synchronize(self, device: Device) -> None:
        """Return when the device has nothing left to do."""


# -- what an engine may have beyond that; workers find out by asking for the methods


@runtime_checkable
class Prepares(Protocol):
    """An engine that can open a device ahead of its first use, within a budget of memory."""

    def prepare(self, device: Device, *, budget: int | None = None) -> None:
        """Open the device and do what a first use would wait for.

        `budget` is the most bytes of its memory that may be taken; `None` is no limit.
        """


@runtime_checkable
class Reflects(Protocol):
    """An engine that tells what a user's kernel takes, because its compiler is the one that can read the text."""

    def reflected(self, source: str, entry: str | None, title: str, device: Device) -> Reflected:
        """Return the facts about the kernel. Raises `InvalidKernel` for one that does not compile."""


@runtime_checkable
class Borrows(Protocol):
    """An engine whose programs can read an argument where it lies in the memory of the host, whatever its strides."""

    def borrow(self, values: HostArray, device: Device) -> Buffer:
        """A buffer on the same memory, for the time of one run."""


#: A program as a function of NumPy's arrays: its results, which are new arrays, and what was noted on the way to them,
#: as the bits of `engines.codegen.kernel`.
DirectRun = Callable[[Sequence[HostArray]], tuple[list[HostArray], int]]


@runtime_checkable
class RunsDirectly(Protocol):
    """An engine whose executables are functions of NumPy's arrays, for any number of threads at once."""

    def direct(self, program: Program, device: Device) -> DirectRun:
        """The program as a function."""


@runtime_checkable
class Notes(Protocol):
    """An engine whose code notes what NumPy might warn of."""

    def noted(self) -> int:
        """Return what the last program of this thread has noted, as the bits of `engines.codegen.kernel`."""


@runtime_checkable
class Lists(Protocol):
    """An engine that can show people what it makes of a program."""

    def listing(self, program: Program) -> str:
        """What would run, as text. Nothing is compiled for it."""


@runtime_checkable
class Counting(Protocol):
    """An engine that counts what it asks of its library, and the memory that it takes."""

    def counters(self, device: Device) -> Counters: ...

    def reset_peak(self, device: Device) -> None: ...

    def peak_bytes(self, device: Device) -> int: ...

    def execute_timed(self, executable: Executable, buffers: Sequence[Buffer]) -> tuple[list[Buffer], float | None]: ...


@runtime_checkable
class ReadsInto(Protocol):
    """An engine that reads from its device straight into memory of the caller."""

    def download_into(self, buffer: Buffer, target: HostArray) -> None: ...


@runtime_checkable
class Overlaps(Protocol):
    """An engine that may be used by two threads: one runs programs while the other one transfers arrays."""

    def can_overlap(self, device: Device) -> bool: ...

    def execute_apart(self, executable: Executable, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Like `execute`, and return when it is done. The thread that transfers does not have to wait for that."""

    def upload_apart(self, values: HostArray, device: Device) -> Buffer:
        """Like `upload`, while a program runs. Return when the values are there."""

    def download_apart(self, buffer: Buffer, target: HostArray) -> None:
        """The values of a buffer that nothing which was submitted still has to compute."""


@runtime_checkable
class Reclaims(Protocol):
    """An engine that keeps memory of its device for later."""

    def reclaim(self, device: Device) -> int:
        """Give that back: how many bytes it was."""


class Computes(Protocol):
    """How an engine runs the verification kernel on an open device."""

    def __call__(self, dtype: VerifiedType, values: HostArray) -> HostArray: ...


def verified(device: Device, compute: Computes, *, deep: bool) -> Device | Unavailable:
    """The verification that all engines share: run, compare, and say what was wrong."""
    for dtype in types_to_verify(device.features, deep=deep):
        wrong = mistake(dtype, compute(dtype, inputs(dtype)))
        if wrong is not None:
            return Unavailable(
                id=device.id,
                engine=device.engine,
                state="present",
                cause="wrong_result",
                reason=f"{device.name} computes wrong results through {device.api}.",
                fix="Update the device's driver; a device that miscalculates is never used.",
                detail=wrong,
                pci=device.pci,
            )
    return msgspec.structs.replace(device, state="verified")


def probe(engine: Engine, *, deep: bool = False) -> list[Device | Unavailable]:
    """Discover and verify in this process. For children and tests: a bad driver takes the process with it."""
    return [engine.verify(found, deep=deep) if isinstance(found, Device) else found for found in engine.discover()]


def failed(device: Device, error: Exception) -> Unavailable:
    """A device that raised while it was verified."""
    return Unavailable(
        id=device.id,
        engine=device.engine,
        state="present",
        cause="failed",
        reason=f"{device.name} cannot be used through {device.api}: {type(error).__name__}.",
        fix="Update the device's driver; if the problem persists, report it with the output of `anygpu doctor --json`.",
        detail=str(error),
        pci=device.pci,
    )


# -- users' kernels on an engine that does not speak their language


def why_not_here(op: Custom, engine: str, lacks: Callable[[Program], Sequence[Lack]]) -> str | None:
    """Why the engine cannot compute what the kernel means; `None` when it can."""
    if not op.reference:
        return (
            f"{engine} cannot run kernels in {SPOKEN[op.language]}, and {op.title} has no reference that can be traced"
        )
    return next((lack.reason for lack in lacks(reference_of(op))), None)


# -- how long kernels may be tuned, set by the caller that has a program compiled


_LIMIT: ContextVar[float | None] = ContextVar("tuning seconds", default=None)


@contextmanager
def tuning_limited_to(seconds: float | None) -> Iterator[None]:
    """Programs that this thread has compiled in this block spend no more than that; `None` is no limit."""
    before = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def tuning_limit() -> float | None:
    """The limit that holds here; `None` when there is none."""
    return _LIMIT.get()
