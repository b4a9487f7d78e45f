"""Every primitive of array programs, and what their rules share. The byte form knows these and nothing else.

A primitive is defined, with all of its rules, by its family in `anygpu.program.ops`.
"""

# ruff: noqa: F403

from __future__ import annotations

from anygpu.program.ops import along_axis, custom, elementwise, linear, movement, source
from anygpu.program.ops.along_axis import *
from anygpu.program.ops.custom import *
from anygpu.program.ops.elementwise import *
from anygpu.program.ops.linear import *
from anygpu.program.ops.movement import *
from anygpu.program.ops.source import *
from anygpu.program.primitive import *
from anygpu.program.primitive import Primitive as Primitive

_FAMILIES = (source, elementwise, movement, along_axis, linear, custom)

PRIMITIVES: tuple[type[Primitive], ...] = tuple(
    each
    for family in _FAMILIES
    for name in family.__all__
    if isinstance(each := getattr(family, name), type) and issubclass(each, Primitive)
)

#: Variants of other primitives, with the same rules.
SPECIAL: tuple[type[Primitive], ...] = (
    elementwise.BitwiseUnary,
    elementwise.BitwiseBinary,
    along_axis.UnorderedReduce,
)
