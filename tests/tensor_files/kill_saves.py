"""Processes that are killed while they save. Run it alone: `python -m tests.tensor_files.kill_saves --count 500`.

At random moments, of one process that saves again and again or of two at once, and with `--every-step` before each
call of the system that a save makes. Whatever is found afterwards must be one save, whole. Only where there is fork.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from anygpu.store.tensor_files import TensorFile, TensorFolder, open_file, open_folder, save, verify
from anygpu.store.tensor_files.folders import INDEX

#: Numbers of saves of two processes never meet.
STEP = 2


Saving = Callable[[Path, int, int], None]


class Report(NamedTuple):
    kills: int
    #: Kills that left something unfinished behind, so they came in the middle.
    within: int
    found: Counter[str]
    mistakes: list[str]


def content(number: int, size: int) -> dict[str, Any]:
    """All of it says which save it is from."""
    return {f"layer.{each}": np.full(size + each * 1000, number, np.int64) for each in range(6)}


def write(path: Path, number: int, size: int) -> None:
    # A path without a suffix is a folder, of about three files.
    save(path, content(number, size), shard_bytes=None if path.suffix else 20 * (size + 2500), owners={"layer.0": "me"})


def write_in_place(path: Path, number: int, size: int) -> None:
    """As one would without thinking of kills; to see that these programs find out."""
    whole = safetensors.numpy.save(content(number, size))
    with path.open("wb", buffering=0) as file:
        file.write(whole[:1000])
        file.write(whole[1000:])


def number_in(path: Path, size: int) -> int:
    """Which save is there. Raises when it is not whole, or of two."""
    verify(path)
    opened: TensorFile | TensorFolder
    with open_folder(path) if path.is_dir() else open_file(path) as opened:
        if opened.names != tuple(content(0, 0)):
            raise ValueError(f"the names are {opened.names}")
        numbers = {int(each) for name in opened.names for each in np.unique(opened.values(name))}
        lengths = [opened.spec(name).shape for name in opened.names]
    if len(numbers) != 1 or lengths != [(size + each * 1000,) for each in range(6)]:
        raise ValueError(f"it is of the saves {numbers}, with the lengths {lengths}")
    return numbers.pop()


def leftovers(path: Path) -> list[str]:
    """What is there beside what a reader uses."""
    if path.is_dir():
        with open_folder(path) as opened:
            needed = {INDEX, *(each.name for each in opened.files)}
        return sorted(each.name for each in path.iterdir() if each.name not in needed)
    return sorted(each.name for each in path.parent.iterdir() if each.is_file() and each != path)


def in_child(work: Callable[[], None]) -> int:
    """The id of a new process that does this and nothing else."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def kill_at_random(path: Path, count: int, seed: int, size: int = 60_000) -> Report:
    rng = random.Random(seed)
    last = 0
    write(path, last, size)
    begin = time.perf_counter()
    write(path, last, size)
    usual = time.perf_counter() - begin
    found: Counter[str] = Counter()
    mistakes: list[str] = []
    within = 0
    for kill in range(count):
        first = last + STEP - last % STEP
        readable, writable = os.pipe()
        writers = [first + each for each in range(2 if kill % 3 == 2 else 1)]
        children = [in_child(partial(_save_on, path, start, size, writable)) for start in writers]
        time.sleep(rng.uniform(0, 3 * usual * len(writers)))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(writable)
        with open(readable, "rb") as pipe:  # noqa: PTH123 - a descriptor
            done = [int(line) for line in pipe.read().split()]
        # Of each process the last that it finished, or the one that it had begun; or nobody finished one.
        newest = {max((each for each in done if each % STEP == start % STEP), default=None) for start in writers}
        allowed = {each for each in newest if each is not None} or {last}
        allowed |= {
            max((each for each in done if each % STEP == start % STEP), default=start - STEP) + STEP
            for start in writers
        }
        try:
            number = number_in(path, size)
            within += bool(leftovers(path))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
            mistakes.append(f"kill {kill}: {type(error).__name__}: {error}")
            write(path, last, size)
            continue
        if number not in allowed:
            mistakes.append(f"kill {kill}: save {number} is there, and it should be one of {sorted(allowed)}")
        found["the old" if number == last else "the newest finished" if number in done else "the one just begun"] += 1
        last = max(number, *done, *writers) if done else max(number, *writers)
        last += STEP
        write(path, last, size)
        if left := leftovers(path):
            mistakes.append(f"kill {kill}: the next save left {left}")
    return Report(count, within, found, mistakes)


def _save_on(path: Path, number: int, size: int, writable: int) -> None:
    while True:
        write(path, number, size)
        os.write(writable, b"%d\n" % number)
        number += STEP


def kill_at_every_step(path: Path, size: int = 100, saving: Saving = write) -> Report:
    """Before each call of the system, until a save needs no more of them."""
    found: Counter[str] = Counter()
    mistakes: list[str] = []
    within = kills = 0
    write(path, 0, size)
    while True:
        kills += 1
        old, new = 2 * kills - 2, 2 * kills - 1
        child = in_child(partial(_save_until, partial(saving, path, new, size), kills))
        _, status = os.waitpid(child, 0)
        try:
            number = number_in(path, size)
            within += bool(leftovers(path))
            if number not in (old, new):
                mistakes.append(f"step {kills}: save {number} is there")
            found["the old" if number == old else "the new"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
            mistakes.append(f"step {kills}: {type(error).__name__}: {error}")
        write(path, new + 1, size)
        if left := leftovers(path):
            mistakes.append(f"step {kills}: the next save left {left}")
        if not os.WIFSIGNALED(status):
            return Report(kills - 1, within, found, mistakes)


def _save_until(work: Callable[[], None], step: int) -> None:
    calls = 0

    def before_each(frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls
        if event == "c_call" and _is_of_the_system(called):
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(before_each)
    work()
    sys.setprofile(None)


def _is_of_the_system(called: Any) -> bool:
    of = getattr(called, "__self__", None)
    return isinstance(of, io.FileIO) or getattr(called, "__module__", None) in ("posix", "fcntl", "_io")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every-step", action="store_true")
    parser.add_argument("--in-place", action="store_true", help="save wrongly; with --every-step, one file")
    arguments = parser.parse_args()
    failed = False
    # What is on a disk matters after a power cut; after a kill, memory keeps files as well, and is faster.
    memory = "/dev/shm" if arguments.every_step and Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as place:
        (Path(place) / "one").mkdir()
        paths = [Path(place) / "one" / "x.safetensors", Path(place) / "model"]
        for path in paths[: 1 if arguments.in_place else 2]:
            what = "a folder" if path.suffix == "" else "a file"
            if arguments.every_step:
                report = kill_at_every_step(path, saving=write_in_place if arguments.in_place else write)
            else:
                count = arguments.count // 2 + (arguments.count % 2 if path.suffix else 0)
                report = kill_at_random(path, count, arguments.seed)
            outcome = ", ".join(f"{count} {which}" for which, count in sorted(report.found.items()))
            lines = [
                f"{what}: {report.kills} kills, {report.within} in the middle; there was {outcome}",
                f"  not whole, or not one of these: {len(report.mistakes)}",
                *(f"    {each}" for each in report.mistakes[:10]),
            ]
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()
            failed = failed or bool(report.mistakes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
