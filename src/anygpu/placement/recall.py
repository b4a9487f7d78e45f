"""The history as placement uses it: reads what earlier processes have learnt of a call site, and leaves it for the
next.

The history only says what is worth opening, and what need not be tried: results are compared with NumPy's in every
process anew, and a time that turns out to be wrong is not believed twice.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from anygpu.calls.background import looking_at_once
from anygpu.engines.catalogue import entry_of, is_automatic
from anygpu.hardware.device import Device
from anygpu.placement.history.history import CallHistory, measured_text
from anygpu.placement.history.records import Habit, device_stamp, function_hash, function_name, signature_hash
from anygpu.placement.plan.candidate_history import Remembered, is_worth_opening
from anygpu.workers.worker import isolation_of

if TYPE_CHECKING:
    from anygpu.placement.call_site import CallSite

#: Opening a device and looking at the machine, as long as the device is not known.
_OPENING = 0.7
#: Earlier processes of which the seconds count.
_MOST_PROCESSES = 10


class _Site(NamedTuple):
    """A call site as the history knows it."""

    function: str
    signature: str
    name: str
    habit: Habit | None

    @property
    def earlier(self) -> float:
        """The seconds that earlier processes have spent in such calls, as far as that counts."""
        return self.habit.seconds * min(self.habit.processes, _MOST_PROCESSES) if self.habit is not None else 0.0


class Recall:
    """Reads and writes the history for the call sites of one planner."""

    def __init__(
        self,
        history: CallHistory,
        find_device: Callable[[str], Device | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`find_device` finds a device of this machine by its id, if the machine has been looked at."""
        self._history = history
        self._find_device = find_device
        self._clock = clock
        self._stamps: dict[str, str] = {}
        self._sites: weakref.WeakKeyDictionary[CallSite, _Site] = weakref.WeakKeyDictionary()
        #: The names of forms of opaque tasks, which stand for programs.
        self._opaque: weakref.WeakKeyDictionary[CallSite, str] = weakref.WeakKeyDictionary()
        #: Those that have been told what is remembered.
        self._begun: weakref.WeakSet[CallSite] = weakref.WeakSet()
        #: Seconds of calls in earlier processes, of call sites of which no device is known: what exploring may cost.
        self.earlier_seconds = 0.0
        #: Calls and seconds of each that the history was told of.
        self._told: weakref.WeakKeyDictionary[CallSite, tuple[int, float]] = weakref.WeakKeyDictionary()

    def prepare(self, devices: Iterable[Device]) -> None:
        """Make the stamps of devices and ask the history once, in the background: both take milliseconds the first
        time.
        """
        for device in devices:
            self._stamp(device.id)
        self._history.timings("0" * 32)

    def _stamp(self, name: str) -> str | None:
        """The stamp of a device: what has to be the same for a time to hold; `None` while the device is not known."""
        if name not in self._stamps:
            device = self._find_device(name)
            if device is None:
                return None
            entry = entry_of(name)
            self._stamps[name] = device_stamp(device, entry.versions, isolation_of(entry))
        return self._stamps[name]

    def begin(self, site: CallSite, function: Callable[..., Any], key: Hashable) -> None:
        """Tell the chooser of a call site, once it is traced, what earlier processes know of the program on these
        devices.

        Times with another stamp are left out. Seconds of sites for which no device is known yet add to
        `earlier_seconds`.
        """
        traced = site.programs.current
        if traced is None or site in self._begun:
            return
        found = self._find(site, function, key)
        if found is None:
            return
        self._begun.add(site)
        known = self._remembered(traced.program.key, found.habit)
        current = {name: each for name, each in known.items() if self._stamp(name) == each[0]}
        site.chooser.recall({name: memory for name, (_, memory) in current.items()})
        if found.habit is not None and not any(self._may_move_to(name) for name in current):
            self.earlier_seconds += found.earlier

    def opaque(
        self, site: CallSite, function: Callable[..., Any], program: str
    ) -> tuple[dict[str, dict[int, int]], bool]:
        """The peaks of an opaque task by device and rows, as earlier processes have seen them on the same devices; and
        whether they have found that rows must not be stacked.
        """
        self.keep_opaque(site, function, program)
        known = [each for each in self._history.timings(program) if self._stamp(each.device) == each.stamp]
        peaks = {each.device: {peak.rows: peak.bytes for peak in each.peaks} for each in known}
        return peaks, any(each.disagreed is not None for each in known)

    def keep_opaque(self, site: CallSite, function: Callable[..., Any], program: str) -> None:
        """Keep what calls of an opaque task take, under the name of its form: rows are no part of the signature."""
        if site not in self._opaque and self._find(site, function, ("opaque", program)) is not None:
            self._opaque[site] = program

    def peaked(self, program: str, device: str, rows: int, nbytes: int) -> None:
        """Keep the peak memory of a call of an opaque task with so many rows, in bytes."""
        stamp = self._stamp(device)
        if stamp is not None:
            self._history.peaked(program, device, stamp, rows, nbytes)

    def rows_disagreed(self, program: str, device: str) -> None:
        """Keep that stacked rows of an opaque task gave other results than separate ones."""
        stamp = self._stamp(device)
        if stamp is not None:
            self._history.disagreed(program, device, stamp)

    def pays(self, site: CallSite, function: Callable[..., Any], key: Hashable) -> bool:
        """Whether such calls will pay for a look at the machine, which few calls alone would not be worth.

        Earlier processes have found a faster device, or have spent long in such calls and not found out yet.
        """
        found, seconds = self._find(site, function, key), site.chooser.estimate("numpy")
        if found is None or found.habit is None or seconds is None:
            return False
        program = found.habit.program
        known = self._remembered(program, found.habit) if program is not None else {}
        others = [memory for name, (_, memory) in known.items() if self._may_move_to(name)]
        if not others:
            return found.earlier > looking_at_once()
        return any(is_worth_opening(memory, seconds, _OPENING, site.chooser.calls) for memory in others)

    def _may_move_to(self, name: str) -> bool:
        """Whether calls may leave NumPy for the device, as far as it is known."""
        return name != "numpy" and is_automatic(name, self._find_device(name))

    def _find(self, site: CallSite, function: Callable[..., Any], key: Hashable) -> _Site | None:
        """The call site as the history knows it, asked once."""
        found = self._sites.get(site)
        if found is None:
            hashed = function_hash(function)
            if hashed is None:
                return None
            signature = signature_hash(key)
            habit = self._history.habit(hashed, signature)
            found = _Site(hashed, signature, function_name(function), habit)
            self._sites[site] = found
        return found

    def _remembered(self, program: str, habit: Habit | None) -> dict[str, tuple[str, Remembered]]:
        """The last timing of the program on each device, with the stamp that the device had then."""
        now = self._clock()
        calls = habit.calls if habit is not None else 0
        known = sorted(self._history.timings(program), key=lambda each: each.when)
        return {
            each.device: (
                each.stamp,
                Remembered(each.seconds, each.compile or 0.0, calls, measured_text(each, now), each.doubtful),
            )
            for each in known
            if each.seconds is not None and each.disagreed is None
        }

    def disagreed(self, site: CallSite, device: str) -> None:
        """Keep that a device was wrong for the program of a call site."""
        stamp, traced = self._stamp(device), site.programs.current
        if traced is not None and stamp is not None:
            self._history.disagreed(traced.program.key, device, stamp)

    def save(self, seconds: float | None = None) -> None:
        """Tell the history what has happened since the last time, and have it written."""
        for site, found in list(self._sites.items()):
            self._tell(site, found)
        if seconds is None:
            self._history.flush()
        else:
            self._history.flush(seconds)

    def _tell(self, site: CallSite, found: _Site) -> None:
        """Tell the history of a call site's calls since the last time."""
        chooser, traced = site.chooser, site.programs.current
        told_calls, told_seconds = self._told.get(site, (0, 0.0))
        calls, seconds = site.host.totals
        if calls <= told_calls:
            return
        self._told[site] = calls, seconds
        program = traced.program.key if traced is not None else self._opaque.get(site)
        self._history.called(
            found.function,
            found.signature,
            max(0.0, seconds - told_seconds),
            calls - told_calls,
            name=found.name,
            program=program,
        )
        if program is None:
            return
        for device, track in list(chooser.tracks.items()):
            took = track.estimate if track.estimate is not None else track.rough
            if not track.calls or took is None:
                continue
            stamp = self._stamp(device)
            if stamp is None:  # the device is gone
                continue
            self._history.ran(program, device, stamp, took, track.calls, disturbed=track.disturbed)
            track.calls = 0
            if track.agreed:
                self._history.agreed(program, device, stamp)
