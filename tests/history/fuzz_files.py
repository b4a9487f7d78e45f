"""Databases that somebody has damaged. Run it alone: `python -m tests.history.fuzz_files --count 10000`.

Every file is used as a history is: read, written and read again, within the time that a call has. It is either read or
set aside, what is read can be reckoned with, and in the end there is a history that works. The files are looked at in
child processes, so that a crash of SQLite would be found as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil

from anygpu.history.database import Database
from anygpu.history.history import PATIENCE, History
from anygpu.history.merging import RECENT, HabitKey, HabitRow, TimingKey, TimingRow
from anygpu.history.records import is_hash
from anygpu.history.storage import Batch
from tests.history.kill_writers import queued_seconds

STAMP = "e" * 32
NEW = "d" * 32
#: Files that one child process looks at.
_EACH = 500
_PAGE = 4096
#: Of the header of a database: where a number is, and of how many bytes.
_FIELDS = ((16, 2), (18, 1), (19, 1), (20, 1), (24, 4), (28, 4), (32, 4), (36, 4), (44, 4), (52, 4), (56, 4), (60, 4),
           (62, 2), (64, 4), (68, 4), (92, 4))  # fmt: skip
_NUMBERS = (0, 1, 2, 3, 5, 13, 127, 128, 255, 256, 4096, 65535, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


class Report(NamedTuple):
    outcomes: Counter[str]
    #: Whatever went wrong, which must be nothing.
    surprises: list[str]
    slowest_seconds: float
    growth_bytes: int


def originals(folder: Path) -> list[tuple[bytes, bytes, str]]:
    """Whole databases, each with its journal, if it has one, and a program and function that it knows."""
    rng = random.Random(0)
    found = []
    for rows in (0, 1, 5, 40, 300):
        path = folder / f"{rows}" / "history.sqlite3"
        database = Database(path)
        batch = _batch(rng, max(1, rows))
        known = list(batch.timings)[-1].program
        database.add(batch, 60.0)
        if rows == 0:
            database.clear_all(60.0)
        if rows == 300:  # with pages that are free again
            contents = database.contents(60.0)
            database.clear(list(contents.habits)[:250], list(contents.timings)[:250], 60.0)
        found.append((path.read_bytes(), b"", known))
        found.append((path.read_bytes(), _journal(path), known))
    return found


def _batch(rng: random.Random, rows: int) -> Batch:
    hashes = [f"{rng.getrandbits(128):032x}" for _ in range(rows)]
    measured = tuple((1e9 + each, rng.random()) for each in range(RECENT))
    spent = ((5, 1e9, 3, 0.5),)
    return Batch(
        {TimingKey(each, "webgpu:0", STAMP): TimingRow(measured, 9, (1e9, 1.0), 1e9) for each in hashes},
        {HabitKey(each, STAMP): HabitRow((1e9, "name" * rng.randint(1, 25)), (1e9, each), 1, spent) for each in hashes},
    )


def _journal(path: Path) -> bytes:
    """The journal of a transaction that was never finished."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE timings SET used = used + 1")
    connection.execute("INSERT INTO timings VALUES ('a', 'b', 'c', zeroblob(9000), 1)")
    content = Path(f"{path}-journal").read_bytes() if Path(f"{path}-journal").exists() else b""
    connection.execute("ROLLBACK")
    connection.close()
    return content


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The same with one to six changes."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = _damaged_once(bytearray(data), rng)
    return data


def _damaged_once(data: bytearray, rng: random.Random) -> bytes:
    if not data:
        return rng.randbytes(rng.choice((1, 16, 100, 5000)))
    at = rng.randrange(len(data))
    pages = max(1, len(data) // _PAGE)
    page, other = rng.randrange(pages) * _PAGE, rng.randrange(pages) * _PAGE
    match rng.randrange(12):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at : at + rng.randint(1, 64)] = rng.randbytes(rng.randint(1, 64))
        case 2:
            data[page : page + _PAGE] = data[other : other + _PAGE]
        case 3:
            data[page : page + _PAGE] = rng.choice((bytes(_PAGE), rng.randbytes(_PAGE), b"\xff" * _PAGE))
        case 4:
            del data[at:]
        case 5:
            del data[len(data) // _PAGE * _PAGE - _PAGE * rng.randint(0, pages) :]
        case 6:
            data += rng.choice((rng.randbytes(rng.randint(1, 9000)), bytes(_PAGE)))
        case 7:
            start, size = rng.choice(_FIELDS)
            number = rng.choice((*_NUMBERS, rng.getrandbits(32)))
            data[start : start + size] = (number % 256**size).to_bytes(size, "big")
        case 8 | 9:  # the header of a page: its kind, its cells, where they begin
            start = page + (100 if page == 0 else 0) + rng.randrange(12)
            data[start : start + 1] = bytes([rng.choice((0, 1, 2, 5, 10, 13, 255, rng.randrange(256)))])
        case 10:  # where a cell is
            start = page + (108 if page == 0 else 8) + 2 * rng.randrange(20)
            data[start : start + 2] = rng.choice((_NUMBERS[rng.randrange(11)], rng.randrange(65536))).to_bytes(2, "big")
        case _:  # the length of something
            data[at : at + 2] = rng.choice((b"\xff\xff", b"\x80\x01", b"\x00\x00", b"\x81\x80"))
    return bytes(data)


def look_at(folder: Path, data: bytes, journal: bytes, known: str) -> tuple[str, float]:
    """What became of a file, and the longest that anything took, but for what the system did for other processes.

    Raises for what should not be.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    path = folder / "history.sqlite3"
    for each, content in ((path, data), (Path(f"{path}-journal"), journal)):
        if content or each is path:
            each.write_bytes(content)
            each.chmod(0o600)
    longest = 0.0
    kept = History(path)
    kept.ran(NEW, "numpy", STAMP, 0.5)
    kept.called(NEW, STAMP, 0.5, name="new")
    for call in (lambda: kept.timings(known), lambda: kept.habit(known, STAMP), kept.flush, lambda: kept.timings(NEW)):
        begin, queued = time.perf_counter(), queued_seconds()
        call()
        longest = max(longest, time.perf_counter() - begin - (queued_seconds() - queued))
    database = Database(path)
    contents = database.contents(60.0)
    if not all(is_hash(key.program) and row.is_plausible for key, row in contents.timings.items()):
        raise AssertionError("a row that cannot be reckoned with")
    for _ in range(3):  # the first may find out only then, and set it aside
        if kept.flush():
            break
        kept.ran(NEW, "numpy", STAMP, 0.5)
    kept.ran(NEW, "numpy", STAMP, 0.5)
    for _ in range(3):
        if kept.flush() and TimingKey(NEW, "numpy", STAMP) in Database(path).contents(60.0).timings:
            break
        kept.ran(NEW, "numpy", STAMP, 0.5)
    else:
        raise AssertionError("in the end there is no history that works")
    aside = path.with_name("history.sqlite3.aside").exists()
    if not database.clear_all(60.0):
        raise AssertionError("it cannot be cleared")
    return ("set aside" if aside or database.off else "read" if contents.timings else "read, empty"), longest


def fuzz(count: int, seed: int) -> Report:
    """In this process."""
    outcomes: Counter[str] = Counter()
    surprises: list[str] = []
    slowest = 0.0
    logging.getLogger("anygpu.history").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        whole = originals(Path(place))
        before = 0
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            data, journal, known = rng.choice(whole)
            if not journal or rng.random() < 0.6:
                data = damaged(data, rng)
            if journal and rng.random() < 0.8:
                journal = damaged(journal, rng)
            try:
                outcome, seconds = look_at(Path(place) / "history", data, journal, known)
                outcomes[outcome] += 1
                slowest = max(slowest, seconds)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
                surprises.append(f"seed {seed}, file {number}: {type(error).__name__}: {error}")
            if number == min(100, count // 2):
                before = psutil.Process().memory_info().rss
        growth = psutil.Process().memory_info().rss - before
    return Report(outcomes, surprises, slowest, growth)


def fuzz_in_children(count: int, seed: int) -> Report:
    """In processes of their own, of which a crash is a surprise as well."""
    total = Report(Counter(), [], 0.0, 0)
    for start in range(0, count, _EACH):
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.history.fuzz_files", "--here"]
        each = min(_EACH, count - start)
        command += ["--count", str(each), "--seed", str(seed * 1_000_000 + start)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        found: dict[str, object] = {}
        with contextlib.suppress(ValueError):
            found = json.loads(done.stdout)
        if done.returncode != 0 or not found:
            total.surprises.append(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
            continue
        report = Report(*found.values())  # type: ignore[arg-type]
        total.outcomes.update(report.outcomes)
        total.surprises.extend(report.surprises)
        total = total._replace(
            slowest_seconds=max(total.slowest_seconds, report.slowest_seconds),
            growth_bytes=max(total.growth_bytes, report.growth_bytes),
        )
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.here:
        sys.stdout.write(json.dumps(fuzz(arguments.count, arguments.seed)._asdict()))
        return 0
    begin = time.perf_counter()
    report = fuzz_in_children(arguments.count, arguments.seed)
    outcome = ", ".join(f"{count} {what}" for what, count in sorted(report.outcomes.items()))
    lines = [
        f"{arguments.count} files in {time.perf_counter() - begin:.0f} s: {outcome}",
        f"  errors, crashes and wrong rows: {len(report.surprises)}",
        *(f"    {each}" for each in report.surprises[:10]),
        f"  slowest call: {report.slowest_seconds * 1e3:.1f} ms (a call has {PATIENCE * 1e3:.0f} ms)",
        f"  memory: {report.growth_bytes / 2**20:+.1f} MiB in a process",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.surprises else 0


if __name__ == "__main__":
    sys.exit(main())
