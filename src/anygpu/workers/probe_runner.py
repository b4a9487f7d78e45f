"""Runs the probes: one child process an engine, all at once, under one deadline.

This is the edge: it owns processes, pipes and the clock, and decides nothing. It tells an `EngineProbe` what happened,
and does what that answers.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from anygpu.engines import catalogue
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.protocol import probe as probe_here
from anygpu.hardware.device import Device, Unavailable
from anygpu.workers.child_process import Child
from anygpu.workers.priority import seconds_without_processor, thread_seconds_without_processor
from anygpu.workers.probe_messages import Message, ProbeItem, ProbeRequest, decode_line
from anygpu.workers.probe_state import (
    MOST_EXTENSION,
    EngineProbe,
    ProbeAction,
    ProbeDeadlines,
    StartChild,
    StopChild,
)

#: The name under which the vendors' card readers are probed.
CARDS = "cards"

_LONGEST_LINE = 1 << 20


def run_probes(
    entries: Sequence[EngineEntry],
    *,
    deadlines: ProbeDeadlines,
    with_cards: bool = True,
    deep: bool = False,
    adopt: dict[str, Child | None] | None = None,
    low_priority: bool = False,
    when_done: Callable[[str, list[ProbeItem]], None] = lambda name, items: None,
) -> dict[str, list[ProbeItem]]:
    """Probe the engines (and the cards) in parallel. Returns within the deadline, whatever the drivers do.

    On a busy machine that is later by what the children and this thread wait for the processor; see
    `probe_state.MOST_EXTENSION`.

    The children of engines that are named in `adopt` stay when they have verified a device, and are put there: the
    caller either makes them workers or closes them. With `low_priority` they give way to others, as
    workers too. `when_done` is told of each engine as soon as everything of it is known.
    """
    targets: dict[str, EngineEntry | None] = {}
    results: dict[str, list[ProbeItem]] = {}
    for entry in entries:
        if not catalogue.is_installed(entry):
            results[entry.name] = [_not_installed(entry)]
        elif entry.probe_in == "here":
            results[entry.name] = list(probe_here(catalogue.load(entry), deep=deep))
        else:
            targets[entry.name] = entry
    if with_cards:
        targets[CARDS] = None
    with _Children(targets, deep=deep, deadlines=deadlines, adopt=adopt, low_priority=low_priority) as children:
        children.run(when_done)
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
    """The running children of one call of `run_probes`."""

    def __init__(
        self,
        targets: dict[str, EngineEntry | None],
        *,
        deep: bool,
        deadlines: ProbeDeadlines,
        adopt: dict[str, Child | None] | None,
        low_priority: bool,
    ) -> None:
        self._targets = targets
        self._low_priority = low_priority
        self._adopt = adopt
        self._deep = deep
        self._deadlines = deadlines
        self._events: queue.SimpleQueue[tuple[str, _Child, bytes | None]] = queue.SimpleQueue()
        self._running: dict[str, _Child] = {}
        self.probes: dict[str, EngineProbe] = {}
        self._starved_before = thread_seconds_without_processor(threading.get_native_id())

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for name, child in self._running.items():
            probe = self.probes[name]
            verified = any(isinstance(item, Device) and item.verified for item in probe.results())
            if kind is None and self._adopt is not None and child.child.link is not None and probe.done and verified:
                self._adopt[name] = child.given_away()
            else:
                child.kill()

    def run(self, when_done: Callable[[str, list[ProbeItem]], None]) -> None:
        for name in self._targets:
            # Its time begins now: on a busy machine it takes a while to start the others.
            self.probes[name] = probe = EngineProbe(name, deadlines=self._deadlines, now=time.monotonic())
            self._carry_out(name, probe.begin())
        told: set[str] = set()
        while True:
            unfinished = [probe for probe in self.probes.values() if not probe.done]
            for probe in self.probes.values():
                if probe.done and probe.name not in told:
                    told.add(probe.name)
                    when_done(probe.name, probe.results())
            if not unfinished:
                return
            wait = max(0.0, min(probe.next_deadline for probe in unfinished) - time.monotonic())
            try:
                name, child, line = self._events.get(timeout=wait)
            except queue.Empty:
                self._expire(unfinished)
                continue
            if self._running.get(name) is child:  # else: the last words of a child that was stopped
                self._carry_out(name, self._told(name, child, line))

    def _told(self, name: str, child: _Child, line: bytes | None) -> list[ProbeAction]:
        probe, now = self.probes[name], time.monotonic()
        self._give_time_back(probe, child)
        if line is None and probe.done and child.child.link is not None:
            return []  # it has said all that it had to say, and stays
        if line is None:
            code, last_words = child.child.collect()
            child.child.close()
            return probe.exited(code, last_words, now)
        try:
            message: Message = decode_line(line)
        except msgspec.DecodeError:
            return probe.garbled(line, now)
        return probe.received(message, now)

    def _expire(self, unfinished: Iterable[EngineProbe]) -> None:
        now = time.monotonic()
        for probe in unfinished:
            if now < probe.next_deadline:
                continue
            if (child := self._running.get(probe.name)) is not None:
                self._give_time_back(probe, child)
            if now >= probe.next_deadline:
                self._carry_out(probe.name, probe.expired(now))

    def _give_time_back(self, probe: EngineProbe, child: _Child) -> None:
        """What the child, the thread that reads what it says, and this one have waited for the processor."""
        here = thread_seconds_without_processor(threading.get_native_id()) - self._starved_before
        probe.starved(seconds_without_processor(child.child.process.pid), here + child.reader_starved())

    def _carry_out(self, name: str, actions: Iterable[ProbeAction]) -> None:
        for action in actions:
            match action:
                case StopChild():
                    self._running.pop(name).kill()
                case StartChild(skip=skip):
                    request = ProbeRequest(
                        engine=self._targets[name],
                        deep=self._deep,
                        skip=skip,
                        seconds=self._deadlines.total * (1 + MOST_EXTENSION) + 1,
                        low_priority=self._low_priority,
                    )
                    try:
                        stays = self._adopt is not None and name in self._adopt
                        self._running[name] = _Child(name, request, self._events, stays=stays)
                    except OSError as error:
                        self.probes[name].could_not_start(str(error), time.monotonic())


class _Child:
    """One probing process, and the thread that reads what it says."""

    def __init__(
        self,
        name: str,
        request: ProbeRequest,
        events: queue.SimpleQueue[tuple[str, _Child, bytes | None]],
        *,
        stays: bool,
    ) -> None:
        self.child = Child(request, serves=stays)

        def read() -> None:
            channel = self.child.process.stdout
            # With a limit, so that a child which floods its channel with one endless line cannot fill our memory.
            while channel is not None and (line := channel.readline(_LONGEST_LINE)):
                events.put((name, self, line))
            events.put((name, self, None))

        self._reader = threading.Thread(target=read, name=f"anygpu-probe-{name}", daemon=True)
        self._reader.start()

    def reader_starved(self) -> float:
        """How long the thread that reads has waited for the processor."""
        return thread_seconds_without_processor(self._reader.native_id or 0)

    def kill(self) -> None:
        self.child.kill()
        self._reader.join(timeout=0.3)
        # While it is read, closing the channel would wait for the reader.
        if not self._reader.is_alive():
            self.child.close()

    def given_away(self) -> Child:
        """The process alone, which has said all that it had to say."""
        self._reader.join(timeout=1.0)
        return self.child
