"""Names that users chose, as the dashboard shows them."""

from __future__ import annotations

from anygpu.base.printable import printable

#: What begins mathematics for Bokeh, which would load a library for it from another host.
_MATHEMATICS = ("$$", "\\(", "\\[")
MOST_LETTERS = 60


def shown(text: str, most: int = MOST_LETTERS) -> str:
    """The text without anything that is not a letter or a sign: no escapes, no letters that turn the line around."""
    text = printable(text, most)
    for sign in _MATHEMATICS:
        text = text.replace(sign, sign[0] + "\u200a" + sign[1])
    return text
