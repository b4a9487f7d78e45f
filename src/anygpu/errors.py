"""Every error that anygpu raises on purpose, as one tree.

::

    AnyGPUError
    ├── DeviceError                 something is wrong with a device, not with the work
    │   ├── DeviceUnavailable       no device satisfies the request; `refusals` has one sentence per device
    │   ├── DeviceLost              it disappeared; the work can be retried elsewhere
    │   ├── DevicePoisoned          its context is broken until the worker process is replaced
    │   └── DeviceHung              it did not respond within its deadline
    ├── AllocationError             an allocation failed                 (also a MemoryError)
    │   ├── TooBig                  it never fits on this device, whatever is freed
    │   ├── OutOfMemory             it would fit, but not now
    │   └── OverBudget              it would fit, but exceeds the budget that anygpu was given
    ├── DeadlineExceeded            the caller's time ran out            (also a TimeoutError)
    ├── ClusterError                something is wrong with a cluster of machines
    │   ├── ClusterUnavailable      it cannot be reached                 (also a ConnectionError)
    │   └── InsecureCluster         it was not used, because anybody could run code there
    ├── Overloaded                  the runtime rejected the task before running any of it
    │   ├── QueueFull               the queue is full
    │   └── QuotaExceeded           the tenant has reached its quota of tasks or bytes
    ├── RuntimeClosed               the runtime accepts no more tasks
    ├── PoisonTask                  the task killed three workers and is not retried
    ├── NotANumber                  a result contains a NaN, and nan="raise" is set (also an ArithmeticError)
    ├── InvalidTransition           an event that is impossible in the task's state: a bug in anygpu
    ├── Unsupported                 the device lacks an operation or a dtype
    │   └── CannotCompile           its compiler rejected the generated kernels
    ├── MissingExtra                an optional library is not installed (also an ImportError)
    ├── ValueNeeded                 a function needs an array's value while it is traced (also a TypeError)
    ├── NotRecordable               a function cannot be traced, so no device can run it (also a TypeError)
    ├── InvalidProgram              a graph or its serialised form is invalid (also a ValueError)
    ├── KernelError                 something is wrong with a kernel that a user wrote; `kernel` is its name
    │   ├── InvalidKernel           rejected before it ran; `line` and `column` are in its source (also a ValueError)
    │   └── WrongKernel             its result differs from its reference (also an ArithmeticError)
    ├── StoreError                  a tensor store cannot do what was asked
    │   ├── UnknownTensor           it has no tensor of that name        (also a KeyError)
    │   ├── NameTaken               another owner has a tensor of that name
    │   ├── NotHeld                 the tensor was already released, or never held
    │   ├── CopyNeeded              it would need a copy, and copy="never" is set
    │   └── StoreClosed             the store is closed
    ├── InvalidTensorFile           not a safetensors file, or a corrupt one (also a ValueError)
    └── InvalidOption               an invalid argument to an anygpu function (also a ValueError)

    UserWarning
    ├── ResultMismatch              a device's result differs from NumPy's; the function stays on NumPy
    ├── HostFallback                an operation ran on the host because the device, or anygpu, lacks it
    └── DeviceFallback              a call ran on another device than the one requested or chosen first

Exceptions raised by the user's own code are never wrapped. Each error carries its details as fields, and a message
that says what happened, to what, and what to do next. Errors can be pickled, because they cross processes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from anygpu.base.units import readable_bytes


def _bytes(count: int | None) -> str:
    return "an unknown number of bytes" if count is None else readable_bytes(count)


def text_of(error: BaseException) -> str:
    """`str(error)` for any error: `__str__` may be the user's code, which can raise or return something else."""
    try:
        return str.__str__(str(error))
    except BaseException as raised:  # a user's exception must not escape on a thread that serves other tasks
        if type(raised) is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
            raise
        return "its message is unavailable because its __str__ raised"


def name_of(error: BaseException) -> str:
    """The name of the error's class. A user's metaclass cannot make this raise."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def _rebuild(cls: type[Exception], message: str, fields: dict[str, Any]) -> Exception:
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


class AnyGPUError(Exception):
    """The root: `except AnyGPUError` catches everything that anygpu raises on purpose, and nothing else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), text_of(self), dict(self.__dict__)))


class DeviceError(AnyGPUError):
    """Something is wrong with a device, not with the work."""

    device: str | None

    def __init__(self, message: str, *, device: str | None = None) -> None:
        super().__init__(message)
        self.device = device


class DeviceUnavailable(DeviceError):
    """No device satisfies the request."""

    wanted: str
    refusals: tuple[str, ...]

    def __init__(self, wanted: str, refusals: Sequence[str] = (), *, device: str | None = None) -> None:
        self.wanted = wanted
        self.refusals = tuple(refusals)
        lines = [f"no device is available for {wanted}."]
        lines += [f"  - {sentence}" for sentence in self.refusals]
        lines.append("Run `anygpu doctor` to see what is missing and how to fix it.")
        super().__init__("\n".join(lines), device=device)


class DeviceLost(DeviceError):
    """The device disappeared: it was reset or unplugged, or its driver restarted."""

    generation: int | None
    #: False if the work was still waiting for its turn there.
    started: bool = True

    def __init__(self, device: str, *, detail: str = "", generation: int | None = None) -> None:
        self.generation = generation
        super().__init__(
            f"{device} was lost{_clause(detail)}, and everything stored on it is gone. Reopen the device, "
            "or run the work on another one.",
            device=device,
        )


class DevicePoisoned(DeviceError):
    """The device's context is broken: every further call in this process fails."""

    def __init__(self, device: str, *, detail: str = "") -> None:
        super().__init__(
            f"{device} is unusable in this process after an earlier failure{_clause(detail)}. "
            "Only a new process can use it: replace the worker, or restart the program.",
            device=device,
        )


class DeviceHung(DeviceError):
    """The device did not respond within its deadline."""

    seconds: float

    def __init__(self, device: str, seconds: float, *, doing: str = "") -> None:
        self.seconds = seconds
        during = f" while {doing}" if doing else ""
        super().__init__(
            f"{device} did not respond within {seconds:g} s{during}. Run `anygpu doctor`; if the problem persists, "
            "reset the device or restart the machine.",
            device=device,
        )


# MemoryError comes first because CPython allocates it in a way of its own, and unpickling asks the first base to do it.
class AllocationError(MemoryError, AnyGPUError):
    """A device allocation failed. Each subclass needs a different response."""

    device: str
    requested: int | None
    limit: int | None

    def __init__(self, message: str, *, device: str, requested: int | None, limit: int | None) -> None:
        super().__init__(message)
        self.device = device
        self.requested = requested
        self.limit = limit


class TooBig(AllocationError):
    """The allocation never fits on this device, whatever is freed: split it into chunks or use another device."""

    def __init__(self, device: str, requested: int | None, limit: int | None = None) -> None:
        most = f", whose limit is {_bytes(limit)}" if limit is not None else ""
        super().__init__(
            f"{_bytes(requested)} can never fit on {device}{most}. Split the data into chunks, or use another device.",
            device=device,
            requested=requested,
            limit=limit,
        )


class OutOfMemory(AllocationError):
    """The allocation would fit, but not now: the memory is in use."""

    def __init__(
        self, device: str, requested: int | None = None, free: int | None = None, *, message: str | None = None
    ) -> None:
        left = f" ({_bytes(free)} free)" if free is not None else ""
        super().__init__(
            message
            or f"{device} cannot allocate {_bytes(requested)} now{left}. Free arrays on it, close other programs "
            "that use it, or use smaller chunks.",
            device=device,
            requested=requested,
            limit=free,
        )


class OverBudget(AllocationError):
    """The allocation would fit on the device, but not in the budget that anygpu was given for it."""

    def __init__(self, device: str, requested: int | None, budget: int) -> None:
        super().__init__(
            f"{_bytes(requested)} on {device} would exceed the budget of {_bytes(budget)}. Raise the budget, "
            "or free arrays that count against it.",
            device=device,
            requested=requested,
            limit=budget,
        )


class DeadlineExceeded(AnyGPUError, TimeoutError):
    """The caller's time ran out. `still_running` says whether the device is still busy with the work."""

    seconds: float
    still_running: bool

    def __init__(self, what: str, seconds: float, *, still_running: bool = False) -> None:
        self.seconds = seconds
        self.still_running = still_running
        after = " The device is still busy with it." if still_running else " It is no longer running."
        super().__init__(f"{what} did not finish within {seconds:g} s.{after} Allow more time, or send less work.")


class ClusterError(AnyGPUError):
    """Something is wrong with a cluster of machines."""

    address: str

    def __init__(self, address: str, message: str) -> None:
        self.address = address
        super().__init__(message)


class ClusterUnavailable(ClusterError, ConnectionError):
    """The cluster cannot be reached, or is gone."""

    def __init__(self, address: str, *, detail: str = "") -> None:
        super().__init__(
            address,
            f"no Ray cluster can be reached at {address}{_clause(detail)}. Check that it runs (`ray status`), that "
            "this machine is one of its nodes (`ray start --address=...`), and that both have the same versions of "
            "Ray and Python.",
        )


class InsecureCluster(ClusterError):
    """The cluster was not used: whoever can reach it could run any code there."""

    def __init__(self, address: str, why: str, fix: str) -> None:
        super().__init__(address, f"the Ray cluster at {address} is not safe to use: {why} {fix}")


class Overloaded(AnyGPUError):
    """The runtime rejected the task. None of it ran, so it can be submitted again later."""


class QueueFull(Overloaded):
    """The queue is full."""

    limit: int

    def __init__(self, limit: int, kept: int = 0) -> None:
        self.limit = limit
        others = f", and {kept} more places are reserved for other tenants" if kept else ""
        super().__init__(
            f"the queue is full: {limit} tasks are waiting, which is this runtime's limit{others}. Wait for some "
            "futures, submit fewer tasks at once, or create a Runtime(queue=...) with a higher limit."
        )


class QuotaExceeded(Overloaded):
    """The tenant has reached its quota of tasks or bytes in the runtime."""

    tenant: str
    quota: str
    limit: int

    def __init__(self, tenant: str, quota: str, limit: int) -> None:
        self.tenant = tenant
        self.quota = quota
        self.limit = limit
        most = _bytes(limit) if quota == "bytes" else f"{limit} {quota}"
        super().__init__(
            f"tenant {tenant!r} would exceed its quota of {most}. Wait for some of its futures, or raise its quota."
        )


class RuntimeClosed(AnyGPUError):
    """The runtime accepts no more tasks: it was drained or closed."""

    def __init__(self, doing: str = "closed") -> None:
        super().__init__(f"the runtime is {doing} and accepts no more tasks. Create another Runtime.")


class PoisonTask(AnyGPUError):
    """The task killed several workers and is not retried."""

    task: str
    deaths: int

    def __init__(self, task: str, deaths: int, *, detail: str = "") -> None:
        self.task = task
        self.deaths = deaths
        super().__init__(
            f"{task} was running alone on each of {deaths} workers that died{_clause(detail)}, so it is not retried. "
            "Check its arguments, or run it on NumPy."
        )


class NotANumber(AnyGPUError, ArithmeticError):
    """A result contains a NaN, and the caller set nan="raise"."""

    task: str
    position: tuple[int, ...]

    def __init__(self, task: str, position: tuple[int, ...]) -> None:
        self.task = task
        self.position = position
        where = f"contains a NaN, the first at {position}" if position else "is a NaN"
        super().__init__(f'the result of {task} {where}. Check the arguments of this call, or leave out nan="raise".')


class InvalidTransition(AnyGPUError, RuntimeError):
    """An event that is impossible in the task's state. `story` lists everything that happened to the task."""

    story: tuple[str, ...]

    def __init__(self, task: str, event: str, situation: str, story: Sequence[str]) -> None:
        self.story = tuple(story)
        lines = [
            f"{event} cannot happen to {task}, which is {situation}. This is a bug in anygpu; please report it with"
        ]
        super().__init__("\n".join([*lines, "the task's history:", *(f"  - {each}" for each in story)]))


class Unsupported(AnyGPUError):
    """The device lacks an operation or a dtype. Nothing was narrowed or replaced silently."""

    device: str
    what: str

    def __init__(self, what: str, device: str, *, instead: str = "", message: str | None = None) -> None:
        self.what = what
        self.device = device
        super().__init__(f"{message or f'{device} has no {what}.'} {instead or 'Use another device.'}")


class CannotCompile(Unsupported):
    """The device's compiler rejected kernels that were generated for a program, so the program runs elsewhere."""

    detail: str

    def __init__(self, device: str, detail: str) -> None:
        self.detail = detail
        AnyGPUError.__init__(
            self,
            f"{device} cannot compile the program: {detail.strip()}\nRun it on another device, and please report this.",
        )
        self.what = "compiler that takes the program"
        self.device = device


class MissingExtra(AnyGPUError, ImportError):
    """An optional library is not installed."""

    extra: str
    library: str

    def __init__(self, library: str, extra: str) -> None:
        self.library = library
        self.extra = extra
        super().__init__(f"{library} is not installed. Install it with: {install_command(library, extra)}")


#: What the extras of several packages, or of a version, need; the others need the missing library alone.
_PACKAGES = {"serve": "uvicorn httptools", "ray": "ray grpcio", "profile": "'scalene>=2.4'"}


def install_command(library: str, extra: str | None = None) -> str:
    """The command that installs what is missing.

    It names the packages and not an extra of anygpu: an index may have another package under that name.
    """
    return f"pip install {_PACKAGES.get(extra or '', library)}"


#: What a function does that asks an array for its value, and cannot be traced therefore.
VALUE_NEEDED = "branches on an array value, or needs one for a shape"


class ValueNeeded(AnyGPUError, TypeError):
    """A function needs the value of an array while it is traced."""

    line: str | None

    def __init__(self, line: str | None = None) -> None:
        self.line = line
        at = f" ({line})" if line else ""
        super().__init__(
            f"the function {VALUE_NEEDED}{at}, and values are not known while it is traced. Use np.where(), or call "
            "the function on arrays directly."
        )


class NotRecordable(AnyGPUError, TypeError):
    """A function that cannot be traced into a program: only NumPy can run it."""

    task: str
    why: str

    def __init__(self, task: str, why: str) -> None:
        self.task = task
        self.why = why
        super().__init__(f'{self.sentence} To run it on NumPy, leave out on=, or set fallback="warn".')

    @property
    def sentence(self) -> str:
        """What happened, without what to do about it."""
        return f"{self.task} cannot be traced into a program: {self.why.rstrip('.')}."


class InvalidProgram(AnyGPUError, ValueError):
    """A graph, or its serialised form, that violates a rule of shapes or types. It was not run."""


class KernelError(AnyGPUError):
    """Something is wrong with a kernel that a user wrote."""

    kernel: str

    def __init__(self, kernel: str, message: str) -> None:
        self.kernel = kernel
        super().__init__(message)


class InvalidKernel(KernelError, ValueError):
    """The kernel was rejected before it ran. `line` and `column` count from 1 in the user's source."""

    line: int | None
    column: int | None

    def __init__(self, kernel: str, why: str, *, line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        where = "" if line is None else f", line {line}" if column is None else f", line {line}, column {column}"
        called = f"the kernel {kernel}" if kernel else "this kernel"
        super().__init__(kernel, f"{called}{where}: {why}")


class WrongKernel(KernelError, ArithmeticError):
    """The kernel's result differs from its reference. `position` is the first difference."""

    position: tuple[int, ...]

    def __init__(
        self,
        kernel: str,
        result: str,
        position: tuple[int, ...],
        found: object,
        expected: object,
        *,
        differing: int = 1,
    ) -> None:
        self.position = position
        others = f", the first of {differing:,} places," if differing > 1 else ""
        super().__init__(
            kernel,
            f"the kernel {kernel} disagrees with its reference: {result}[{', '.join(map(str, position))}]{others} is "
            f"{found}, and the reference has {expected}. Fix whichever is wrong; if the kernel is merely less precise, "
            "pass tolerance=.",
        )


class StoreError(AnyGPUError):
    """A tensor store cannot do what was asked."""


class UnknownTensor(StoreError, KeyError):
    """The store has no tensor of that name."""

    name: str

    def __init__(self, name: str, store: str, alike: Sequence[str] = ()) -> None:
        self.name = name
        hint = f" Did you mean {' or '.join(map(repr, alike))}?" if alike else ""
        super().__init__(f"the store {store} has no tensor {name!r}.{hint}")

    def __str__(self) -> str:  # KeyError would show the repr of its message
        return str(self.args[0])


class NameTaken(StoreError):
    """Another owner has a tensor of that name."""

    name: str
    owner: str

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        super().__init__(
            f"{name!r} already belongs to {owner!r}. Use another name or namespace, or have {owner!r} release it."
        )


class NotHeld(StoreError):
    """A holder releases a tensor that it does not hold, or has already released."""

    name: str
    holder: str

    def __init__(self, name: str, holder: str) -> None:
        self.name = name
        self.holder = holder
        super().__init__(
            f"{holder!r} does not hold {name!r}: it was already released, or never shared with {holder!r}. "
            "The tensor's `holders` lists who does."
        )


class CopyNeeded(StoreError):
    """The operation would need a copy, and copy="never" is set."""

    name: str
    nbytes: int

    def __init__(self, name: str, why: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        super().__init__(
            f'{name!r} would have to be copied ({_bytes(nbytes)}): {why}, and copy="never" is set. '
            'Pass copy="allow", or take another view of it.'
        )


class StoreClosed(StoreError):
    """The store is closed and holds no tensors."""

    def __init__(self, store: str) -> None:
        super().__init__(f"the store {store} is closed and holds no tensors. Open it again.")


class InvalidTensorFile(AnyGPUError, ValueError):
    """Not a safetensors file, or a corrupt one. Nothing was loaded from it."""

    path: str
    why: str

    def __init__(self, path: str, why: str, *, advice: str = "Save or download it again.") -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path} cannot be read: {why.rstrip('.')}. {advice}".rstrip())


class ResultMismatch(UserWarning):
    """A device's result differs from NumPy's beyond the published tolerances. The function stays on NumPy.

    This is a warning because the call returned NumPy's result; `check="always"` with `fallback="raise"` raises it.
    """

    task: str
    device: str
    #: The position of the first difference, and both values there, as text.
    index: tuple[int, ...]
    expected: str
    got: str
    #: The command that writes a report.
    command: str

    def __init__(
        self,
        task: str,
        device: str,
        sentence: str,
        *,
        index: tuple[int, ...],
        expected: str,
        got: str,
        command: str,
        before_use: bool = True,
    ) -> None:
        self.task = task
        self.device = device
        self.index = index
        self.expected = expected
        self.got = got
        self.command = command
        before = (
            "No such result was returned."
            if before_use
            else "It agreed before, so results since the last check may be wrong."
        )
        super().__init__(
            f"{device} disagrees with NumPy on {task}: {sentence}. {before} The function stays on NumPy in this "
            f"process. Run `{command}` to write a report."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), dict(self.__dict__)))


class InvalidOption(AnyGPUError, ValueError):
    """An invalid argument to an anygpu function."""


def _clause(detail: str) -> str:
    return f" ({detail})" if detail else ""


class HostFallback(UserWarning):
    """An operation ran on the host because the device, or anygpu, lacks it."""


class DeviceFallback(UserWarning):
    """A call ran on another device than the one requested or chosen first."""
