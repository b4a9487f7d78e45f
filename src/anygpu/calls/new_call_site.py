"""Call sites whose calls will be planned, before planning is known to pay."""

from __future__ import annotations

from anygpu.calls import loading
from anygpu.calls.lifecycle import Life, State, step
from anygpu.calls.site import NumpySite
from anygpu.receipts.notes import HostNote

#: Seconds of calls before planning one, which takes 50 µs, and before importing planning, which takes 0.1 s.
BEFORE_PLANNING, BEFORE_LOADING = 1e-3, 0.3


class NewCallSite(NumpySite):
    """Calls that will be planned once they have taken long enough.

    None of them waits for the import of planning, which runs on a thread meanwhile.
    """

    __slots__ = ("_life",)

    def __init__(self, note: HostNote) -> None:
        super().__init__(note)
        self._life = Life(look_at=BEFORE_PLANNING if loading.is_loaded() else BEFORE_LOADING)

    @property
    def state(self) -> State:
        return self._life.state

    def ran(self, seconds: float) -> None:
        """Count a call; begin to import planning, or have the next call planned, when it is time."""
        super().ran(seconds)
        if self.seconds >= self._life.look_at:
            self._maybe_plan()

    def _maybe_plan(self) -> None:
        """Begin to import planning, or have the next call planned if it is imported."""
        if not loading.is_loaded():
            loading.begin()
            self._life = step(self._life, "load", look_at=self.seconds)
        if not loading.is_under_way():  # where the import has failed, the next call raises the error
            self._life = step(self._life, "plan")
            self.runs_as_is = False
