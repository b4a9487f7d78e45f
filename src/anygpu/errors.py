"""Every error that anygpu raises on purpose, as one tree.

::

    AnyGPUError
    ├── DeviceError                 something is wrong with a device, not with the work
    │   ├── DeviceUnavailable       no device does what was asked; `refusals` has one sentence each
    │   ├── DeviceLost              it was there and is gone; the work can be run again elsewhere
    │   ├── DevicePoisoned          its context is broken until the worker process is replaced
    │   └── DeviceHung              it did not answer within its deadline
    ├── AllocationError             memory could not be had              (also a MemoryError)
    │   ├── TooBig                  never fits on this device, whatever is freed
    │   ├── OutOfMemory             would fit, but not now
    │   └── OverBudget              would fit, but we promised not to take so much
    ├── DeadlineExceeded            the caller's time ran out            (also a TimeoutError)
    ├── Overloaded                  the runtime does not take the task now; nothing of it was run
    │   ├── QueueFull               as many tasks wait already as may
    │   └── QuotaExceeded           the tenant has as many tasks or bytes as it may
    ├── RuntimeClosed               the runtime takes no tasks any more
    ├── PoisonTask                  the task has killed three workers, and is not run again
    ├── NotANumber                  a result has a NaN, and nan="raise" was asked for (also an ArithmeticError)
    ├── InvalidTransition           an event that cannot happen to a task now: a bug of ours, with the task's story
    ├── Unsupported                 an operation or dtype that the device does not have
    │   └── CannotCompile           its compiler refuses what was generated for it
    ├── MissingExtra                an optional library is not installed (also an ImportError)
    ├── ValueNeeded                 a function asks for a value while it is recorded (also a TypeError)
    ├── NotRecordable               a function cannot become a program, so no device can run it (also a TypeError)
    ├── InvalidProgram              a graph or its byte form is wrong     (also a ValueError)
    ├── KernelError                 something is wrong with a kernel that a user wrote; `kernel` is its name
    │   ├── InvalidKernel           refused before it ran; `line` and `column` are in its source (also a ValueError)
    │   ├── KernelOutOfBounds       it used an index outside of a buffer (also an IndexError)
    │   └── WrongKernel             its result is not that of its reference (also an ArithmeticError)
    ├── StoreError                  a store of tensors cannot do what was asked
    │   ├── UnknownTensor           there is none of that name           (also a KeyError)
    │   ├── NameTaken               another owner has one of that name
    │   ├── NotHeld                 released already, or never held
    │   ├── CopyNeeded              it would take a copy, and copy="never" was asked for
    │   └── StoreClosed             the store was closed
    ├── InvalidTensorFile           a file that is no safetensors, or a broken one (also a ValueError)
    └── InvalidOption               an argument of ours that makes no sense (also a ValueError)

    UserWarning
    └── ResultMismatch              a device gave something else than NumPy; the function stays on NumPy

A user's own bug is never wrapped: it is raised unchanged. Errors carry what a program needs as fields, and a
message that says what happened, to what, and what to do next. They can be pickled, because they cross processes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from anygpu.units import readable_bytes


def _bytes(count: int | None) -> str:
    return "an unknown number of bytes" if count is None else readable_bytes(count)


def text_of(error: BaseException) -> str:
    """`str(error)`, whatever the error is: `__str__` is the user's code, which may raise or return something else."""
    try:
        return str.__str__(str(error))
    except BaseException as raised:  # on a thread that serves others nothing of a user may escape
        if type(raised) is KeyboardInterrupt and threading.current_thread() is threading.main_thread():
            raise
        return "its message cannot be shown, because its __str__ fails"


def name_of(error: BaseException) -> str:
    """The name of its class, which a metaclass of the user cannot make raise."""
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
    """No device does what was asked."""

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
    """The device was there and is gone: reset, unplugged, or its driver restarted."""

    generation: int | None

    def __init__(self, device: str, *, detail: str = "", generation: int | None = None) -> None:
        self.generation = generation
        super().__init__(
            f"{device} was lost{_clause(detail)}. What was stored on it is gone; open the device again, "
            "or run the work on another one.",
            device=device,
        )


class DevicePoisoned(DeviceError):
    """The device's context is broken: every further call in this process fails."""

    def __init__(self, device: str, *, detail: str = "") -> None:
        super().__init__(
            f"{device} is unusable in this process after an earlier failure{_clause(detail)}. "
            "Only a new process can use it again: replace the worker, or restart the program.",
            device=device,
        )


class DeviceHung(DeviceError):
    """The device did not answer within its deadline."""

    seconds: float

    def __init__(self, device: str, seconds: float, *, doing: str = "") -> None:
        self.seconds = seconds
        during = f" while {doing}" if doing else ""
        super().__init__(
            f"{device} did not answer within {seconds:g} s{during}. Run `anygpu doctor`; if it stays so, reset "
            "the device or restart the machine.",
            device=device,
        )


# MemoryError comes first because CPython allocates it in a way of its own, and unpickling asks the first base to do it.
class AllocationError(MemoryError, AnyGPUError):
    """Memory could not be had on a device. The three kinds want three different answers."""

    device: str
    requested: int | None
    limit: int | None

    def __init__(self, message: str, *, device: str, requested: int | None, limit: int | None) -> None:
        super().__init__(message)
        self.device = device
        self.requested = requested
        self.limit = limit


class TooBig(AllocationError):
    """Never fits on this device, whatever is freed: cut it into chunks or use another device."""

    def __init__(self, device: str, requested: int | None, limit: int | None = None) -> None:
        most = f", whose limit is {_bytes(limit)}" if limit is not None else ""
        super().__init__(
            f"{_bytes(requested)} can never fit on {device}{most}. Cut the data into chunks, or use another device.",
            device=device,
            requested=requested,
            limit=limit,
        )


class OutOfMemory(AllocationError):
    """Would fit, but not now: something else holds the memory."""

    def __init__(self, device: str, requested: int | None = None, free: int | None = None) -> None:
        left = f" ({_bytes(free)} free)" if free is not None else ""
        super().__init__(
            f"{device} has no room for {_bytes(requested)} now{left}. Free arrays on it, close other programs "
            "that use it, or use smaller chunks.",
            device=device,
            requested=requested,
            limit=free,
        )


class OverBudget(AllocationError):
    """Would fit on the device, but not in the budget that anygpu was given for it."""

    def __init__(self, device: str, requested: int | None, budget: int) -> None:
        super().__init__(
            f"{_bytes(requested)} on {device} would go over the budget of {_bytes(budget)}. Raise the budget, "
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
        after = " The device is still busy with it." if still_running else " Nothing of it is still running."
        super().__init__(f"{what} did not finish within {seconds:g} s.{after} Allow more time, or send less work.")


class Overloaded(AnyGPUError):
    """The runtime does not take the task now. Nothing of it was run, so it can be submitted again later."""


class QueueFull(Overloaded):
    """As many tasks wait already as may."""

    limit: int

    def __init__(self, limit: int, kept: int = 0) -> None:
        self.limit = limit
        others = f", and {kept} more places are kept for other tenants" if kept else ""
        super().__init__(
            f"{limit} tasks wait already, which is the limit of this runtime{others}. Wait for some of their futures, "
            "submit fewer at once, or make a Runtime(queue=...) with a higher limit."
        )


class QuotaExceeded(Overloaded):
    """The tenant has as many tasks or bytes in the runtime as it may."""

    tenant: str
    quota: str
    limit: int

    def __init__(self, tenant: str, quota: str, limit: int) -> None:
        self.tenant = tenant
        self.quota = quota
        self.limit = limit
        most = _bytes(limit) if quota == "bytes" else f"{limit} {quota}"
        super().__init__(
            f"the tenant {tenant!r} would go over its quota of {most}. Wait for some of its futures, or give it a "
            "higher quota."
        )


class RuntimeClosed(AnyGPUError):
    """The runtime takes no tasks any more: it was drained or closed."""

    def __init__(self, doing: str = "closed") -> None:
        super().__init__(f"the runtime is {doing}, and takes no more tasks. Make another Runtime for them.")


class PoisonTask(AnyGPUError):
    """The task has killed so many workers that it is not run again."""

    task: str
    deaths: int

    def __init__(self, task: str, deaths: int, *, detail: str = "") -> None:
        self.task = task
        self.deaths = deaths
        super().__init__(
            f"{task} was running alone on each of {deaths} workers that died{_clause(detail)}, so it is not run again. "
            "Look at its arguments, or run it on NumPy."
        )


class NotANumber(AnyGPUError, ArithmeticError):
    """A result has a NaN, and the caller asked for an error then."""

    task: str
    position: tuple[int, ...]

    def __init__(self, task: str, position: tuple[int, ...]) -> None:
        self.task = task
        self.position = position
        where = f"has a NaN, the first at {position}" if position else "is a NaN"
        super().__init__(f'the result of {task} {where}. Look at the arguments of this call, or leave out nan="raise".')


class InvalidTransition(AnyGPUError, RuntimeError):
    """An event that cannot happen to a task in its situation. `story` has everything that has happened to it."""

    story: tuple[str, ...]

    def __init__(self, task: str, event: str, situation: str, story: Sequence[str]) -> None:
        self.story = tuple(story)
        lines = [
            f"{event} cannot happen to {task}, which is {situation}. This is a bug of anygpu; please report it with"
        ]
        super().__init__("\n".join([*lines, "what has happened to the task:", *(f"  - {each}" for each in story)]))


class Unsupported(AnyGPUError):
    """The device lacks an operation or a dtype. Nothing was narrowed or replaced silently."""

    device: str
    what: str

    def __init__(self, what: str, device: str, *, instead: str = "") -> None:
        self.what = what
        self.device = device
        super().__init__(f"{device} has no {what}. {instead or 'Use another device.'}")


class CannotCompile(Unsupported):
    """The device's compiler refuses kernels that were generated for a program, so the program runs elsewhere."""

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
        super().__init__(f"{library} is not installed. Install it with: pip install 'anygpu[{extra}]'")


class ValueNeeded(AnyGPUError, TypeError):
    """A function that is being recorded asks for a value, and there are none yet."""

    line: str | None

    def __init__(self, line: str | None = None) -> None:
        self.line = line
        at = f" ({line})" if line else ""
        super().__init__(
            f"the function asks for a value{at} while it is being recorded, and there are none yet. Branches and "
            "shapes that depend on values cannot be recorded: use where(), or call the function on arrays directly."
        )


class NotRecordable(AnyGPUError, TypeError):
    """A function that cannot become a program: it runs where Python runs, and on no other device."""

    task: str
    why: str

    def __init__(self, task: str, why: str) -> None:
        self.task = task
        self.why = why
        super().__init__(
            f"{task} cannot be recorded as a program: {why.rstrip('.')}. Run it on NumPy, as it is: leave on= out, "
            'or allow that with fallback="warn".'
        )


class InvalidProgram(AnyGPUError, ValueError):
    """A graph, or the bytes of one, that breaks a rule of shapes or types. It was not run."""


class KernelError(AnyGPUError):
    """Something is wrong with a kernel that a user wrote."""

    kernel: str

    def __init__(self, kernel: str, message: str) -> None:
        self.kernel = kernel
        super().__init__(message)


class InvalidKernel(KernelError, ValueError):
    """The kernel was refused before it ran. `line` and `column` count from 1 in the user's own source."""

    line: int | None
    column: int | None

    def __init__(self, kernel: str, why: str, *, line: int | None = None, column: int | None = None) -> None:
        self.line = line
        self.column = column
        where = "" if line is None else f", line {line}" if column is None else f", line {line}, column {column}"
        called = f"the kernel {kernel}" if kernel else "this kernel"
        super().__init__(kernel, f"{called}{where}: {why}")


class KernelOutOfBounds(KernelError, IndexError):
    """The kernel used an index outside of one of its buffers. Nothing outside was read or written."""

    buffer: str
    index: int
    length: int | None

    def __init__(self, kernel: str, buffer: str, index: int, length: int | None = None) -> None:
        self.buffer = buffer
        self.index = index
        self.length = length
        most = "" if length is None else f", which has {length} elements"
        super().__init__(
            kernel,
            f"the kernel {kernel} used index {index} of {buffer}{most}. Nothing outside of it was read or written. "
            "Compare the index with the length before it is used.",
        )


class WrongKernel(KernelError, ArithmeticError):
    """The kernel's result is not that of its reference. `position` is the first place where they differ."""

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
            f"{found}, and the reference has {expected}. Mend one of them; if the kernel is only less exact, allow for "
            "that with tolerance=.",
        )


class StoreError(AnyGPUError):
    """A store of tensors cannot do what was asked."""


class UnknownTensor(StoreError, KeyError):
    """There is no tensor of that name."""

    name: str

    def __init__(self, name: str, store: str, alike: Sequence[str] = ()) -> None:
        self.name = name
        hint = f" Did you mean {' or '.join(map(repr, alike))}?" if alike else ""
        super().__init__(f"the store {store} has no tensor {name!r}.{hint}")

    def __str__(self) -> str:  # a KeyError shows its message as Python would write it
        return str(self.args[0])


class NameTaken(StoreError):
    """Another owner has a tensor of that name."""

    name: str
    owner: str

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        super().__init__(
            f"{name!r} is a tensor of {owner!r} already. Use another name or namespace, or let {owner!r} release it."
        )


class NotHeld(StoreError):
    """Somebody releases what they do not hold, or have released already."""

    name: str
    holder: str

    def __init__(self, name: str, holder: str) -> None:
        self.name = name
        self.holder = holder
        super().__init__(
            f"{holder!r} does not hold {name!r}: it was released already, or never shared with {holder!r}. "
            "Look at `holders` of the tensor."
        )


class CopyNeeded(StoreError):
    """It would take a copy, and copy="never" was asked for."""

    name: str
    nbytes: int

    def __init__(self, name: str, why: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        super().__init__(
            f'{name!r} would have to be copied ({_bytes(nbytes)}): {why}, and copy="never" was asked for. '
            'Write copy="allow", or look at it in another way.'
        )


class StoreClosed(StoreError):
    """The store was closed, and has no tensors any more."""

    def __init__(self, store: str) -> None:
        super().__init__(f"the store {store} was closed, and has no tensors any more. Open it again.")


class InvalidTensorFile(AnyGPUError, ValueError):
    """A file that is no safetensors, or a broken one. Nothing of it was used."""

    path: str
    why: str

    def __init__(self, path: str, why: str, *, advice: str = "Save or download it again.") -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path} cannot be read: {why.rstrip('.')}. {advice}".rstrip())


class ResultMismatch(UserWarning):
    """A device gave something else than NumPy, beyond the published tolerances. The function stays on NumPy.

    It is a warning, since the call returned what NumPy computed; `check="always"` with `fallback="raise"` raises it.
    """

    task: str
    device: str
    #: Where the first difference is, and both values there, as text.
    index: tuple[int, ...]
    expected: str
    got: str
    #: Makes a report.
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
    """An option of anygpu's own that makes no sense."""


def _clause(detail: str) -> str:
    return f" ({detail})" if detail else ""
