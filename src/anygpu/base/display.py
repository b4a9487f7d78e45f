"""How values show themselves in notebooks: `_repr_html_` of our classes asks here.

What draws is above all that is drawn, so it puts itself here, and is loaded when a notebook first shows something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: What draws a value as HTML; `anygpu` puts it here.
painters: list[Callable[[Any], str | None]] = []


def drawn(value: Any) -> str | None:
    """The value as HTML; `None` where there is none, and a notebook shows the text."""
    return painters[0](value) if painters else None


class Listed(list[T]):
    """A list that notebooks show as a table. It is a list in everything else."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return drawn(self)
