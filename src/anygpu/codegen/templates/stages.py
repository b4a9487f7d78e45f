"""Operations that take several kernels, described without a device: temporaries, and stages that fill a template file.

A template is a whole kernel with `string.Template` placeholders. The stage's own values go in first; they may hold
the generator's placeholders in turn (`${pass}` above all), which go in second.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from string import Template
from typing import TypedDict

import msgspec

from anygpu.codegen.target import ComputeType, Dialect
from anygpu.codegen.templates.source import template

_ALONE_IN_LINE = re.compile(r"^( *)\$\{?(\w+)\}?$", re.MULTILINE)


class Temporary(msgspec.Struct, frozen=True):
    """A plain buffer between stages, which kernels see under its name. Constants have their bytes in `data`."""

    name: str
    type: ComputeType
    #: The number of elements.
    size: int
    data: bytes | None = None


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of an operation.

    `reads` and `writes` name temporaries, or "in" and "out" for the accessors of the whole operation. A temporary that
    is in both is read and written by the same kernel.
    """

    name: str
    #: A file of this folder, without its ending.
    template: str
    groups: int
    group_size: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    #: Values of the template's own placeholders.
    values: dict[str, str]
    #: Placeholders that become the name of a library function, such as {"order_key_f32": ("order_key", "f32")}.
    calls: dict[str, tuple[str, ComputeType]] = {}
    #: Names of temporaries in this kernel, where they are not their own: so stages share one kernel's text.
    names: dict[str, str] = {}
    #: Temporaries that this kernel declares as atomic: `array<atomic<i32>>` in WGSL, a plain pointer in OpenCL C.
    atomics: tuple[str, ...] = ()


Stages = tuple[list[Temporary], list[Stage]]


class Source(msgspec.Struct, frozen=True):
    """The input of a stage: expressions for the components of the value at (`row`, `i`), and the names they read."""

    parts: tuple[str, ...]
    reads: tuple[str, ...]
    calls: dict[str, tuple[str, ComputeType]] = {}


class Sink(msgspec.Struct, frozen=True):
    """The output of a stage: statements that store `value` at (`row`, `i`), and the names they write."""

    statements: tuple[str, ...]
    writes: tuple[str, ...]


class Sizes(msgspec.Struct, frozen=True):
    """The tunable sizes: invocations in a group (a power of two), and elements that each handles in sequence."""

    group_size: int
    items: int


def fill(dialect: Dialect, stage: Stage, names: Mapping[str, str]) -> str:
    """The kernel's text.

    `names` has what the generator decides: `declarations`, `functions`, `name`, `parameters`, `group`, `pass`, `taken`
    (what `pass` hands on, as parameters of a function: empty in WGSL), and a name for each of `stage.calls`.
    """
    own = {**stage.values, "group_size": str(stage.group_size)}
    return _substituted(_substituted(template(dialect, stage.template), own), names)


class Surroundings(TypedDict):
    """The text around the lines of a kernel that is one stage."""

    declarations: str
    functions: str
    name: str
    parameters: str
    pass_: str
    group: str


def filled(
    dialect: Dialect,
    template: str,
    lines: Mapping[str, Sequence[str]],
    group_size: int,
    around: Surroundings,
    calls: Mapping[str, str] | None = None,
) -> str:
    """The text of a kernel that is all there is to its operation."""
    values = {placeholder: "\n".join(each) for placeholder, each in lines.items()}
    stage = Stage(
        name=around["name"], template=template, groups=1, group_size=group_size, reads=(), writes=(), values=values
    )
    names = {placeholder.rstrip("_"): str(text) for placeholder, text in around.items()}
    return fill(dialect, stage, {**names, **(calls or {})})


def _substituted(text: str, values: Mapping[str, str]) -> str:
    """Values of several lines are indented as their placeholder is; of a line whose value is empty nothing is left."""

    def line(match: re.Match[str]) -> str:
        value = values.get(match[2])
        if value is None:
            return match[0]
        return textwrap.indent(value, match[1]) if value else "\0"

    return Template(_ALONE_IN_LINE.sub(line, text).replace("\0\n", "")).safe_substitute(values)
