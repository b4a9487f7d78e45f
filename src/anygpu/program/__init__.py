"""Programs: what is to be computed, as data. Pure: no array is touched here, and nothing is computed."""

from __future__ import annotations

import copyreg
from collections.abc import Callable

from anygpu.program.graph import Program


def _reduced(program: Program) -> tuple[Callable[[bytes], Program], tuple[bytes]]:
    from anygpu.program.wire import from_bytes, to_bytes  # late: most processes write no program

    return from_bytes, (to_bytes(program),)


# A program is pickled as its byte form, so what is unpickled has been checked.
copyreg.pickle(Program, _reduced)
