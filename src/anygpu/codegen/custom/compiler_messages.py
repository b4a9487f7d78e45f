"""Parses compilers' messages on a user's text: the first place that they name, and their own words.

Neither library tells it other than in words. This is the one place that knows what these look like.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: naga draws the place under its message: "┌─ wgsl:3:11".
_NAGA_PLACE = re.compile(r"┌─ [^\n]*?:(\d+):(\d+)")
_NAGA_HEAD = re.compile(r"^Shader (?:'[^\n]*?' )?(?:parsing|validation) error: ", re.MULTILINE)
#: Clang: "file.cl:2:11: error: expected expression"; through PoCL: "error: file.cl:2:11: expected expression".
_CLANG = re.compile(
    r"^(?:(?P<path>[^\n:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: |"
    r"(?:fatal )?error: (?P<path2>[^\n:]*):(?P<line2>\d+):(?P<column2>\d+): )(?P<words>[^\n]*)$",
    re.MULTILINE,
)
#: No message needs to be longer for a person.
_MOST_WORDS = 4000


class Complaint(NamedTuple):
    line: int | None
    column: int | None
    words: str


def of_naga(words: str) -> Complaint:
    head = _NAGA_HEAD.search(words)
    said = words[head.end() :] if head is not None else words
    place = _NAGA_PLACE.search(said)
    said = said.rstrip()[:_MOST_WORDS]
    if place is None:
        return Complaint(None, None, said)
    return Complaint(int(place[1]), int(place[2]), said)


def of_clang(words: str) -> Complaint:
    """The first error gives the place; all of them are told, each with its own."""
    found = list(_CLANG.finditer(words))
    if not found:
        return Complaint(None, None, words.strip()[:_MOST_WORDS])
    lines = []
    for each in found:
        path = each["path"] or each["path2"] or ""
        line, column = each["line"] or each["line2"], each["column"] or each["column2"]
        said = each["words"].replace(path, "the kernel") if path else each["words"]
        lines.append(f"{line}:{column}: {said}")
    first = found[0]
    words = "\n".join(lines) if len(lines) > 1 else lines[0].partition(": ")[2]
    return Complaint(
        int(first["line"] or first["line2"]), int(first["column"] or first["column2"]), words[:_MOST_WORDS]
    )
