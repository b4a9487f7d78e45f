"""How values show themselves in notebooks: `_repr_html_` of our classes asks here.

What draws is above all that is drawn (see `anygpu.base.events`), and is loaded when a notebook first shows something.
"""

from __future__ import annotations

from typing import Any, TypeVar

from anygpu.base import events

T = TypeVar("T")


def drawn(value: Any) -> str | None:
    """The value as HTML; `None` where there is none, and a notebook shows the text."""
    return events.html_of(value)


class Listed(list[T]):
    """A list that notebooks show as a table. It is a list in everything else."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return drawn(self)
