"""The interface of call sites that a decorated function uses, and the simplest site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from anygpu.receipts.notes import HostNote

if TYPE_CHECKING:
    from collections.abc import Callable

    from anygpu.placement.plan.choosing import DeviceChooser

#: In place of the value of a call that must be planned.
NEEDS_PLANNING: Any = object()


class Site(Protocol):
    """Runs the next call of one kind. A decorated function reads it in every call, without a lock."""

    @property
    def note(self) -> HostNote:
        """The note from which receipts of calls on NumPy are made."""

    @property
    def runs_as_is(self) -> bool:
        """Return whether the caller runs the user's function itself in the next call, and reports to `ran`."""

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Run any other call that began at `begin`; return its value, or `NEEDS_PLANNING`."""

    def ran(self, seconds: float) -> None:
        """Count a call that the caller ran itself."""


class NumpySite:
    """Calls that stay on NumPy: no other device is allowed, or others are of no interest yet."""

    __slots__ = ("calls", "note", "runs_as_is", "seconds")

    def __init__(self, note: HostNote) -> None:
        self.note = note
        self.runs_as_is = True
        self.calls, self.seconds = 0, 0.0

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Have the call planned."""
        return NEEDS_PLANNING

    def ran(self, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        self.seconds += seconds

    def report_to(self, chooser: DeviceChooser) -> float:
        """Report all calls to the chooser of the site that takes over; return the seconds that they took together."""
        chooser.baseline_ran(self.calls, self.seconds)
        return self.seconds
