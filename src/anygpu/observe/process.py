"""What this process itself uses of the machine."""

from __future__ import annotations

from anygpu.hardware import host
from anygpu.observe.watching import Sample


def sample() -> Sample:
    own = host.resident_bytes()
    # What others hold leaves less for this process.
    return Sample(own, {}, {}, {"host": own + host.memory_free()})
