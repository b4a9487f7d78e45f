"""The last calls of a notebook, for `%anygpu receipts`, and the notices of `%%offload`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from anygpu.base.units import readable_seconds
from anygpu.notebook.markup import framed, join, paragraph, tag
from anygpu.notebook.receipts import receipts_table
from anygpu.notes import Failure, Origin, Seen, made
from anygpu.receipts import Receipt

MOST_KEPT = 200


class Keeping:
    """Observes calls, and keeps the last ones as they left them: making a receipt takes longer than a small call."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=MOST_KEPT)

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        self._seen.append(seen)

    def last(self, count: int) -> LastCalls:
        return LastCalls([each if isinstance(each, Failure) else made(each) for each in list(self._seen)[-count:]])


class LastCalls(list[Receipt | Failure]):
    """Calls in the order in which they ended."""

    def __repr__(self) -> str:
        if not self:
            return _NONE
        return "\n".join(_failed(each) if isinstance(each, Failure) else str(each) for each in self)

    def _repr_html_(self) -> str:
        if not self:
            return framed("Receipts", paragraph(_NONE))
        return framed("Receipts", receipts_table(self))


_NONE = "No offloaded function has been called since %load_ext anygpu."


def _failed(failure: Failure) -> str:
    took = readable_seconds(failure.end - failure.begin)
    return f"{failure.task} raised {failure.error} on {failure.device} after {took}."


class Said(NamedTuple):
    """What became of one function of a cell."""

    function: str
    #: The rest of a sentence.
    what: str


class Notice:
    """What `%%offload` has done, a line for each function."""

    def __init__(self, said: Sequence[Said]) -> None:
        self._said = tuple(said)

    def __repr__(self) -> str:
        return "\n".join(f"{each.function} {each.what}" for each in self._said)

    def _repr_html_(self) -> str:
        lines = [paragraph(tag("code", each.function), f" {each.what}", look="soft") for each in self._said]
        return framed("What %%offload did", join(lines))
