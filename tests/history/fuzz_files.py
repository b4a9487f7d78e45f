"""History files that were damaged. Run it alone: `python -m tests.history.fuzz_files --count 10000`.

Every file is used as a history is: read, written and read again. It is either read or replaced, rows that are read are
valid, and in the end there is a history that works. Half of the damaged files have a valid checksum, as those of a user
who wants to harm only himself.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil

from anygpu.base.cache_folder import sealed, unsealed
from anygpu.placement.history import storage
from anygpu.placement.history.history import PATIENCE, History
from anygpu.placement.history.records import RECENT, HabitKey, HabitRow, TimingKey, TimingRow, is_hash
from anygpu.placement.history.storage import HistoryFile, RowBatch
from tests.history.kill_writers import queued_seconds

STAMP = "e" * 32
NEW = "d" * 32


class Report(NamedTuple):
    outcomes: Counter[str]
    #: Whatever went wrong, which must be nothing.
    surprises: list[str]
    slowest_seconds: float
    growth_bytes: int


def originals(folder: Path) -> list[tuple[bytes, str]]:
    """Whole files, each with a program and function that it has."""
    rng = random.Random(0)
    found = []
    for rows in (0, 1, 5, 40, 300):
        path = folder / f"{rows}" / "calls.1"
        file = HistoryFile(path)
        batch = _batch(rng, max(1, rows))
        known = list(batch.timings)[-1].program
        file.add(batch, 60.0)
        if rows == 0:
            file.clear_all(60.0)
        found.append((path.read_bytes(), known))
    return found


def _batch(rng: random.Random, rows: int) -> RowBatch:
    hashes = [f"{rng.getrandbits(128):032x}" for _ in range(rows)]
    measured = tuple((1e9 + each, rng.random()) for each in range(RECENT))
    spent = ((5, 1e9, 3, 0.5),)
    return RowBatch(
        {TimingKey(each, "webgpu:0", STAMP): TimingRow(measured, 9, (1e9, 1.0), 1e9) for each in hashes},
        {HabitKey(each, STAMP): HabitRow((1e9, "name" * rng.randint(1, 25)), (1e9, each), 1, spent) for each in hashes},
    )


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The file with one to six changes, before or after it was sealed."""
    content = unsealed(data, storage._PURPOSE)
    assert content is not None
    seal = rng.random() < 0.5
    data = content if seal else data
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = _damaged_once(bytearray(data), rng)
    return sealed(data, storage._PURPOSE) if seal else data


def _damaged_once(data: bytearray, rng: random.Random) -> bytes:
    if not data:
        return rng.randbytes(rng.choice((1, 16, 100, 5000)))
    at = rng.randrange(len(data))
    match rng.randrange(6):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at : at + rng.randint(1, 64)] = rng.randbytes(rng.randint(1, 64))
        case 2:
            del data[at:]
        case 3:
            data += rng.choice((rng.randbytes(rng.randint(1, 9000)), bytes(4096)))
        case 4:  # the kind and the length of something
            data[at : at + 1] = bytes([rng.choice((0x80, 0x90, 0xC0, 0xC1, 0xC4, 0xCB, 0xD9, 0xDD, 0xDF, 0xFF))])
        case _:
            other = rng.randrange(len(data))
            data[at : at + 64] = data[other : other + 64]
    return bytes(data)


def look_at(folder: Path, data: bytes, known: str) -> tuple[str, float]:
    """The outcome of one file, and the longest time of a call, without the time for which other processes ran.

    Raises for what should not be.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    path = folder / "calls.1"
    path.write_bytes(data)
    path.chmod(0o600)
    longest = 0.0
    before = HistoryFile(path).contents()
    kept = History(path)
    kept.ran(NEW, "numpy", STAMP, 0.5)
    kept.called(NEW, STAMP, 0.5, name="new")
    for call in (lambda: kept.timings(known), lambda: kept.habit(known, STAMP), kept.flush, lambda: kept.timings(NEW)):
        begin, queued = time.perf_counter(), queued_seconds()
        call()
        longest = max(longest, time.perf_counter() - begin - (queued_seconds() - queued))
    contents = HistoryFile(path).contents()
    if not all(is_hash(key.program) and row.is_plausible for key, row in contents.timings.items()):
        raise AssertionError("an invalid row")
    if TimingKey(NEW, "numpy", STAMP) not in contents.timings or HabitKey(NEW, STAMP) not in contents.habits:
        raise AssertionError("in the end there is no history that works")
    if not HistoryFile(path).clear_all(60.0):
        raise AssertionError("it cannot be cleared")
    return ("read" if before.timings else "empty"), longest


def fuzz(count: int, seed: int) -> Report:
    """Damage files so many times, read each, and count what came of it. Warnings are not shown."""
    log = logging.getLogger("anygpu.history")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return _fuzz(count, seed)
    finally:
        log.setLevel(level)  # tests that follow in this process listen to it


def _fuzz(count: int, seed: int) -> Report:
    outcomes: Counter[str] = Counter()
    surprises: list[str] = []
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        whole = originals(Path(place))
        before = 0
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            data, known = rng.choice(whole)
            try:
                outcome, seconds = look_at(Path(place) / "history", damaged(data, rng), known)
                outcomes[outcome] += 1
                slowest = max(slowest, seconds)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
                surprises.append(f"seed {seed}, file {number}: {type(error).__name__}: {error}")
            if number == min(100, count // 2):
                before = psutil.Process().memory_info().rss
        growth = psutil.Process().memory_info().rss - before
    return Report(outcomes, surprises, slowest, growth)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    report = fuzz(arguments.count, arguments.seed)
    outcome = ", ".join(f"{count} {what}" for what, count in sorted(report.outcomes.items()))
    lines = [
        f"{arguments.count} files in {time.perf_counter() - begin:.0f} s: {outcome}",
        f"  errors and wrong rows: {len(report.surprises)}",
        *(f"    {each}" for each in report.surprises[:10]),
        f"  slowest call: {report.slowest_seconds * 1e3:.1f} ms (a call has {PATIENCE * 1e3:.0f} ms)",
        f"  memory: {report.growth_bytes / 2**20:+.1f} MiB",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.surprises else 0


if __name__ == "__main__":
    sys.exit(main())
