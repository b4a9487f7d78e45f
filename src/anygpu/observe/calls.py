"""Single calls as plain values, for those who look at a running process."""

from __future__ import annotations

import msgspec

from anygpu.notes import Failure, Seen
from anygpu.receipts import Receipt


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One call that has ended."""

    #: Calls of a process are numbered from 1, in the order they ended in, about.
    number: int
    function: str
    device: str
    #: Seconds since 1970.
    end: float
    seconds: float
    #: Of these, the seconds that it waited for its turn, moved bytes to and from the device, and ran.
    queue: float
    move: float
    run: float
    bytes_moved: int
    predicted: float | None
    error: str | None


class Fallback(msgspec.Struct, frozen=True, array_like=True):
    """A call that did not run, or not as a whole, where it was first meant to; or not at the first attempt."""

    #: Seconds since 1970.
    end: float
    function: str
    #: Where it ran at last.
    device: str
    reason: str
    #: Whether the attempt that failed was on the same device.
    repeated: bool = False


def call_of(seen: Seen, end: float, number: int) -> Call:
    if isinstance(seen, Receipt):
        phases = seen.phases
        moved = seen.bytes_to_device + seen.bytes_to_host
        failed = seen.attempts and not seen.attempts[-1].succeeded
        return Call(
            number,
            seen.task,
            seen.device,
            end,
            phases.total,
            phases.queue,
            phases.write + phases.read,
            phases.run,
            moved,
            seen.predicted_seconds,
            seen.attempts[-1].error if failed else None,
        )
    if isinstance(seen, Failure):
        seconds = seen.end - seen.begin
        return Call(number, seen.task, seen.device, end, seconds, 0.0, 0.0, seconds, 0, None, seen.error)
    said, begin, ready, stop = seen
    return Call(number, said.task, "numpy", end, stop - begin, 0.0, 0.0, stop - ready, 0, said.predicted, None)


def fallback_of(receipt: Receipt, end: float) -> Fallback | None:
    """Of a call that was tried before, there or elsewhere, or of which the host computed a part."""
    for failure in receipt.failures:
        reason = f"{failure.device}: {failure.error}: {failure.message}"
        repeated = failure.device == receipt.device and len(receipt.attempts) > 1
        return Fallback(end, receipt.task, receipt.device, reason, repeated)
    for host in receipt.host_operations:
        where = f" at {host.line}" if host.line else ""
        return Fallback(end, receipt.task, receipt.device, f"{host.operation}{where} ran on the host: {host.reason}")
    return None
