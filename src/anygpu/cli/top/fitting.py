"""Text in columns of a terminal, where some letters take two cells."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size


def fit(text: str, room: int, *, right: bool) -> str:
    """In exactly so many cells."""
    length = cell_len(text)
    if length > room:
        return set_cell_size(set_cell_size(text, room - 1).rstrip() + "…", room)
    return " " * (room - length) + text if right else text + " " * (room - length)
