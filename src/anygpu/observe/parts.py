"""Named parts of calls, tries that were repeated, and memory: what a receipt says of a training step beside its phases.

The names of parts are those of whoever made the receipt. Few of them are kept, and short ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from anygpu.receipts import Receipt

#: Names of parts that are kept of one function, and characters of each. All others together are "other".
MOST_PARTS, LONGEST_PART = 16, 40
_OTHER = "other"


class StepTally:
    """Sums over calls of one function on one device, in a fixed memory."""

    __slots__ = ("parts", "peak_bytes", "predicted_bytes", "repeats")

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.repeats = 0
        self.peak_bytes: int | None = None
        self.predicted_bytes: int | None = None

    def add(self, receipt: Receipt) -> None:
        """For every receipt, of which most have none of this."""
        if receipt.parts:
            add_parts(self.parts, receipt.parts)
        if len(receipt.attempts) > 1:
            self.repeats += repeats_of(receipt)
        if receipt.peak_bytes is not None or receipt.predicted_bytes is not None:
            self.add_memory(receipt.peak_bytes, receipt.predicted_bytes)

    def add_memory(self, peak: int | None, predicted: int | None) -> None:
        """The highest peak is kept, with what was predicted for that call: a peak beside another call's prediction
        would say nothing of the prediction."""
        if (peak or 0, predicted or 0) > (self.peak_bytes or 0, self.predicted_bytes or 0):
            self.peak_bytes, self.predicted_bytes = peak, predicted

    def merge(self, other: StepTally) -> None:
        add_parts(self.parts, other.parts)
        self.repeats += other.repeats
        self.add_memory(other.peak_bytes, other.predicted_bytes)


def add_parts(sums: dict[str, float], parts: Mapping[str, float]) -> None:
    """Add seconds to sums by name, which stay few whatever the names are."""
    for given, seconds in parts.items():
        if not 0.0 < seconds < float("inf"):  # a clock that went backwards, or no number
            continue
        name = given[:LONGEST_PART]
        if name not in sums and len(sums) >= MOST_PARTS:
            name = _OTHER
        sums[name] = sums.get(name, 0.0) + seconds


def repeats_of(receipt: Receipt) -> int:
    """Attempts that failed and were made again on the device on which the call ended."""
    return sum(not attempt.succeeded and attempt.device == receipt.device for attempt in receipt.attempts[:-1])


def breakdown(phases: Mapping[str, float], parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Where the seconds of calls with parts went, in the order in which that happens; nothing that took no time."""
    before = [("wait", phases.get("queue", 0.0)), ("transfer", phases.get("write", 0.0) + phases.get("read", 0.0))]
    named = [*before, *parts.items()]
    rest = sum(phases.values()) - sum(seconds for _, seconds in named)
    return [(name, seconds) for name, seconds in [*named, ("rest", rest)] if seconds > 0.0]
