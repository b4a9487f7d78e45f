"""A call site whose calls will be planned, before that is known to pay."""

from __future__ import annotations

from anygpu.placement import loading
from anygpu.placement.known import NumpySite
from anygpu.receipts.notes import HostNote

#: Calls of one kind run for so long before one is planned, which takes some 50 µs.
_BEFORE_PLANNING = 1e-3
#: The same before what plans calls is loaded, which takes some 0.1 s.
_BEFORE_LOADING = 0.3


class NewCallSite(NumpySite):
    """A call site whose calls run on NumPy until they have taken long enough to be planned.

    None of them waits for the import of planning, which runs on a thread meanwhile.
    """

    __slots__ = ("_until", "skip_planning")

    def __init__(self, note: HostNote) -> None:
        super().__init__(note)
        self.skip_planning = 1
        self._until = _BEFORE_PLANNING if loading.is_loaded() else _BEFORE_LOADING

    def ran_on_host(self, seconds: float) -> None:
        """Count a call, which took so many seconds; begin to load planning, or have the next call planned, when it is
        time.
        """
        super().ran_on_host(seconds)
        if self.seconds >= self._until and not loading.is_loaded():
            loading.begin()
        if self.seconds >= self._until and not loading.is_under_way():
            self.skip_planning = 0  # where loading has failed, the next call raises the error
