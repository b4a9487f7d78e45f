"""What the package of the toy engine tells anygpu before its library is loaded."""

from __future__ import annotations

import msgspec

from anygpu.engines.traits import SOFTWARE, EngineTraits

TRAITS = EngineTraits(
    isolation="thread",
    languages=("opencl",),
    views="contiguous",
    tunes=True,
    rates={"software": msgspec.structs.replace(SOFTWARE, launch=7e-4)},
)
