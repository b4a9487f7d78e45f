"""The lines of a source file as Python counts them."""

from __future__ import annotations

import io
import re
import tokenize

#: `str.splitlines` also splits at form feeds, U+2028 and others, which Python takes for parts of a line.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def decode_source(source: bytes) -> tuple[str, str]:
    """The text of a Python file, and its encoding. Raises `SyntaxError` or `ValueError` where Python does."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding), encoding


def source_lines(text: str) -> list[str]:
    """The lines of a text, with their ends."""
    return _LINE.findall(text)
