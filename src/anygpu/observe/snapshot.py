"""A snapshot of an observed process, as one record: for `anygpu top`, the dashboard and other programs.

The parts of the record come first, `Snapshot` last. `CallEnd` and the three functions beside it turn what a call leaves
behind (a receipt, a note of a host call, or a failure) into one shape, which statistics and traces use as well.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from anygpu.hardware.usage import Usage
from anygpu.observe.statistics import Summary
from anygpu.receipts.notes import Failure, Seen
from anygpu.receipts.receipt import Phases, Receipt
from anygpu.runtime.health import Health


class DeviceMemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that this process holds on one device."""

    bytes: int
    peak_bytes: int
    by_owner: dict[str, int] = {}


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """Something that changed: a function that became slower, memory that only grows, a card that is throttled."""

    #: "slower", "faster", "slower than predicted", "leak", "throttled" or "memory runs out".
    kind: str
    #: The function or device that it is about.
    subject: str
    device: str | None
    #: One sentence for a person.
    sentence: str
    #: Seconds since 1970.
    time: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the program that would save time."""

    #: Kind of mistake: the name of its section on the page about advice, as "upload-again".
    kind: str
    #: The line, as `file:line`.
    line: str | None
    #: Seconds that it has cost so far.
    cost: float
    #: One sentence: what happens. And one: what to write instead.
    finding: str
    instead: str


class CallRecord(msgspec.Struct, frozen=True, array_like=True):
    """One call that has ended."""

    #: Calls of a process are numbered from 1, in the order they ended in, about.
    number: int
    function: str
    device: str
    #: Seconds since 1970.
    end: float
    seconds: float
    #: Seconds that it waited for its turn, moved bytes to and from the device, and ran.
    queue: float
    move: float
    run: float
    bytes_moved: int
    predicted: float | None
    error: str | None


class FallbackRecord(msgspec.Struct, frozen=True, array_like=True):
    """A call that did not run, or not as a whole, where it was first meant to; or not at the first attempt."""

    #: Seconds since 1970.
    end: float
    function: str
    #: Where it ran at last.
    device: str
    reason: str
    #: Whether the attempt that failed was on the same device.
    repeated: bool = False


class CallEnd(NamedTuple):
    """A call that has ended, whatever it left behind: a receipt, a note or a failure."""

    task: str
    device: str
    seconds: float
    phases: Phases
    #: The name of the error's class, if it raised.
    error: str | None = None
    predicted: float | None = None
    bytes_moved: int = 0


def ended(seen: Seen) -> CallEnd:
    """The end of a call in one shape, from its receipt, its failure or the note of a call on NumPy.

    A failure has no phases: all of its time counts as run. A note has none but plan and run.
    """
    if isinstance(seen, Receipt):
        error = seen.attempts[-1].error if seen.attempts and not seen.attempts[-1].succeeded else None
        moved = seen.bytes_to_device + seen.bytes_to_host
        return CallEnd(seen.task, seen.device, seen.seconds, seen.phases, error, seen.predicted_seconds, moved)
    if isinstance(seen, Failure):
        seconds = seen.end - seen.begin
        return CallEnd(seen.task, seen.device, seconds, Phases(run=seconds), seen.error)
    said, begin, ready, end = seen
    phases = Phases(plan=ready - begin, run=end - ready)
    return CallEnd(said.task, "numpy", end - begin, phases, predicted=said.predicted)


def call_of(seen: Seen, end: float, number: int) -> CallRecord:
    """The record of a call that ended at a time in seconds since 1970.

    `number` is its place among the calls of the process. Writing to and reading from the device count as one, `move`.
    """
    task, device, seconds, phases, error, predicted, moved = ended(seen)
    move = phases.write + phases.read
    return CallRecord(number, task, device, end, seconds, phases.queue, move, phases.run, moved, predicted, error)


def fallback_of(receipt: Receipt, end: float) -> FallbackRecord | None:
    """The fallback of a call that was tried before, there or elsewhere, or that the host computed in part.

    `None` for a call that simply ran. Of several failures or host operations the first is told.
    """
    for failure in receipt.failures:
        reason = f"{failure.device}: {failure.error}: {failure.message}"
        repeated = failure.device == receipt.device and len(receipt.attempts) > 1
        return FallbackRecord(end, receipt.task, receipt.device, reason, repeated)
    for host in receipt.host_operations:
        where = f" at {host.line}" if host.line else ""
        return FallbackRecord(
            end, receipt.task, receipt.device, f"{host.operation}{where} ran on the host: {host.reason}"
        )
    return None


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Identity and use of a process.

    Its number, command and version, and the processor time and memory that it has taken without its workers.
    """

    pid: int
    #: As it was started, shortened to 200 characters.
    command: str
    version: str
    #: When it was begun to be observed, in seconds since 1970.
    since: float
    #: Without its workers.
    processor_seconds: float
    memory_bytes: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An observed process at a moment: the answer to `anygpu top`, with all that it shows."""

    schema: str = "anygpu.snapshot/1"
    #: Seconds since 1970.
    time: float
    process: ProcessInfo
    statistics: Summary
    #: Calls after the number that was asked for, the newest last, at most a thousand.
    calls: tuple[CallRecord, ...] = ()
    fallbacks: tuple[FallbackRecord, ...] = ()
    #: Health of the runtime behind `submit` and `map`; `None` as long as neither was called.
    runtime: Health | None = None
    usage: dict[str, Usage] = {}
    #: By device; those whose memory could not be asked for in time are absent.
    memory: dict[str, DeviceMemoryUse] = {}
    anomalies: tuple[Anomaly, ...] = ()
    advice: tuple[Advice, ...] = ()
