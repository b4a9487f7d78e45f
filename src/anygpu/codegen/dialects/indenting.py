"""How kernel text is indented."""

from __future__ import annotations

from collections.abc import Iterable

INDENT = "    "


def indented(lines: Iterable[str]) -> list[str]:
    return [INDENT + line if line else line for line in lines]
