"""What happened in one call: where it ran, why, what failed before, and where the time went.

A receipt is a record of plain values, so it can be logged, sent and read again. Its phases are measured by one
`PhaseTimer`, whose nested phases subtract their children; time that no phase claims is `other`. So the phases add up
to the total by construction.

The end of the file has the warnings about work that ran elsewhere than asked for: no fallback is silent. Each names
the user's own line, and comes once for each cause and line.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import msgspec

from anygpu.base import events
from anygpu.base.events import drawn
from anygpu.base.printable import encode_json
from anygpu.base.units import readable_seconds
from anygpu.errors import DeviceFallback, HostFallback

Phase = Literal["trace", "plan", "compile", "queue", "write", "run", "read"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by phase. `other` is what the call took beyond the named phases."""

    trace: float = 0.0
    plan: float = 0.0
    compile: float = 0.0
    queue: float = 0.0
    write: float = 0.0
    run: float = 0.0
    read: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return sum(self._by_name().values())

    def _by_name(self) -> dict[str, float]:
        return msgspec.structs.asdict(self)

    def __str__(self) -> str:
        parts = self._by_name().items()
        return ", ".join(f"{name} {readable_seconds(value)}" for name, value in parts if value >= 5e-7) or "nothing"


class PhaseTimer:
    """Measures the phases of one call, on one thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts the clock of the call. A phase that is open has the seconds of its children in `_claimed`."""
        self._clock = clock
        self._begin = clock()
        self._seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        # For each open phase, the seconds that its children have claimed so far.
        self._claimed: list[float] = []

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Adds the time of the block to a phase, without that of the phases inside of it."""
        begin = self._clock()
        self._claimed.append(0.0)
        try:
            yield
        finally:
            elapsed = self._clock() - begin
            self._seconds[name] += elapsed - self._claimed.pop()
            if self._claimed:
                self._claimed[-1] += elapsed

    def waited(self, seconds: float, planned: float = 0.0) -> None:
        """Count `seconds` before now as part of the call: `planned` of them as planning, the rest as queueing."""
        self._begin -= seconds
        self._seconds["plan"] += min(planned, seconds)
        self._seconds["queue"] += max(0.0, seconds - planned)

    def seconds(self, name: Phase) -> float:
        """The seconds of a phase so far."""
        return self._seconds[name]

    def finish(self) -> Phases:
        total = self._clock() - self._begin
        return Phases(**self._seconds, other=max(0.0, total - sum(self._seconds.values())))


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try on one device. The last one of a receipt succeeded, unless the call as a whole failed."""

    device: str
    phases: Phases
    #: The name of the error class, and its message; both `None` when the attempt succeeded.
    error: str | None = None
    message: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.error is None


class HostOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that the device lacks and that ran on the host instead."""

    operation: str
    reason: str
    #: The user's own line, as `file:line`.
    line: str | None
    bytes_moved: int


class DriverWork(msgspec.Struct, frozen=True, kw_only=True):
    """A compiling engine's driver calls in one call. In the steady state only submits and dispatches are left."""

    allocations: int
    compilations: int
    submits: int
    dispatches: int


#: A node of a program that ran on the host, and what is told of that.
HostedNode = tuple[int, HostOperation]


class Account(msgspec.Struct, frozen=True, array_like=True):
    """What one run took, as the process tells that has the device open: seconds are of that process alone."""

    compile: float
    write: float
    run: float
    read: float
    bytes_to_device: int
    bytes_to_host: int
    bytes_skipped: int
    device_seconds: float | None
    peak_bytes: int | None
    driver: DriverWork | None
    hosted: list[HostedNode]
    #: Reasons why values are unknown, by the receipt's field.
    unknown: dict[str, str]
    #: The bits of `engines.codegen.kernel` that native code has noted on the way; 0 for engines that note nothing.
    noted: int = 0


class NetworkUse(msgspec.Struct, frozen=True, array_like=True):
    """Bytes and questions of one call to another machine."""

    bytes_sent: int = 0
    bytes_received: int = 0
    #: How often the machine was asked: more than once where an answer was lost, or did not fit.
    asks: int = 0


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one call: where it ran, why, what it took, and what failed before."""

    # A new field has a default, because receipts of earlier versions are read too, and is set in each place that makes
    # a receipt: CONTRIBUTING.md, "Three first changes".

    task: str
    device: str
    kind: Literal["gpu", "cpu", "npu"]
    #: One sentence: why this device.
    reason: str
    #: Everything, including attempts that failed; its total is the time the caller waited.
    phases: Phases
    attempts: tuple[Attempt, ...] = ()
    #: Measured by the device's own clock; `None` when it was not, with the reason in `unknown`.
    device_seconds: float | None = None
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    #: Bytes that did not have to move because they were already there.
    bytes_skipped: int = 0
    peak_bytes: int | None = None
    #: The peak that was predicted before the call; `None` where nobody predicts it.
    predicted_bytes: int | None = None
    #: Seconds of named parts of `run`, for calls that have some: a training step's are forward, backward and optimizer.
    parts: dict[str, float] = {}
    kernels: int | None = None
    #: For engines that count it.
    driver: DriverWork | None = None
    host_operations: tuple[HostOperation, ...] = ()
    #: The machine of a fleet that it ran on; `None` for this one.
    node: str | None = None
    #: To that machine and back, with everything that came along; 0 on this one.
    network_bytes: int = 0
    #: How often that machine was asked for it; 0 on this one.
    asks: int = 0
    #: What was predicted before the call, everything included but tracing, planning and compiling.
    predicted_seconds: float | None = None
    #: How the work was cut, if it was: "in 12 chunks of at most 1000 along axis 0 of the result".
    how: str | None = None
    #: The key of the program that ran; `None` when the function ran as it is.
    program: str | None = None
    #: For each field that is `None`: why it is not known.
    unknown: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_reasons(self, ("device_seconds", "peak_bytes", "kernels", "predicted_seconds"))

    @property
    def seconds(self) -> float:
        return self.phases.total

    @property
    def failures(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if not attempt.succeeded)

    def to_json(self) -> bytes:
        return encode_json(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Receipt:
        return msgspec.json.decode(data, type=cls)

    def __str__(self) -> str:
        """Returns one line: device, time and reason, then phases, parts, failed attempts and operations on the host."""
        predicted = ""
        if self.predicted_seconds is not None:
            predicted = f" (predicted {readable_seconds(self.predicted_seconds)})"
        text = f"{self.task} ran on {self.device} in {readable_seconds(self.seconds)}{predicted}: {self.reason}"
        text += f" [{self.phases}]"
        if self.parts:
            text += "; run: " + ", ".join(f"{name} {readable_seconds(value)}" for name, value in self.parts.items())
        if self.how is not None:
            text += f"; {self.how}"
        for failure in self.failures:
            text += f"; first tried {failure.device}: {failure.error}"
        for host in self.host_operations:
            where = f" at {host.line}" if host.line else ""
            text += f"; {host.operation}{where} ran on the host: {host.reason}"
        return text

    def __repr__(self) -> str:
        return f"<Receipt: {self}>"

    def _repr_html_(self) -> str | None:
        return drawn(self)


def require_reasons(record: msgspec.Struct, fields: tuple[str, ...]) -> None:
    """Unknown is `None` *with a reason*: a record that forgets the reason is not made at all."""
    unknown: dict[str, str] = getattr(record, "unknown", {})
    for name in fields:
        missing = getattr(record, name) is None
        if missing and not unknown.get(name):
            raise ValueError(f"{type(record).__name__}.{name} is None: say why in `unknown`")
        if not missing and name in unknown:
            raise ValueError(f"{type(record).__name__}.{name} is known: remove it from `unknown`")


_NOT_COUNTED = "the function ran untraced, in Python, where nothing is counted"


def numpy_receipt(
    task: str, reason: str, phases: Phases, predicted: float | None, attempts: tuple[Attempt, ...] = ()
) -> Receipt:
    """Returns the receipt of a function that ran as it is; `attempts` are those that failed before."""
    unknown = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), _NOT_COUNTED)
    if predicted is None:
        unknown["predicted_seconds"] = "no such call had been planned before, and there was no history of it"
    return Receipt(
        task=task,
        device="numpy",
        kind="cpu",
        reason=reason,
        phases=phases,
        attempts=(*attempts, Attempt(device="numpy", phases=phases)),
        predicted_seconds=predicted,
        unknown=unknown,
    )


def native_receipt(task: str, reason: str, phases: Phases, predicted: float, program: str) -> Receipt:
    """Returns the receipt of a program that ran as native code, on the caller's own arrays."""
    return Receipt(
        task=task,
        device="cpu",
        kind="cpu",
        reason=reason,
        phases=phases,
        attempts=(Attempt(device="cpu", phases=phases),),
        predicted_seconds=predicted,
        program=program,
        unknown=dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), "native code counts nothing"),
    )


def repeated_receipt(like: Receipt, phases: Phases) -> Receipt:
    """Returns the receipt of a call that ran as an earlier one did, in other times."""
    attempts = (Attempt(device=like.device, phases=phases),)
    return msgspec.structs.replace(like, phases=phases, attempts=attempts)


def queued_receipt(receipt: Receipt, seconds: float) -> Receipt:
    """Returns the receipt of a task that waited `seconds` before it ran."""
    return repeated_receipt(receipt, msgspec.structs.replace(receipt.phases, queue=seconds))


# -- warnings of fallbacks


_listeners: ContextVar[tuple[list[HostOperation], ...]] = ContextVar("host operations", default=())


@contextmanager
def host_operations() -> Iterator[list[HostOperation]]:
    """Collects what runs on the host inside the block, instead of warning about it."""
    collected: list[HostOperation] = []
    token = _listeners.set((*_listeners.get(), collected))
    try:
        yield collected
    finally:
        _listeners.reset(token)


def ran_on_host(operation: HostOperation) -> None:
    """Tells subscribers that an operation ran on the host; warns at the user's line if no block collects it."""
    events.host_operations.tell(operation)
    listeners = _listeners.get()
    for collected in listeners:
        collected.append(operation)
    if not listeners:
        at = f" ({operation.line})" if operation.line else ""
        message = (
            f"{operation.operation}{at} ran on the host, and {operation.bytes_moved:,} bytes were copied for it: "
            f"{operation.reason}."
        )
        # Attributed to the user's own line, so that Python shows it once for each such line.
        file, _, number = (operation.line or "").rpartition(":")
        warnings.warn_explicit(message, HostFallback, file or "anygpu", int(number) if number.isdigit() else 0)


#: Causes that were already warned about, with the user's line.
_said: set[tuple[tuple[str, ...], str, int]] = set()


def warn_fallback(sentence: str, *, cause: tuple[str, ...]) -> None:
    """Warn at the user's own line, once for each cause and line, however the sentence varies."""
    file, number = users_line()
    if (cause, file, number) not in _said:
        _said.add((cause, file, number))
        warnings.warn_explicit(sentence, DeviceFallback, file, number)


def forget_what_was_said() -> None:
    """Show every warning again, for tests and interactive sessions."""
    _said.clear()


_blamed: ContextVar[tuple[str, int] | None] = ContextVar("the line that a task was submitted on", default=None)


def attribute_to_line(line: tuple[str, int]) -> None:
    """Attributes later warnings of this thread to a line: that which submitted the task which it runs."""
    _blamed.set(line)


def users_line() -> tuple[str, int]:
    """The nearest line outside this package and NumPy's dispatch, or the line set by `attribute_to_line`."""
    blamed = _blamed.get()
    if blamed is not None:
        return blamed
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(("anygpu.", "numpy.")):
            return frame.f_code.co_filename, frame.f_lineno
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "anygpu", 0
