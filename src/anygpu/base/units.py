"""Numbers as people read and write them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 1 << 10,
    "MI": 1 << 20,
    "GI": 1 << 30,
    "TI": 1 << 40,
}
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)


def bytes_from(text: str) -> int | None:
    """From "512MB", "1.5 GiB" or "4096"; `None` for anything else."""
    found = _BYTES.fullmatch(text)
    return None if found is None else int(float(found[1]) * _UNITS[(found[2] or "").upper()])


def readable_bytes(count: int) -> str:
    """Returns "512 bytes" or "1.5 GiB": one digit after the point, in powers of 1024."""
    if count < 1 << 10:
        return f"{count} bytes"
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    raise AssertionError("unreachable")


def readable_seconds(seconds: float) -> str:
    """Returns "3 µs", "12.3 ms" or "4.56 s": three digits from a millisecond on."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"
