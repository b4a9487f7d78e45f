"""When the gradients of whole batches are compared with those of their parts, and what is said of it."""

from __future__ import annotations

from typing import NamedTuple


class GradientsDiffer(UserWarning):
    """Batches were cut, and a later comparison has shown that their gradients are not those of the whole."""


#: Steps that are cut between two comparisons, at most.
MOST_BETWEEN = 1000


def next_comparison(cut: int) -> int:
    """The number of cut steps after which to compare again: 1, 10, 100, 1,000, 2,000, 3,000 and so on."""
    if cut >= MOST_BETWEEN:
        return (cut // MOST_BETWEEN + 1) * MOST_BETWEEN
    following = 1
    while following <= cut:
        following *= 10
    return following


class Agreement(NamedTuple):
    """What was compared and is the same, in words, and the number of steps that had been cut by then."""

    what: str
    cut: int


class Comparisons:
    """Those of one module, for batches of all forms: rows that meet once parameters have moved do so in any of them."""

    def __init__(self) -> None:
        #: Steps that were cut.
        self.cut = 0
        #: Why no batch is cut any more; empty as long as all comparisons agreed.
        self.failed = ""
        self._next = 0
        self._last: int | None = None

    @property
    def is_due(self) -> bool:
        return self.cut >= self._next

    def agreed(self, what: str) -> Agreement:
        """`what` was compared before the present step, and is the same."""
        self._last = self.cut
        if self.is_due:
            self._next = next_comparison(self.cut)
        return Agreement(what, self.cut)

    def differed(self, why: str) -> None:
        self.failed = why

    def ran_cut(self) -> None:
        self.cut += 1

    def sentence(self, agreement: Agreement) -> str:
        """What was compared, and when, seen from the present step, which has not been counted."""
        ago = self.cut - agreement.cut
        when = "in this step" if ago == 0 else f"{ago} cut step{'s' if ago > 1 else ''} ago"
        return f"{agreement.what}, compared {when}"

    def not_compared(self) -> str:
        """The steps whose gradients a failed comparison puts in doubt."""
        count = self.cut if self._last is None else self.cut - self._last - 1
        if count <= 0:
            return "The steps that were cut before had been compared"
        return (
            f"{count} step{'s' if count > 1 else ''} cut since the last comparison may have had other gradients than "
            "those of the whole batch"
        )
