"""The history in words for people. Pure functions of records and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.history.records import Habit, Timing

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0


def age_text(when: float, now: float) -> str:
    """How long ago that was: "just now", "5 minutes ago", "3 days ago"."""
    age = now - when
    if age < _MINUTE:
        return "just now"
    for unit, word in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if age >= unit:
            return f"{counted(int(age / unit), word)} ago"
    raise AssertionError("unreachable")


def counted(count: int, word: str) -> str:
    """ "1 call", "1,234 calls"."""
    return f"{count:,} {word}" + ("" if count == 1 else "es" if word.endswith("s") else "s")


def measured_text(timing: Timing, now: float) -> str:
    """The origin of a time: "measured 3 days ago, 41 calls"."""
    if timing.seconds is None:
        return f"never measured; compiled or compared {age_text(timing.when, now)}"
    where = ", on a busy machine" if timing.doubtful else ""
    return f"measured {age_text(timing.when, now)}, {counted(timing.calls, 'call')}{where}"


def agreement_text(timing: Timing, now: float) -> str:
    """Whether its results agreed with NumPy's, as a sentence."""
    if timing.peaks:
        if timing.disagreed is None:
            return "is an opaque task, which is not compared with NumPy"
        return f"had other results in one launch than in separate calls {age_text(timing.disagreed, now)}"
    if timing.device == "numpy":
        return "is what other devices are compared with"
    if timing.agreed:
        return "agreed with NumPy"
    if timing.disagreed is not None:
        return f"disagreed with NumPy {age_text(timing.disagreed, now)}"
    return "was not compared with NumPy"


def memory_text(timing: Timing, *, all_rows: bool = True) -> str:
    """The peak memory of an opaque task: "38.0 MiB for 1,000 rows, 76.0 MiB for 2,000 rows"; or for most rows only."""
    return ", ".join(
        readable_bytes(peak.bytes) + (f" for {counted(peak.rows, 'row')}" if peak.rows else "")
        for peak in (timing.peaks if all_rows else timing.peaks[-1:])
    )


def habit_text(habit: Habit, now: float) -> str:
    """The usual calls of a process: "a process makes 120 calls that take 3.1 s; 4 processes, the last 2 hours ago"."""
    return (
        f"a process makes {counted(habit.calls, 'call')} that take {readable_seconds(habit.seconds)}; "
        f"{counted(habit.processes, 'process')}, the last {age_text(habit.when, now)}"
    )


def latest_by_device(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """For each device its latest timing, the fastest first. Earlier ones are from another driver or version."""
    latest: dict[str, Timing] = {}
    for each in timings:
        known = latest.get(each.device)
        if known is None or (each.when, each.stamp) > (known.when, known.stamp):
            latest[each.device] = each
    return tuple(sorted(latest.values(), key=by_speed))


def by_speed(timing: Timing) -> tuple[float, str, str]:
    """For sorting: the fastest first, and what was not measured last."""
    return (float("inf") if timing.seconds is None else timing.seconds, timing.device, timing.stamp)


def consequence(timing: Timing, timings: Sequence[Timing], habit: Habit) -> str:
    """The consequence for one of the devices, as a sentence."""
    numpy = next((each.seconds for each in timings if each.device == "numpy" and each.seconds is not None), None)
    if timing.peaks:
        return "Calls with other rows are predicted from that."
    if timing.seconds is None:
        return "Its speed is not known, so it has to be measured."
    if timing.device == "numpy":
        faster = [each for each in timings if each.device != "numpy" and _is_faster(each, timing.seconds)]
        return "A device is faster." if faster else "No device is known to be faster."
    if numpy is None:
        return "NumPy's own time is not known, so there is nothing to compare with."
    if not _is_faster(timing, numpy):
        return f"It is slower than numpy, which takes {readable_seconds(numpy)}."
    gain = numpy - timing.seconds
    times = (
        f"It is {numpy / timing.seconds:.3g} times as fast as numpy" if timing.seconds else "It is faster than numpy"
    )
    if not timing.agreed:
        return f"{times}, and its results have to be compared with NumPy's before they are used."
    if timing.compile and timing.compile > gain * habit.calls:
        needed = int(timing.compile / gain) + 1
        usual = counted(habit.calls, "call")
        return f"{times}, but compiling pays only after {counted(needed, 'call')}, and a process makes {usual}."
    return f"{times}."


def _is_faster(timing: Timing, seconds: float) -> bool:
    return timing.seconds is not None and timing.seconds < seconds
