"""Text that others have chosen, such as the names of functions, on a screen or a page."""

from __future__ import annotations


def printable(text: str, most: int = 500) -> str:
    """In one line, without anything that a terminal would obey: no escapes, and nothing that turns the direction."""
    if len(text) > most:  # cut first: what is left is looked at letter by letter
        text = text[: most - 1] + "…"
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)
