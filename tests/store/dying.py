"""Programs that attach to a shared store and are killed: at each line of ours in turn, or at any moment.

They run in a process without threads that forks, because hundreds of fresh interpreters would take minutes; each forked
one opens the store for itself. Not a test by itself: `python -m tests.store.dying lines <folder> <step> <seed>`
kills at every step-th line, and `… moments <folder> <kills> <seed>` at any moment.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from anygpu.errors import StoreError, UnknownTensor
from anygpu.store import segments, shared_store
from anygpu.store.segments import SegmentKey
from anygpu.store.shared_store import Found, SharedTensors, open_shared

NAME = "dying"
OWNER = "everybody"
_OURS = {module.__file__ for module in (shared_store, segments)}


def made(number: int, size: int = 5000) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.full(size, number)


def right(found: Found) -> bool:
    return bool((found.values == int(found.hash)).all())


def life(within: Path) -> None:
    """Everything that changes the folder, once."""
    shared = open_shared(NAME, within=within)
    shared.publish(("n", "first"), made(1), owner=OWNER, hash="1")
    shared.publish(("n", "first"), made(2), owner=OWNER, hash="2")
    shared.publish(("n", "twin"), made(2), owner=OWNER, hash="2")
    segment = shared.reserve((700,), "int64")
    segment.values[:] = 3
    shared.publish(("n", "reserved"), segment, owner=OWNER, hash="3")
    shared.discard(shared.reserve((10,), "float32"))
    shared.publish_all(
        {("m", "a"): made(4), ("m", "b"): made(5)}, owner=OWNER, hashes={("m", "a"): "4", ("m", "b"): "5"}
    )
    shared.find(("n", "first"))
    shared.remove(("m", "a"))
    shared.remove(("n", "first"))
    shared.close()


def killed_at_line(number: int, action: Callable[[], None]) -> bool:
    """Run it in a process that is killed before that line of ours; False if it has no so many lines."""
    child = os.fork()
    if not child:
        lines = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal lines
            if frame.f_code.co_filename not in _OURS:
                return None
            if event == "line":
                lines += 1
                if lines == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        # Not in the main thread, which leaves to others what must not be interrupted.
        threading.settrace(trace)
        thread = threading.Thread(target=_end_with, args=(action,))
        thread.start()
        thread.join()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        raise SystemExit(f"it failed at line {number}")
    return False


def _end_with(action: Callable[[], None]) -> NoReturn:
    try:
        action()
    except BaseException:  # noqa: BLE001 (it is told, and ends the process)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def require_consistent(witness: SharedTensors) -> None:
    """Every tensor is readable and right, and beside these there is nothing that nobody needs."""
    with open_shared(NAME, within=witness.path.parent):
        pass
    wanted = set()
    for key in witness.names():
        found = witness.find(key)
        if found is None or not right(found):
            raise SystemExit(f"{key} is wrong: {found}")
        wanted.add(witness._entries[key].segment)
    names = set(os.listdir(witness.path)) - {"lock", "directory"}  # noqa: PTH208
    if {name for name in names if name.startswith("segment-")} != wanted:
        raise SystemExit(f"segments are {names}, and wanted are {wanted}")
    if len(names - wanted) != 1:
        raise SystemExit(f"left are {names - wanted}")


def at_lines(within: Path, step: int, first: int) -> int:
    number, kills = first, 0
    while killed_at_line(number, lambda: life(within)):
        kills += 1
        open_shared(NAME, within=within).close()
        if any(within.iterdir()):
            raise SystemExit(f"killed at line {number}, it has left {list(within.rglob('*'))}")
        number += step
    if any(within.iterdir()):
        raise SystemExit(f"without being killed, it has left {list(within.rglob('*'))}")
    return kills


def at_lines_beside_a_witness(within: Path, step: int, first: int) -> int:
    number, kills = first, 0
    with open_shared(NAME, within=within) as witness:
        while killed_at_line(number, lambda: life(within)):
            kills += 1
            number += step
            require_consistent(witness)
            for key in witness.names():
                witness.remove(key)
        require_consistent(witness)
    if any(within.iterdir()):
        raise SystemExit(f"left are {list(within.rglob('*'))}")
    return kills


def live(within: Path, seed: int, told: int) -> None:
    """Do this and that for ever, look whether everything is right, and tell of each step."""
    chance = random.Random(seed)
    shared = open_shared(NAME, within=within)
    kept: list[Found] = []
    while True:
        key: SegmentKey = ("chaos", str(chance.randrange(6)))
        number = chance.randrange(100)
        what = chance.randrange(8)
        if what == 0:
            shared.publish(key, made(number), owner=OWNER, hash=str(number))
        elif what == 1:
            both = {key: made(number), ("chaos", "more"): made(number, 30)}
            shared.publish_all(both, owner=OWNER, hashes=dict.fromkeys(both, str(number)))
        elif what == 2:
            segment = shared.reserve((chance.randrange(9000),), "int64")
            segment.values[:] = number
            shared.publish(key, segment, owner=OWNER, hash=str(number))
        elif what == 3:
            shared.discard(shared.reserve((100,), "int64"))
        elif what == 4:
            with contextlib.suppress(UnknownTensor):
                shared.remove(key)
        elif what == 5 and chance.random() < 0.3:
            shared.close()
            shared = open_shared(NAME, within=within)
        else:
            found = shared.find(key)
            if found is not None:
                kept = [*kept[-20:], found]
        if not all(right(each) for each in kept):
            raise StoreError("a tensor has changed under its user")
        os.write(told, b".")


def at_any_moment(within: Path, kills: int, seed: int) -> int:
    chance = random.Random(seed)
    running: dict[int, int] = {}

    def start() -> None:
        reading, writing = os.pipe()
        number = chance.randrange(1 << 30)
        child = os.fork()
        if not child:
            os.close(reading)
            _end_with(lambda: live(within, number, writing))
        os.close(writing)
        running[reading] = child

    def kill(pipe: int) -> None:
        os.kill(running[pipe], signal.SIGKILL)
        _, status = os.waitpid(running.pop(pipe), 0)
        os.close(pipe)
        if not os.WIFSIGNALED(status):
            raise SystemExit("one of them has failed")

    steps = 0
    for _ in range(4):
        start()
    for _ in range(kills):
        wanted = chance.randrange(1, 40)
        while wanted > 0:
            for pipe in select.select(list(running), [], [])[0]:
                done = len(os.read(pipe, 100))
                if not done:
                    kill(pipe)  # it is dead, and its status says why
                steps += done
                wanted -= done
        kill(chance.choice(list(running)))
        start()
    with open_shared(NAME, within=within) as witness:
        for pipe in list(running):
            kill(pipe)
        require_consistent(witness)
    if any(within.iterdir()):
        raise SystemExit(f"left are {list(within.rglob('*'))}")
    return steps


def main() -> None:
    what, within, count, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if what == "lines":
        first = 1 + seed % count
        sys.stdout.write(f"{at_lines(within, count, first) + at_lines_beside_a_witness(within, count, first)}\n")
    else:
        sys.stdout.write(f"{at_any_moment(within, count, seed)}\n")


if __name__ == "__main__":
    main()
