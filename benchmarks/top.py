"""What looking at processes costs: `python -m benchmarks.top [--rate 2000] [--seconds 10] [--json] [--check]`.

Four observed processes make so many calls a second each. `anygpu top` follows them in a terminal of its own: how long
it takes from a key to the new screen, and what share of a core it needs. Apart from it: how long an answer takes, what
it costs the process that gives it, and that `top` goes on when processes are killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator

import psutil

from anygpu.observe.looking import NoAnswer, ObservedProcess, observed_processes
from anygpu.observe.sockets import VARIABLE
from benchmarks.report import Figure, options_parser, publish, say

PROCESSES = 4
MOST_SECONDS, MOST_SHARE = 0.2, 0.10


class Terminal:
    """A program in a terminal of 120 × 36."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def read(self, seconds: float) -> bytes:
        """What it writes within that time; returns with the first of it."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, seconds))
        try:
            return os.read(self._ours, 1 << 16) if ready else b""
        except OSError:  # it has ended
            return b""

    def read_until(self, words: bytes, seconds: float) -> float | None:
        """The seconds until it has written them; `None` if it has not."""
        begin, got = time.perf_counter(), b""
        while time.perf_counter() - begin < seconds:
            got += self.read(begin + seconds - time.perf_counter())
            if words in got:
                return time.perf_counter() - begin
        return None

    def drain(self, seconds: float) -> bytes:
        end, got = time.monotonic() + seconds, b""
        while time.monotonic() < end:
            got += self.read(end - time.monotonic())
        return got

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def loaded(rate: float, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "benchmarks.top_load", "--rate", f"{rate:g}"]
    # What they log of themselves is not what is measured.
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(PROCESSES)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def found(count: int, seconds: float = 60.0) -> list[ObservedProcess]:
    """So many processes that answer and have made calls."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ready = []
        for each in observed_processes():
            with contextlib.suppress(NoAnswer):
                ready += [each] if each.ask(None).statistics.calls else []
        if len(ready) == count:
            return ready
        time.sleep(0.1)
    raise RuntimeError(f"there are not {count} processes after {seconds:g} s")


def processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def answers(processes: list[ObservedProcess], count: int) -> tuple[list[float], float]:
    """Seconds that answers took, and processor time of the process for one: with questions less without."""
    taken, costs = [], []
    for process in processes:
        for _ in range(3):
            begin, used = time.perf_counter(), processor_seconds(process.pid)
            for _ in range(count):
                asked = time.perf_counter()
                process.ask(None)
                taken.append(time.perf_counter() - asked)
            elapsed, with_questions = time.perf_counter() - begin, processor_seconds(process.pid) - used
            used = processor_seconds(process.pid)
            time.sleep(elapsed)
            costs.append((with_questions - (processor_seconds(process.pid) - used)) / count)
    return taken, statistics.median(costs)


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rate", type=float, default=2000.0, help="calls of each process in a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the share of a core is measured")
    options = parser.parse_args()
    figures: list[Figure] = []

    def add(name: str, value: float, unit: str, bound: float | None = None) -> None:
        figures.append(Figure(name=name, value=value, unit=unit, bound=bound))

    with tempfile.TemporaryDirectory(prefix="anygpu-top-") as folder, contextlib.ExitStack() as opened:
        os.chmod(folder, 0o700)  # noqa: PTH101 - as it is
        os.environ[VARIABLE] = folder
        environment = dict(os.environ, TERM="xterm-256color", ANYGPU_TUNING_SECONDS="0")
        load = opened.enter_context(loaded(options.rate, environment))
        processes = found(PROCESSES)
        before = {each.pid: each.ask(None) for each in processes}
        taken, cost = answers(processes, 50)
        add("an answer, middle", statistics.median(taken) * 1e3, "ms")
        add("an answer, 99 of 100", sorted(taken)[int(len(taken) * 0.99)] * 1e3, "ms", MOST_SECONDS * 1e3)
        add("processor time of an answer", cost * 1e3, "ms")
        after = {each.pid: each.ask(None) for each in processes}
        rates = [
            (sum(c.calls for c in after[pid].statistics.calls) - sum(c.calls for c in before[pid].statistics.calls))
            / (after[pid].time - before[pid].time)
            for pid in before
        ]
        say(f"{sum(rates):,.0f} calls/s in {PROCESSES} processes")
        command = [sys.executable, "-m", "anygpu", "top"]
        top = Terminal(command, environment)
        opened.callback(top.close)
        if top.read_until(b"normalise", 60.0) is None:
            raise RuntimeError("top has shown no function within a minute")
        top.drain(3.0)
        pid = top.process.pid
        used, begin = processor_seconds(pid), time.monotonic()
        top.drain(options.seconds)
        share = (processor_seconds(pid) - used) / (time.monotonic() - begin)
        add("top's share of a core", share * 100, "%", MOST_SHARE * 100)
        pressed = []
        for _ in range(10):
            for key, words in (("2", b"COMMAND"), ("1", b"FUNCTION")):
                top.drain(0.2)
                top.press(key)
                shown = top.read_until(words, 5.0)
                pressed.append(5.0 if shown is None else shown)
        say("from keys to the screen, in ms: " + " ".join(f"{each * 1e3:.0f}" for each in pressed))
        add("from a key to the screen, middle", statistics.median(pressed) * 1e3, "ms")
        add("from a key to the screen, longest of 20", max(pressed) * 1e3, "ms", MOST_SECONDS * 1e3)
        for each in load[:2]:
            each.kill()
        seconds = top.read_until(b"2 processes", 20.0)
        add("until two killed processes are gone", (99.0 if seconds is None else seconds) * 1e3, "ms", 5000.0)
        for each in load[2:]:
            each.kill()
        seconds = top.read_until(b"0 processes", 20.0)
        add("until all are gone", (99.0 if seconds is None else seconds) * 1e3, "ms", 5000.0)
        if top.process.poll() is not None:
            raise RuntimeError(f"top has ended with {top.process.returncode}")
        top.press("q")
        if top.process.wait(10.0) != 0:
            raise RuntimeError(f"top has ended with {top.process.returncode} when q was pressed")
    publish(figures, options)


if __name__ == "__main__":
    main()
