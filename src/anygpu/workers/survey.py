"""Runs the probes: one child process an engine, all at once, under one deadline.

This is the edge. It owns processes, pipes and the clock, and decides nothing: it tells `Probe` what happened and does
what `Probe` answers.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from anygpu.engines import catalogue
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.protocol import probe as probe_here
from anygpu.hardware.device import Unavailable
from anygpu.workers.messages import Item, Message, ProbeRequest, decode_line
from anygpu.workers.probing import Action, Deadlines, Probe, Start, Stop

#: The name under which the vendors' card readers are probed.
CARDS = "cards"

#: Appends rather than prepends, so that nothing in the caller's folders can shadow a library in the child.
_BOOTSTRAP = "import sys; sys.path.append(sys.argv.pop(1)); from anygpu.workers.child import main; main()"

_LAST_WORDS = 4000
_LONGEST_LINE = 1 << 20


def survey(
    entries: Sequence[EngineEntry], *, deadlines: Deadlines, with_cards: bool = True, deep: bool = False
) -> dict[str, list[Item]]:
    """Probe the engines (and the cards) in parallel. Returns within the deadline, whatever the drivers do."""
    targets: dict[str, EngineEntry | None] = {}
    results: dict[str, list[Item]] = {}
    for entry in entries:
        if not catalogue.is_installed(entry):
            results[entry.name] = [_not_installed(entry)]
        elif entry.probe_in == "here":
            results[entry.name] = list(probe_here(catalogue.load(entry), deep=deep))
        else:
            targets[entry.name] = entry
    if with_cards:
        targets[CARDS] = None
    with _Children(targets, deep=deep, deadlines=deadlines) as children:
        children.run()
        results |= {name: probe.results() for name, probe in children.probes.items()}
    return results


def _not_installed(entry: EngineEntry) -> Unavailable:
    return Unavailable(
        id=entry.name,
        engine=entry.name,
        state="absent",
        cause="not_installed",
        reason=f"{entry.requires} is not installed.",
        fix=entry.install_command,
    )


class _Children:
    """The running children of one survey."""

    def __init__(self, targets: dict[str, EngineEntry | None], *, deep: bool, deadlines: Deadlines) -> None:
        self._targets = targets
        self._deep = deep
        self._deadlines = deadlines
        self._events: queue.SimpleQueue[tuple[str, _Child, bytes | None]] = queue.SimpleQueue()
        self._running: dict[str, _Child] = {}
        now = time.monotonic()
        self.probes = {name: Probe(name, deadlines=deadlines, now=now) for name in targets}

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            child.kill()

    def run(self) -> None:
        for name, probe in self.probes.items():
            self._carry_out(name, probe.begin())
        while unfinished := [probe for probe in self.probes.values() if not probe.done]:
            wait = max(0.0, min(probe.next_deadline for probe in unfinished) - time.monotonic())
            try:
                name, child, line = self._events.get(timeout=wait)
            except queue.Empty:
                self._expire(unfinished)
                continue
            if self._running.get(name) is child:  # else: the last words of a child that was stopped
                self._carry_out(name, self._told(name, child, line))

    def _told(self, name: str, child: _Child, line: bytes | None) -> list[Action]:
        probe, now = self.probes[name], time.monotonic()
        if line is None:
            code, last_words = child.collect()
            return probe.exited(code, last_words, now)
        try:
            message: Message = decode_line(line)
        except msgspec.DecodeError:
            return probe.garbled(line, now)
        return probe.received(message, now)

    def _expire(self, unfinished: Iterable[Probe]) -> None:
        now = time.monotonic()
        for probe in unfinished:
            if now >= probe.next_deadline:
                self._carry_out(probe.name, probe.expired(now))

    def _carry_out(self, name: str, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Stop():
                    self._running.pop(name).kill()
                case Start(skip=skip):
                    request = ProbeRequest(
                        engine=self._targets[name],
                        deep=self._deep,
                        skip=skip,
                        seconds=self._deadlines.total + 1,
                    )
                    try:
                        self._running[name] = _Child(name, request, self._events)
                    except OSError as error:
                        self.probes[name].could_not_start(str(error), time.monotonic())


class _Child:
    """One probing process, and the thread that reads what it says."""

    def __init__(
        self, name: str, request: ProbeRequest, events: queue.SimpleQueue[tuple[str, _Child, bytes | None]]
    ) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            # In a frozen application sys.executable is the application: starting it would start it again.
            raise OSError("there is no Python interpreter to start a probe with")
        # A file and not a pipe: a driver that floods it cannot block, and nobody has to read it in time.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP, root, msgspec.json.encode(request).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

        def read() -> None:
            assert self._process.stdout is not None
            # With a limit, so that a child which floods its channel with one endless line cannot fill our memory.
            while line := self._process.stdout.readline(_LONGEST_LINE):
                events.put((name, self, line))
            events.put((name, self, None))

        self._reader = threading.Thread(target=read, name=f"anygpu-probe-{name}", daemon=True)
        self._reader.start()

    def collect(self) -> tuple[int, str]:
        """The exit code and the last words of a child that closed its channel."""
        try:
            code = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(timeout=0.5)
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - _LAST_WORDS))
        words = self._stderr.read().decode("utf-8", "replace").strip()
        self._close()
        return code, words

    def kill(self) -> None:
        self._process.kill()
        # A process that is stuck inside a driver cannot be reaped; it must not hold us up as well.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.3)
            self._reader.join(timeout=0.3)
            self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()
