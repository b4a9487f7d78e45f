"""The record of what a kernel's text says of itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.codegen.custom.expressions import Number
from anygpu.program.ops.custom import Language, Parameter, Three

ScalarType = Literal["int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


class ScalarParameter(msgspec.Struct, frozen=True):
    """A number that the kernel takes; `anygpu.program.ops.custom.Scalar` is this with a value."""

    name: str
    dtype: ScalarType


class Length(msgspec.Struct, frozen=True):
    """The lengths that a buffer may have: any multiple of a number, or exactly that number."""

    multiple: int = 1
    exactly: int | None = None


class Reflected(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a kernel that its text states."""

    language: Language
    #: The function in the text.
    entry: str
    #: With the values of the constants in it. Lines are those of the user's own text.
    source: str
    #: Its buffers: in WGSL by their binding, in OpenCL C in the order of the parameters.
    parameters: tuple[Parameter, ...]
    scalars: tuple[ScalarParameter, ...]
    #: The names of all of them in the order in which a call gives them.
    order: tuple[str, ...]
    #: Invocations of a group; `None` where the text leaves it open (OpenCL C without reqd_work_group_size).
    group: Three | None
    #: Every constant that a call may choose, with the value that it has now.
    constants: dict[str, Number]
    #: For buffers that do not take every length.
    lengths: dict[str, Length]
    #: Whether a grid of more groups than one dimension of the device has can be run all the same.
    foldable: bool
    #: Bytes that the invocations of a group share.
    group_memory: int = 0
