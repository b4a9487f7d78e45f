"""How often an invocation of a WGSL kernel can go round its loops, read off the kernel's text."""

from __future__ import annotations

import math
import re

#: What bisects, or goes through the bits of a number, goes round no more often.
_OPEN_ROUNDS = 64
_FUNCTION = re.compile(r"^fn (\w+)\(")
_LET = re.compile(r"\blet (\w+) = (.+);")
_FOR = re.compile(
    r"\bfor \((?:var \w+ = (.+?))?; \w+(?: \+ \d+)? ([<>]=?) (.+?); \w+ ?(\+=|\*=|/=|\+\+|-=|--) ?(\w*)\)"
)
#: Through the bits of a number, the lowest first, for as long as one is left.
_BITS = re.compile(r"\bfor \(var (\w+) = .+?; \1 != 0; \1 = \1 >> 1\)")
_OPEN = re.compile(r"\b(?:while|loop)\b")
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"(?<![\w.])(\d+)u?\b")


def most_rounds(source: str) -> int:
    """Of all loops together, those of called functions included. Raises ValueError for a loop that it cannot read."""
    costs: dict[str, int] = {}
    lines = source.splitlines()
    position = 0
    while position < len(lines):
        found = _FUNCTION.match(lines[position])
        position += 1
        if found is not None:
            end = lines.index("}", position)
            costs[found.group(1)] = _rounds(lines[position:end], costs)
            position = end
    return max(costs.values(), default=0)


def _rounds(lines: list[str], costs: dict[str, int]) -> int:
    total = 0
    #: How often each block that is open is done.
    times = [1]
    known: dict[str, str] = {}
    for line in lines:
        code = line.split("//")[0]
        if defined := _LET.search(code):
            known[defined.group(1)] = defined.group(2)
        rounds = _rounds_of(code, known)
        total += times[-1] * (rounds or 0)
        inside = rounds if rounds is not None else 1
        opened, closed = code.count("{"), code.count("}")
        total += times[-1] * inside * sum(costs.get(word, 0) for word in _WORD.findall(code))
        for _ in range(max(0, closed - opened)):
            times.pop()
        for _ in range(max(0, opened - closed)):
            times.append(times[-1] * inside)
    return total


def _rounds_of(code: str, known: dict[str, str]) -> int | None:
    found = _FOR.search(code)
    if found is None:
        if "for (" in code and not _BITS.search(code):
            raise ValueError(f"no loop that is known: {code.strip()}")
        return _OPEN_ROUNDS if _BITS.search(code) or _OPEN.search(code) else None
    first, sign, last, change, by = found.groups()
    if change in ("*=", "/="):
        return _OPEN_ROUNDS
    ends = _length(last if sign.startswith("<") else first or "", known)
    return max(0, math.ceil(ends / max(1, int(by.rstrip("u")) if by else 1)))


def _length(text: str, known: dict[str, str]) -> int:
    """How far it is to the end: `n`, or the lesser of what `min(first + n, all)` says."""
    text = known.get(text, text)
    numbers = [int(each) for each in _NUMBER.findall(text)]
    if not numbers:
        raise ValueError(f"no end that is known: {text}")
    if text.startswith("min("):
        # A part of the whole begins at a multiple of its own length.
        return min(numbers)
    return max(numbers)
