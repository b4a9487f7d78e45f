"""Runs the probes: one child process an engine, all at once, under one deadline.

This is the edge: it owns processes, pipes and the clock, and decides nothing. It tells an `EngineProbe` what happened,
and does what that answers.
"""

from __future__ import annotations

import io
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import msgspec

from anygpu.base.units import readable_seconds
from anygpu.engines import catalogue
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.protocol import probe as probe_here
from anygpu.errors import InvalidOption
from anygpu.hardware.device import Cause, Device, State, Unavailable
from anygpu.workers.child_messages import (
    Discovered,
    Message,
    ProbeFinished,
    ProbeItem,
    ProbeRequest,
    ProbeStarted,
    Raised,
    Settled,
    decode_line,
)
from anygpu.workers.child_process import Child
from anygpu.workers.child_start import seconds_without_processor, thread_seconds_without_processor

# -- the course of one engine's probe, as a pure state machine: what happened goes in, what to do comes out
#
# A child lists its devices, then verifies one after the other, and announces each before it touches it. So when it
# hangs, dies or talks nonsense, we know which device to blame: that one is set aside, and a new child goes on with the
# rest.


#: On a busy machine deadlines are later by what a child has waited for the processor, and at most by so many times.
MOST_EXTENSION = 2.0


class ProbeDeadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a probe may take in all, and how long one device may be silent."""

    total: float
    step: float

    @classmethod
    def within(cls, seconds: float) -> ProbeDeadlines:
        """One silent device must leave time to look at the others, and a slow card may need seconds to wake up."""
        if not seconds > 0:
            raise InvalidOption(f"timeout is a number of seconds, more than 0; got {seconds:g}.")
        return cls(total=seconds, step=max(seconds * 0.4, min(6.0, seconds * 0.6)))


class StartChild(msgspec.Struct, frozen=True):
    """Start a child that leaves out what is settled."""

    skip: tuple[str, ...]


class StopChild(msgspec.Struct, frozen=True):
    """Kill the child that is running; what it still says no longer counts."""


ProbeAction = StartChild | StopChild


class EngineProbe:
    """One engine (or the card readers) being probed. Holds no process, file or clock."""

    def __init__(self, name: str, *, deadlines: ProbeDeadlines, now: float) -> None:
        """Starts the clock of one probe. Times are those of the caller's clock, in seconds.

        Time in which the child or its reader waited for a processor is not counted: it is slow then, and does not hang.
        """
        self.name = name
        self.done = False
        self._deadlines = deadlines
        self._began = now
        self._step_began: float | None = None
        self._current: str | None = None
        self._pending: list[str] = []
        self._listed: dict[str, Device] = {}
        self._settled: list[str] = []
        self._items: list[ProbeItem] = []
        #: Seconds of waiting for the processor: of earlier children, of the one that runs, of whoever listens to them,
        #: and of all when the current step began.
        self._starved_before = self._starved = self._listener_starved = self._starved_at_step = 0.0

    def begin(self) -> list[ProbeAction]:
        return [StartChild(())]

    @property
    def next_deadline(self) -> float:
        """When `expired` must be called if nothing else happens before."""
        total, step = self._deadlines.total, self._deadlines.step
        starved = self._starved_in_all
        last = self._began + total + min(starved, MOST_EXTENSION * total)
        if self._step_began is None:
            return last
        starved -= self._starved_at_step
        return min(last, self._step_began + step + min(starved, MOST_EXTENSION * step))

    def starved(self, seconds: float, listener: float = 0.0) -> None:
        """The child that runs has waited so long for the processor since it was started: it is slow, not silent.

        So has the `listener`, since the probe began: what the child says is heard later by as much.
        """
        self._starved = max(self._starved, seconds)
        self._listener_starved = max(self._listener_starved, listener)

    @property
    def _starved_in_all(self) -> float:
        return self._starved_before + self._starved + self._listener_starved

    def results(self) -> list[ProbeItem]:
        """The findings so far; devices that were listed and never reached are still only `usable`."""
        return [*self._items, *(self._listed[name] for name in self._pending if name in self._listed)]

    def received(self, message: Message, now: float) -> list[ProbeAction]:
        """Take in one message of the child, and return what to do next."""
        match message:
            case Discovered(pending=pending, items=items):
                self._pending = list(pending)
                self._listed |= {item.id: item for item in items if isinstance(item, Device)}
                known = {item.id for item in self._items}
                self._items += [item for item in items if not isinstance(item, Device) and item.id not in known]
            case ProbeStarted(name=name):
                self._current, self._step_began = name, now
                self._starved_at_step = self._starved_in_all
            case Settled(name=name, items=items):
                self._settle(name, *items)
            case Raised(error=error, message=words, importing=importing):
                what = f"could not be {'imported' if importing else 'probed'}: it raised {error}"
                return [StopChild(), *self._blame("import_failed" if importing else "failed", what, words, now)]
            case ProbeFinished():
                self.done = True
        return []

    def garbled(self, line: bytes, now: float) -> list[ProbeAction]:
        """The child sent something that is not a message."""
        shown = line[:80].decode("utf-8", "replace").rstrip()
        return [StopChild(), *self._blame("garbage", "sent an unreadable response", f"it sent {shown!r}", now)]

    def exited(self, code: int, last_words: str, now: float) -> list[ProbeAction]:
        """The child is gone. After `ProbeFinished` that is how it should be."""
        if self.done:
            return []
        return self._blame("crashed", _how_it_died(code), last_words or None, now)

    def expired(self, now: float) -> list[ProbeAction]:
        """The time in `next_deadline` has come."""
        waited = now - (self._step_began or self._began)
        starved = self._starved_in_all - (self._starved_at_step if self._step_began is not None else 0)
        fix = _BUSY if starved > waited / 2 else _SLOW if self._may_be_slow() else None
        what = f"did not respond within {readable_seconds(waited)}"
        return [StopChild(), *self._blame("hung", what, None, now, fix=fix)]

    def _may_be_slow(self) -> bool:
        """Whether what did not respond runs on the processor: a library that is loaded, or a device that is none."""
        device = self._listed.get(self._current or "")
        return self._current is None or (device is not None and device.kind == "cpu")

    def could_not_start(self, why: str, now: float) -> list[ProbeAction]:
        fix = f"{why[:1].upper()}{why[1:]}."
        return self._blame("failed", "could not be probed: no child process could be started", why, now, fix=fix)

    def _settle(self, name: str, *items: ProbeItem) -> None:
        """Notes that a device is dealt with, and what was found of it: a later child leaves it out."""
        self._items += items
        self._settled.append(name)
        self._pending = [pending for pending in self._pending if pending != name]
        self._current = self._step_began = None

    def _blame(
        self, cause: Cause, what: str, detail: str | None, now: float, *, fix: str | None = None
    ) -> list[ProbeAction]:
        """Reports the device or engine at which a probe failed as unavailable.

        If others are still to be verified and there is time, another child is started that leaves out what is settled.
        """
        state: State = "hung" if cause == "hung" else "absent" if cause == "import_failed" else "present"
        culprit = self._current
        if cause in ("hung", "crashed", "garbage"):
            verifying = culprit in self._listed
            what += " while it was verified" if verifying else " while it was read" if culprit else _LISTING
        device = self._listed.get(culprit or "")
        subject = f"{device.name} ({device.api})" if device else culprit or self.name
        item = Unavailable(
            id=culprit or self.name,
            engine=device.engine if device else culprit or self.name,
            state=state,
            cause=cause,
            reason=f"{subject} {what}.",
            fix=fix or _FIXES.get(cause),
            detail=detail,
            pci=device.pci if device else None,
        )
        if culprit is None:
            self._items.append(item)
            self.done = True
            return []
        self._settle(culprit, item)
        self._starved_before, self._starved = self._starved_before + self._starved, 0.0
        out_of_time = now >= self.next_deadline
        if not self._pending or out_of_time:
            self.done = True
            return []
        return [StartChild(tuple(self._settled))]


_BUSY = "The machine is very busy: try again when it is calmer."
_SLOW = "It may need more time, as large libraries do when they are first loaded: run `anygpu doctor --timeout 120`."
_LISTING = " while its devices were listed"

_FIXES: dict[Cause, str] = {
    "import_failed": "Install the library again; its own message is in `anygpu doctor --json`.",
    "failed": "Report it with the output of `anygpu doctor --json`.",
    "hung": "Restart the machine, or reset the device; then update its driver. Until then it is skipped.",
    "crashed": "Update the device's driver. Until then it is skipped, and the other devices are used.",
    "garbage": "Something prints into the probe, such as a sitecustomize; `anygpu doctor --json` shows what.",
}


def _how_it_died(code: int) -> str:
    """Returns part of a sentence on how the child ended: by a signal, or with an exit code."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"made the probing process crash ({name})"
    return f"made the probing process exit with code {code}"


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
    """The entry for an engine whose library is missing, with the command that installs it."""
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
        """Starts no child yet. `adopt` is filled with children that verified a device and wait to become its worker."""
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
        """Ends the children that are left: those that can become workers are given away, the others are killed."""
        for name, child in self._running.items():
            probe = self.probes[name]
            verified = any(isinstance(item, Device) and item.verified for item in probe.results())
            if kind is None and self._adopt is not None and child.child.link is not None and probe.done and verified:
                self._adopt[name] = child.given_away()
            else:
                child.kill()

    def run(self, when_done: Callable[[str, list[ProbeItem]], None]) -> None:
        """Runs all probes to their end: starts their children, and feeds messages and deadlines to them.

        `when_done` is called with each engine's results as soon as its probe is over, on this thread.
        """
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
        """The actions after a line of a child, or after its end if `line` is `None`."""
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
        """Stop the children whose deadline is over, not counting time that they waited for a processor."""
        now = time.monotonic()
        for probe in unfinished:
            if now < probe.next_deadline:
                continue
            if (child := self._running.get(probe.name)) is not None:
                self._give_time_back(probe, child)
            if now >= probe.next_deadline:
                self._carry_out(probe.name, probe.expired(now))

    def _give_time_back(self, probe: EngineProbe, child: _Child) -> None:
        """Extend the deadline by the time that the child, its reader and this thread waited for a processor."""
        here = thread_seconds_without_processor(threading.get_native_id()) - self._starved_before
        probe.starved(seconds_without_processor(child.child.process.pid), here + child.reader_starved())

    def _carry_out(self, name: str, actions: Iterable[ProbeAction]) -> None:
        """Start or stop the child of a probe."""
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
        """Starts the process, and a daemon thread that puts each of its lines into `events`, and `None` at its end."""
        self.child = Child(request, serves=stays)

        def read() -> None:
            with io.BufferedReader(cast("io.FileIO", self.child.process.stdout)) as channel:
                # With a limit, so that a child which floods its channel with one endless line cannot fill our memory.
                while line := channel.readline(_LONGEST_LINE):
                    events.put((name, self, line))
            events.put((name, self, None))

        self._reader = threading.Thread(target=read, name=f"anygpu-probe-{name}", daemon=True)
        self._reader.start()

    def reader_starved(self) -> float:
        """How long the thread that reads has waited for the processor."""
        return thread_seconds_without_processor(self._reader.native_id or 0)

    def kill(self) -> None:
        """Kills the process; its files are closed only if the thread that reads them has ended."""
        self.child.kill()
        self._reader.join(timeout=0.3)
        # While it is read, closing the channel would wait for the reader.
        if not self._reader.is_alive():
            self.child.close()

    def given_away(self) -> Child:
        """The process alone, which has said all that it had to say."""
        self._reader.join(timeout=1.0)
        return self.child
