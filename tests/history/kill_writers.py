"""Processes that write one history and are killed. Run it alone: `python -m tests.history.kill_writers`.

Each process writes again and again, and says so after each write; at random moments one of them is killed, and another
takes its place. In the end every count must be there that was said to be written, and at most one more for each process
that was killed before it could say so. Only where there is fork.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from anygpu.base.cache_folder import TEMPORARY
from anygpu.placement.history.history import PATIENCE, History
from anygpu.placement.history.storage import HistoryFile

#: Programs of each process; all of them write one more together.
PROGRAMS = 20
SHARED = "f" * 32
STAMP = "e" * 32
#: Of the calls, how many may take longer than they should: a virtual machine stands still at times, and the system does
#: not count that.
_LATE = 1e-3

_SAID = struct.Struct("<IIIdd")


class Report(NamedTuple):
    writes: int
    kills: int
    #: Flushes that gave up because others were at it, and were tried again.
    later: int
    #: The longest that a call of the history took; and without the time for which the system ran other processes.
    longest_seconds: float
    longest_waiting: float
    #: All calls, and those that took longer than they should, without that time.
    calls: int
    late: int
    mistakes: list[str]


def program(slot: int, number: int) -> str:
    return f"{slot:016x}{number % PROGRAMS:016x}"


def run(processes: int, writes: int, seed: int, path: Path, *, pause: float = 0.02) -> Report:
    """`writes` by each of `processes`, of which one is killed after every `pause` seconds or so."""
    rng = random.Random(seed)
    said = [0] * processes
    starts = [0] * processes
    kills = later = late = 0
    longest = waiting = 0.0
    children: dict[int, tuple[int, int]] = {}
    mistakes: list[str] = []

    def start(slot: int) -> None:
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(readable)
            try:
                _write_on(path, slot, said[slot], writes, writable)
            finally:
                os._exit(0)
        os.close(writable)
        children[slot] = child, readable
        starts[slot] += 1

    def listen(slot: int) -> bool:
        """Hear what a process says; whether it is still there."""
        nonlocal later, late, longest, waiting
        data = os.read(children[slot][1], _SAID.size * 100)
        for number, gave_up, over, whole, waited in _SAID.iter_unpack(data[: len(data) // _SAID.size * _SAID.size]):
            said[slot] = number + 1
            later += gave_up
            late += over
            longest, waiting = max(longest, whole), max(waiting, waited)
        return bool(data)

    def end(slot: int) -> None:
        while listen(slot):
            pass
        child, readable = children.pop(slot)
        os.close(readable)
        os.waitpid(child, 0)

    for slot in range(processes):
        start(slot)
    next_kill = time.monotonic() + rng.uniform(0, 2 * pause)
    while children:
        slots = {readable: slot for slot, (_, readable) in children.items()}
        for readable in select.select(list(slots), [], [], max(0.0, next_kill - time.monotonic()))[0]:
            if not listen(slots[readable]):
                end(slots[readable])
        if time.monotonic() >= next_kill and children:
            next_kill = time.monotonic() + rng.uniform(0, 2 * pause)
            slot = rng.choice(sorted(children))
            os.kill(children[slot][0], signal.SIGKILL)
            kills += 1
            end(slot)
            if said[slot] < writes:
                start(slot)
    mistakes += _mistakes(path, said, starts, writes)
    return Report(sum(said), kills, later, longest, waiting, 2 * sum(said) + later, late, mistakes)


def _write_on(path: Path, slot: int, first: int, writes: int, writable: int) -> None:
    database = HistoryFile(path)
    kept = History(database)
    for number in range(first, writes):
        kept.ran(program(slot, number), "numpy", STAMP, 1e-3)
        kept.ran(SHARED, "numpy", STAMP, 1e-3)
        kept.called(program(slot, number), STAMP, 1e-3, name=f"process {slot}")
        gave_up, late, longest, waiting = 0, 0, 0.0, 0.0
        for call in (kept.flush, lambda: kept.timings(SHARED)):
            while True:
                begin, queued = time.perf_counter(), queued_seconds()
                done = call()
                whole = time.perf_counter() - begin
                waited = whole - (queued_seconds() - queued)
                longest, waiting, late = max(longest, whole), max(waiting, waited), late + (waited > PATIENCE)
                if done or call != kept.flush:
                    break
                gave_up += 1
        os.write(writable, _SAID.pack(number, gave_up, late, longest, waiting))
        if database.problem:
            return  # the parent will miss the rest


def queued_seconds() -> float:
    """Seconds for which this thread could have run, and the system ran others."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def _mistakes(path: Path, said: list[int], starts: list[int], writes: int) -> list[str]:
    found = []
    contents = HistoryFile(path).contents()
    names = {each.name for each in path.parent.iterdir() if not each.name.startswith(TEMPORARY)}
    if names != {"calls.1", "history.lock"}:
        found.append(f"something is left: {sorted(names)}")
    counts = {key.program: row.calls for key, row in contents.timings.items()}
    total = 0
    for slot, number in enumerate(said):
        # Each process that was killed may have written once more than it could say.
        kept = sum(counts.get(program(slot, each), 0) for each in range(PROGRAMS))
        total += kept
        if not number <= kept <= number + starts[slot]:
            found.append(f"process {slot} said {number} writes, and {kept} are there")
        if number != writes:
            found.append(f"process {slot} ended after {number} writes")
    # A flush may leave some rows for the next one, which a process that is killed does not come to.
    if abs(counts.get(SHARED, 0) - total) > sum(starts):
        found.append(f"all processes wrote {total} times, and {counts.get(SHARED, 0)} are there")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--writes", type=int, default=2000, help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "history" / "calls.1"
        begin = time.perf_counter()
        report = run(arguments.processes, arguments.writes, arguments.seed, path)
    too_late = report.late > _LATE * report.calls
    lines = [
        f"{report.writes} writes by {arguments.processes} processes, {report.kills} kills, in "
        f"{time.perf_counter() - begin:.0f} s",
        f"  given up and tried again: {report.later}",
        f"  longest call: {report.longest_seconds * 1e3:.1f} ms, of which waiting and working "
        f"{report.longest_waiting * 1e3:.1f} ms",
        f"  calls that waited and worked for more than {PATIENCE * 1e3:.0f} ms: {report.late} of {report.calls}"
        f"{' (too many)' if too_late else ''}",
        f"  lost, too many or damaged: {len(report.mistakes)}",
        *(f"    {each}" for each in report.mistakes[:10]),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.mistakes or too_late else 0


if __name__ == "__main__":
    sys.exit(main())
