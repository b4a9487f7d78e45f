"""The course of one engine's probe, as a pure state machine: what happened goes in, what to do comes out.

A child lists its devices, then verifies one after the other, and announces each before it touches it. So when it hangs,
dies or talks nonsense, we know which device to blame: that one is set aside, and a new child goes on with the rest.
"""

from __future__ import annotations

import signal

import msgspec

from anygpu.base.units import readable_seconds
from anygpu.errors import InvalidOption
from anygpu.hardware.device import Cause, Device, State, Unavailable
from anygpu.workers.probe_messages import Discovered, Message, ProbeFinished, ProbeItem, ProbeStarted, Raised, Settled

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
        """What is known now; devices that were listed and never reached are still only `usable`."""
        return [*self._items, *(self._listed[name] for name in self._pending if name in self._listed)]

    def received(self, message: Message, now: float) -> list[ProbeAction]:
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
        self._items += items
        self._settled.append(name)
        self._pending = [pending for pending in self._pending if pending != name]
        self._current = self._step_began = None

    def _blame(
        self, cause: Cause, what: str, detail: str | None, now: float, *, fix: str | None = None
    ) -> list[ProbeAction]:
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
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"made the probing process crash ({name})"
    return f"made the probing process exit with code {code}"
