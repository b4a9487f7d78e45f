"""Forks at random moments of a process that decorates functions: `python -m tests.faults.forks --count 3000`.

Processes are started one after the other, each for one kind of moment:

- `compiling`: new functions are traced, compiled and compared beside their calls;
- `loading`: the first calls of a process, while what native code needs is being imported;
- `recalled`: the same in a process that knows from an earlier one that native code is faster, which is prepared first;
- `threads`: as `compiling`, with another thread of the program that makes calls of its own;
- `exiting`: the functions that Python calls at its end, before and after those of anygpu.

A child calls the decorated function, and has to get NumPy's values and to end in time. Some compile a function of their
own, some fork again, some end as Python ends, and some are started by `multiprocessing`. What was running when a child
hung goes to the standard error; the last line is a summary, and the exit code says whether every child was right.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: The moments, and the forks of one process there.
MOMENTS = {"compiling": 30, "loading": 10, "recalled": 10, "threads": 30, "exiting": 6}
#: What children do, and how often in a hundred.
ACTS = {"call": 40, "end": 25, "multiprocessing": 20, "fork": 10, "compile": 5}
#: Seconds after which a child hangs: far more than any takes on a busy machine.
DEADLINE = 120.0
#: Children that run at the same time.
_AT_ONCE = 4
_WRONG, _HANGS = 3, 4

#: By module, what its threads do, and whether they do it now.
_THREADS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "calls.loading": ("loading", lambda module: module.native.is_under_way()),
    "engines.cpu.compiler": ("compiling", lambda module: module._child._lock.locked()),
    "native.calls": ("in the background", lambda module: module.background.busy),
}

_SOURCE = """
def smooth(x):
    y = np.sin(x) * {number} + np.sqrt(x) * np.cos(x)
    for _ in range(4):
        y = np.tanh(y) + np.log1p(np.abs(y))
    return y
"""


class Function:
    """A decorated function that no process has seen before, unless it is numbered as one that was."""

    def __init__(self, number: float) -> None:
        import numpy as np

        import anygpu as ag

        space: dict[str, Any] = {"np": np}
        exec(_SOURCE.format(number=number), space)
        self._x = np.linspace(0, 1, 20_000)
        self._expected = space["smooth"](self._x)
        self.offloaded = ag.offload(space["smooth"])

    def call(self) -> None:
        """Call it; raises `AssertionError` for values that are not NumPy's."""
        import numpy as np

        np.testing.assert_allclose(self.offloaded(self._x), self._expected, rtol=1e-9)

    def prepare(self) -> None:
        self.offloaded.prepare(self._x)


def called(number: float) -> None:
    """Call such a function a few times."""
    function = Function(number)
    for _ in range(3):
        function.call()


class Children:
    """The forked children of this process, and how they ended."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: By the child's number: when it began, and the process of `multiprocessing`, which waits for its own.
        self._alive: dict[int, tuple[float, Any]] = {}
        self.ended: Counter[str] = Counter()
        #: What else the process did when they were forked.
        self.beside: Counter[str] = Counter()

    def fork(self, function: Function) -> None:
        """Fork a child that calls the function; wait for another to end where there are enough of them."""
        (act,) = self._chance.choices(list(ACTS), list(ACTS.values()))
        self.beside.update(_under_way())
        started: Any = None
        if act == "multiprocessing":
            started = multiprocessing.get_context("fork").Process(target=_act, args=("call", function))
            started.start()
        child = os.fork() if started is None else started.pid
        if not child:
            _end(function) if act == "end" else os._exit(_code_of(lambda: _act(act, function)))
        self._alive[child] = (time.monotonic(), started)
        self.wait(_AT_ONCE - 1)

    def wait(self, most: int = 0) -> None:
        """Wait until no more than so many run; end those that are too late."""
        self._collect()
        while len(self._alive) > most:
            signal.sigtimedwait([signal.SIGCHLD], 0.1)
            self._collect()

    def _collect(self) -> None:
        for child, (begun, started) in list(self._alive.items()):
            code = started.exitcode if started is not None else _exit_code(child)
            if code is None and time.monotonic() - begun > DEADLINE:
                _end_late(child)
                code = _HANGS
            if code is not None:
                del self._alive[child]
                self.ended[_outcome(code)] += 1


def _under_way() -> list[str]:
    """What threads of anygpu do in this process at this moment."""
    modules = {name: sys.modules.get(f"anygpu.{name}") for name in _THREADS}
    return [what for name, (what, is_so) in _THREADS.items() if modules[name] is not None and is_so(modules[name])]


def _exit_code(child: int) -> int | None:
    """How a child ended; `None` while it runs."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _outcome(code: int) -> str:
    return {0: "right", _WRONG: "wrong", _HANGS: "hung"}.get(code, f"ended with {code}")


def _end_late(child: int) -> None:
    """Have a child that hangs say where, and kill it."""
    os.kill(child, signal.SIGUSR1)
    signal.sigtimedwait([signal.SIGCHLD], 1.0)  # what it says takes a moment
    os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _act(act: str, function: Function) -> None:
    """What a child does."""
    for _ in range(3):
        function.call()
    if act == "compile":
        own = Function(random.Random().random())
        own.prepare()
        own.call()
    elif act == "fork":
        children = Children(random.Random())
        child = os.fork()
        if not child:
            os._exit(_code_of(lambda: _act("call", function)))
        children._alive[child] = (time.monotonic() - DEADLINE / 2, None)  # it is late before this one is
        children.wait()
        if children.ended["right"] != 1:
            os._exit(_HANGS if children.ended["hung"] else _WRONG)


def _code_of(act: Callable[[], None]) -> int:
    """The exit code for what was done: 0 where nothing was raised."""
    try:
        act()
    except AssertionError:
        traceback.print_exc()
        return _WRONG
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
        return 1
    return 0


def _end(function: Function) -> None:
    """In a child: end as Python ends, with everything that is called then."""
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # its parent's, which it would wait for
    sys.exit(_code_of(lambda: _act("call", function)))


# -- what the parent does meanwhile


def _compiling(chance: random.Random, count: int) -> Iterator[Function]:
    """Functions at the moments at which to fork."""
    while count > 0:
        function = Function(chance.random())
        for _ in range(min(count, 6)):
            _call_for(function, chance.uniform(0, 0.2))
            yield function
            count -= 1


def _threads(chance: random.Random, count: int) -> Iterator[Function]:
    over = threading.Event()

    def work() -> None:
        for function in iter(lambda: Function(random.Random().random()), None):
            _call_for(function, 0.4)
            if over.is_set():
                return

    other = threading.Thread(target=work)
    other.start()
    try:
        yield from _compiling(chance, count)
    finally:
        over.set()
        if os.getpid() == _PARENT:
            other.join()


def _loading(chance: random.Random, count: int) -> Iterator[Function]:
    function = Function(chance.random())
    for _ in range(count):
        _call_for(function, chance.expovariate(10.0))
        yield function


def _recalled(chance: random.Random, count: int) -> Iterator[Function]:
    function = Function(0.5)
    if not count:
        function.prepare()
    for _ in range(count):
        _call_for(function, chance.expovariate(20.0))
        yield function


def _exiting(chance: random.Random, count: int) -> Iterator[Function]:
    function = Function(chance.random())
    _call_for(function, chance.uniform(0.1, 0.8))
    _at_exit.append(function)
    yield from ()


def _call_for(function: Function, seconds: float) -> None:
    until = time.monotonic() + seconds
    function.call()
    while time.monotonic() < until:
        function.call()


_PARENT = os.getpid()
#: The function that is called, and forked with, while Python ends.
_at_exit: list[Function] = []
_PHASES = {
    "compiling": _compiling, "loading": _loading, "recalled": _recalled, "threads": _threads, "exiting": _exiting
}  # fmt: skip


def _parent(moment: str, count: int, seed: int) -> None:
    """One process that forks so many children at such moments; prints how they ended."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # `sigtimedwait` takes it
    chance = random.Random(seed)
    children = Children(chance)

    codes: list[Any] = []

    def at_exit() -> None:
        for function in _at_exit:
            for _ in range(count // 2 if os.getpid() == _PARENT else 0):
                try:
                    children.fork(function)
                except SystemExit as end:  # in a child, where the rest of the functions are called
                    codes.append(end.code)
                    return

    def report() -> None:
        if codes:
            os._exit(codes[0])
        if os.getpid() == _PARENT:
            children.wait()
            os.write(1, json.dumps([children.ended, children.beside]).encode() + b"\n")

    # What is registered last is called first: these come after and before what anygpu has registered.
    atexit.register(report)
    atexit.register(at_exit)
    import anygpu.engines.cpu.compiler
    import anygpu.native.calls  # noqa: F401 - registers more

    atexit.register(at_exit)
    for function in _PHASES[moment](chance, count):
        children.fork(function)


# -- the command


def forked(moment: str, count: int, seed: int, cache: Path) -> tuple[Counter[str], Counter[str]]:
    """How the children ended of a process that forks so many at such moments, and what it did beside the forks."""
    command = [sys.executable, "-m", "tests.faults.forks", "--moment", moment, "--count", str(count)]
    # Without bytecode, nothing is loaded before calls have taken a second.
    kept = {name for name in os.environ if not name.startswith("ANYGPU_") and name != "PYTHONDONTWRITEBYTECODE"}
    environment = {name: os.environ[name] for name in kept}
    parent = subprocess.Popen(
        [*command, "--seed", str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "ANYGPU_CACHE_DIR": str(cache)},
        start_new_session=True,
    )
    try:
        said, _ = parent.communicate(timeout=DEADLINE * (count / _AT_ONCE + 2))
    except subprocess.TimeoutExpired:
        parent.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            parent.communicate(timeout=2.0)
        os.killpg(parent.pid, signal.SIGKILL)
        said, _ = parent.communicate()
    ended, beside = Counter[str](), Counter[str]()
    with contextlib.suppress(ValueError, IndexError):
        told = json.loads(said.splitlines()[-1])
        ended.update(told[0])
        beside.update(told[1])
    ended["missing"] += count - ended.total()
    ended[f"parent of {moment} ended with {parent.returncode}"] += bool(parent.returncode)
    return +ended, beside


def main() -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(description="Fork at random moments while functions are made native.")
    parser.add_argument("--count", type=int, default=3000, help="children in all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--moment", choices=MOMENTS, help="fork in this process, at such moments")
    parser.add_argument("--parents", type=int, default=2, help="processes that fork at the same time")
    given = parser.parse_args()
    if given.moment:
        _parent(given.moment, given.count, given.seed)
        return 0
    begun = time.monotonic()
    ended, beside = forked_at_all(given.count, given.seed, given.parents)
    said, meanwhile = (", ".join(f"{many} {name}" for name, many in each.most_common()) for each in (ended, beside))
    seconds = time.monotonic() - begun
    sys.stdout.write(f"{ended.total()} forks in {seconds:.0f} s: {said}. Meanwhile: {meanwhile}.\n")
    return 0 if set(ended) == {"right"} else 1


def forked_at_all(count: int, seed: int, parents: int = 1) -> tuple[Counter[str], Counter[str]]:
    """How so many children ended, or a few more, that so many processes forked at all moments; and what these did."""
    ended, beside, begun = Counter[str](), Counter[str](), 0
    moments, seeds = itertools.cycle(MOMENTS), itertools.count(seed)
    with tempfile.TemporaryDirectory() as kept, ThreadPoolExecutor(parents) as pool:
        forked("recalled", 0, seed, Path(kept))

        def fork_some(moment: str, few: int, seed: int) -> tuple[Counter[str], Counter[str]]:
            found = forked(moment, few, seed, Path(kept) if moment == "recalled" else Path(kept, str(seed)))
            if set(found[0]) != {"right"}:
                sys.stdout.write(f"{moment}, seed {seed}: {dict(found[0])}\n")
                sys.stdout.flush()
            return found

        running = []
        while begun < count:
            moment = next(moments)
            few = min(MOMENTS[moment], max(2, count // len(MOMENTS)))
            begun += few
            running.append(pool.submit(fork_some, moment, few, next(seeds)))
        for each in running:
            for total, found in zip((ended, beside), each.result(), strict=True):
                total.update(found)
    return ended, beside


if __name__ == "__main__":
    sys.exit(main())
