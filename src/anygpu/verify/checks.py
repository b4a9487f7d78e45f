"""All checks, in the order in which they are tried. The random programs come last, and get what time is left."""

from __future__ import annotations

from anygpu.errors import InvalidOption
from anygpu.verify.cases import Check
from anygpu.verify.conformance import CONFORMANCE
from anygpu.verify.dtypes import DTYPES
from anygpu.verify.faults import FAULTS
from anygpu.verify.grid import GRID
from anygpu.verify.memory import MEMORY
from anygpu.verify.programs import PROGRAMS, programs
from anygpu.verify.sizes import SIZES
from anygpu.verify.special_values import SPECIAL_VALUES

NAMES = ("dtypes", "sizes", "memory", "faults", "grid", "conformance", "special-values", "programs")


def all_checks(count: int = PROGRAMS, *, first: int = 0) -> tuple[Check, ...]:
    """With so many random programs, from a first seed on."""
    return (DTYPES, SIZES, MEMORY, FAULTS, GRID, CONFORMANCE, SPECIAL_VALUES, programs(count, first=first))


def chosen(names: tuple[str, ...], checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Those of these names; all where there are none. Raises `InvalidOption` for a name that there is not."""
    known = {check.name: check for check in checks}
    for name in names:
        if name not in known:
            raise InvalidOption(f"there is no check {name!r}; available: {', '.join(known)}.")
    return tuple(check for check in checks if not names or check.name in names)
