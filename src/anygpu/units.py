"""Numbers as people read them."""

from __future__ import annotations


def readable_bytes(count: int) -> str:
    if count < 1 << 10:
        return f"{count} bytes"
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    raise AssertionError("unreachable")


def readable_seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"
