"""Template files and what fills them in: values of several components, stages, and rows over groups."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import TypedDict

import msgspec

from anygpu.engines.codegen.functions.source import for_dialect
from anygpu.engines.codegen.target import SYNTAX, ComputeType, Dialect, Syntax, Target

# -- reads template files, which are OpenCL C, and respells them in WGSL
#
# Templates use a small part of C: typed declarations, arrays, loops, barriers, casts to int, and `?:` of simple
# operands. Each of these has one spelling in WGSL; shared arrays are declared outside of the kernel there. Where a
# template needs different code in WGSL, that code stands between `#ifdef WGSL` and `#else` or `#endif`.


_FOLDER = Path(__file__).parent
_WGSL, _OPENCL = SYNTAX["wgsl"], SYNTAX["opencl"]
_TYPES = {spelled: _WGSL.types[type] for type, spelled in _OPENCL.types.items()}

#: The head of the kernel, and the arrays that stand first in it, with the comments on them.
_KERNEL = re.compile(
    r"__kernel __attribute__\(\(reqd_work_group_size\(\$group_size, 1, 1\)\)\)\n"
    r"void \$name\(\$parameters(\$builtins)?\) \{\n((?:    (?://.*|__local .*;)\n)*)"
)
_SHARED = re.compile(r"^ *__local (\S+) (\w+)\[(.+)\];$", re.MULTILINE)
_BUILTINS = "@builtin(workgroup_id) group_id: vec3<u32>", "@builtin(local_invocation_index) lane_index: u32"
#: A type: one of the language, a struct, or a placeholder.
_KIND = r"(int|bool|Value|\$\w+)"
_FUNCTION = re.compile(rf"^{_KIND} (\$?\w+)\((.*)\) \{{$", re.MULTILINE)
_PARAMETER = re.compile(rf"{_KIND} (\w+)")
#: Applied in this order, from OpenCL C to WGSL.
_RULES = [
    (re.compile(rf"\bconst {_KIND} (\w+) = "), r"let \2 = "),
    (re.compile(rf"(?<![\w$]){_KIND} (\w+) = "), r"var \2 = "),
    (re.compile(r"(?:\(int\))?get_local_id\(0\)"), _WGSL.lane),
    (re.compile(r"\(int\)(\w+)"), r"i32(\1)"),
    (re.compile(r"\((\$\w+)\)\(0\)"), r"\1()"),
    (re.compile(r"\((\$\w+)\)\("), r"\1("),
    (re.compile(r"\(([^()?\n]+) \? (\w+) : (\w+)\)"), r"select(\3, \2, \1)"),
    (re.compile(r"(?<== )([^?\n;]+) \? ([^?\n;]+) : ([^?\n;]+);"), r"select(\3, \2, \1);"),
    (re.compile(re.escape(_OPENCL.barrier)), _WGSL.barrier),
]
_ARRAY = re.compile(rf"(?<![\w$]){_KIND} (\w+)\[([^\]]+)\];")
_UNSET = re.compile(rf"^( *){_KIND} ((?:\w+, )*\w+);$", re.MULTILINE)


@cache
def template(dialect: Dialect, name: str) -> str:
    text = for_dialect(dialect, (_FOLDER / f"{name}.cl").read_text(encoding="utf-8"))
    return in_wgsl(text) if dialect == "wgsl" else text


def in_wgsl(text: str) -> str:
    """A template's text in WGSL, by rules that respell the little of OpenCL C that templates use."""
    text = _KERNEL.sub(_kernel, text)
    text = _FUNCTION.sub(_function, text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _ARRAY.sub(lambda found: _WGSL.array(found[2], _kind(found[1]), found[3]), text)
    return _UNSET.sub(_unset, text)


def _kind(spelled: str) -> str:
    return _TYPES.get(spelled, spelled)


def _kernel(found: re.Match[str]) -> str:
    """The head of an entry point in WGSL; memory of the group is declared before it."""
    inside = _SHARED.sub(lambda each: _WGSL.shared_array(each[2], _kind(each[1]), each[3]), found[2])
    shared = "".join(f"{line.strip()}\n" for line in inside.splitlines())
    if found[1]:
        arguments = "\n" + "".join(f"    {each},\n" for each in _BUILTINS) + f"    {found[1]}\n"
    else:
        arguments = ", ".join(_BUILTINS)
    between = "\n" if shared else ""
    return f"{shared}{between}@compute @workgroup_size($group_size)\nfn $name({arguments}) {{\n"


def _function(found: re.Match[str]) -> str:
    parameters = _PARAMETER.sub(lambda each: _WGSL.parameter(each[2], _kind(each[1])), found[3])
    return f"fn {found[2]}({parameters}) -> {_kind(found[1])} {{"


def _unset(found: re.Match[str]) -> str:
    return "\n".join(f"{found[1]}var {name}: {_kind(found[2])};" for name in found[3].split(", "))


# -- values of several components as text in both dialects
#
# A complex number, a key with its position, a flag with a sum.
#
# Such a value is a struct `Value` with the fields part_0, part_1, …; in it a bool is a u32.


Calls = dict[str, tuple[str, ComputeType]]

BYTES: dict[ComputeType, int] = {"bool": 4, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8}
_OPERATORS = {"sum": "+", "prod": "*"}
_CHOICES = {"max": "maximum", "min": "minimum"}


def carried(component: ComputeType) -> ComputeType:
    """The type of a component in buffers and in what a group shares."""
    return "u32" if component == "bool" else component


def struct_bytes(components: Sequence[ComputeType]) -> int:
    """The size of a `Value` in memory, with what aligns it."""
    size = 0
    for component in components:
        size = _aligned(size, BYTES[component]) + BYTES[component]
    return _aligned(size, max(BYTES[component] for component in components))


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to


def struct_text(syntax: Syntax, components: Sequence[ComputeType], name: str = "Value") -> str:
    """The struct of a value with these components."""
    return syntax.struct_type(
        name, {f"part_{k}": syntax.types[carried(component)] for k, component in enumerate(components)}
    )


def made(syntax: Syntax, parts: Sequence[str], struct: str = "Value") -> str:
    """The expression that makes a `Value` of its parts."""
    return syntax.struct(struct, parts)


def loaded(syntax: Syntax, component: ComputeType, expression: str) -> str:
    """A component that an accessor returned, in the type that is carried."""
    return syntax.cast(syntax.types["u32"], expression) if component == "bool" else expression


def stored(component: ComputeType, expression: str) -> str:
    """A carried component, in the type that an accessor takes."""
    return f"{expression} != 0u" if component == "bool" else expression


def arithmetic(syntax: Syntax, operator: str, component: ComputeType, a: str, b: str) -> str:
    """`a operator b`; integers wrap."""
    return syntax.wrapping(operator, component, a, b) or f"{a} {operator} {b}"


def combine_text(
    syntax: Syntax,
    fn: str,
    components: Sequence[ComputeType],
    *,
    segmented: bool = False,
    narrowed: str | None = None,
) -> tuple[str, Calls]:
    """The function `combine(a, b)` for "sum", "prod", "max" or "min" (NaN wins), and the library functions it calls.

    `narrowed` is what brings a number back into its own type after each step, as "round_f16".

    One component is a real number, two are a complex number. Segmented, the first component is a flag (u32): where `b`
    has it, something new begins and `a` does not count.
    """
    calls: Calls = {}
    skip = 1 if segmented else 0
    number = tuple(components[skip:])
    body = []
    if segmented:
        body = ["if (b.part_0 != 0u) {", "    return b;", "}"]
    names = [f"part_{skip + k}" for k in range(len(number))]
    if len(number) == 2 and fn != "sum":
        lines, parts = _complex_combined(fn, names, number[0], calls)
        body += lines
    elif fn in _OPERATORS:
        parts = [
            arithmetic(syntax, _OPERATORS[fn], carried(component), f"a.{name}", f"b.{name}")
            for name, component in zip(names, number, strict=True)
        ]
        if narrowed is not None:
            calls[narrowed] = (narrowed, number[0])
            parts = [f"${{{narrowed}}}({part})" for part in parts]
    else:
        parts = [_chosen(fn, carried(number[0]), names[0], calls)]
    body.append(f"return {made(syntax, [*(['a.part_0'] if segmented else []), *parts])};")
    return syntax.function("combine", {"a": "Value", "b": "Value"}, "Value", body), calls


def _chosen(fn: str, component: ComputeType, name: str, calls: Calls) -> str:
    """The larger or smaller of two numbers; of floats by the library's function, which keeps NaN."""
    if component not in ("f32", "f64"):
        return f"{fn}(a.{name}, b.{name})"
    placeholder = f"{_CHOICES[fn]}_{component}"
    calls[placeholder] = (_CHOICES[fn], component)
    return f"${{{placeholder}}}(a.{name}, b.{name})"


def _complex_combined(
    fn: str, names: Sequence[str], component: ComputeType, calls: Calls
) -> tuple[list[str], list[str]]:
    """Combines as NumPy does: products term by term; extremes by real, then imaginary part, and the first NaN wins."""
    re, im = names
    if fn == "prod":
        return [], [f"a.{re} * b.{re} - a.{im} * b.{im}", f"a.{re} * b.{im} + a.{im} * b.{re}"]
    calls[f"isnan_{component}"] = ("isnan", component)
    isnan = f"${{isnan_{component}}}"
    sign = ">" if fn == "max" else "<"
    lines = [
        f"if ({isnan}(a.{re}) || {isnan}(a.{im}) || (a.{re} == b.{re} && a.{im} {sign}= b.{im})",
        f"    || (a.{re} {sign} b.{re} && !{isnan}(b.{im}))) {{",
        "    return a;",
        "}",
    ]
    return lines, [f"b.{re}", f"b.{im}"]


# -- Operations that take several kernels
#
# Described without a device: temporaries, and stages that fill a template file.
#
# A template is a whole kernel with `string.Template` placeholders. The stage's own values go in first; they may hold
# the generator's placeholders in turn (`${pass}` above all), which go in second.


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


class GroupSizes(msgspec.Struct, frozen=True):
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


# -- distributes rows over groups
#
# Several short rows to one group, or a long row to many groups, tile by tile.


class RowLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How rows are laid over a group: lanes for a row, rows for a group, and elements for a lane."""

    group_size: int
    #: Elements that one invocation handles in sequence.
    items: int
    #: Invocations for one row; a power of two, as are the rows of a group.
    lanes: int
    rows_per_group: int
    #: Groups that share one row.
    tiles: int
    groups: int

    @property
    def span(self) -> int:
        """Elements of one row in one group."""
        return self.lanes * self.items

    def values(self, rows: int, length: int) -> dict[str, str]:
        """The placeholders that templates over rows have in common."""
        numbers = {
            "items": self.items,
            "slots": self.group_size * self.items,
            "tiles": self.tiles,
            "rows_per_group": self.rows_per_group,
            "span": self.span,
            "lanes": self.lanes,
            "last_row": rows - 1,
            "last": length - 1,
        }
        return {name: str(number) for name, number in numbers.items()}


def layout(rows: int, length: int, sizes: GroupSizes) -> RowLayout:
    """Rows that fit into a group are never cut, and groups are no larger than what there is to do."""
    if length > sizes.group_size * sizes.items:
        tiles = -(-length // (sizes.group_size * sizes.items))
        return RowLayout(
            group_size=sizes.group_size,
            items=sizes.items,
            lanes=sizes.group_size,
            rows_per_group=1,
            tiles=tiles,
            groups=rows * tiles,
        )
    lanes = power_of_two(-(-length // sizes.items))
    rows_per_group = min(sizes.group_size // lanes, power_of_two(rows))
    return RowLayout(
        group_size=lanes * rows_per_group,
        items=-(-length // lanes),
        lanes=lanes,
        rows_per_group=rows_per_group,
        tiles=1,
        groups=-(-rows // rows_per_group),
    )


def fitting(target: Target, sizes: GroupSizes, bytes_for: int, bytes_for_lane: int, reserve: int = 64) -> GroupSizes:
    """Sizes that fit into shared memory: fewer items, and fewer invocations when even four items do not fit."""
    group_size = min(sizes.group_size, target.group_limit)
    room = target.group_memory - reserve
    while group_size > 32 and room < group_size * (min(4, sizes.items) * bytes_for + bytes_for_lane):
        group_size //= 2
    fits = (room // group_size - bytes_for_lane) // bytes_for
    return GroupSizes(group_size, max(1, min(sizes.items, fits)))


def power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def from_accessors(target: Target, components: tuple[ComputeType, ...]) -> Source:
    parts = [loaded(SYNTAX[target.dialect], each, f"load_{k}(${{pass}}row, i)") for k, each in enumerate(components)]
    return Source(tuple(parts), ("in",))


def to_accessors(components: tuple[ComputeType, ...], first: int = 0) -> Sink:
    """Stores the components from `first` on; those before it are only carried."""
    statements = [
        f"store_{k}(${{pass}}row, i, {stored(each, f'value.part_{k}')});"
        for k, each in enumerate(components)
        if k >= first
    ]
    return Sink(tuple(statements), ("out",))


def buffers(name: str, components: tuple[ComputeType, ...], size: int) -> list[Temporary]:
    return [Temporary(f"{name}_{k}", carried(each), size) for k, each in enumerate(components)]


def from_buffers(temporaries: list[Temporary], row_length: int, calls: Calls | None = None) -> Source:
    names = tuple(each.name for each in temporaries)
    return Source(tuple(f"{name}[row * {row_length} + i]" for name in names), names, calls or {})


def to_buffers(temporaries: list[Temporary], row_length: int) -> Sink:
    names = tuple(each.name for each in temporaries)
    return Sink(tuple(f"{name}[row * {row_length} + i] = value.part_{k};" for k, name in enumerate(names)), names)
