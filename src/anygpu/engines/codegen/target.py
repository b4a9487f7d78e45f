"""What code depends on: the facts about a device, the types that kernels compute, and the spelling of dialects.

`Target` has the features and limits of a device; the same target and program always give the same text. Kernels compute
in seven types, which narrower dtypes are converted to and from. `Syntax` is a table of how the two dialects spell the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from anygpu.program.dtypes import ITEMSIZE, REAL_PART, DType

Dialect = Literal["wgsl", "opencl"]

#: The types that arithmetic happens in. Narrower ones are loaded into these and wrapped or rounded after each step;
#: a complex number is a pair of them.
ComputeType = Literal["bool", "i32", "u32", "i64", "u64", "f32", "f64"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One device as kernels see it. Equal targets get equal kernels."""

    dialect: Dialect
    #: Any of "f16", "f64", "i64" and "subgroups".
    features: tuple[str, ...] = ()
    #: The most invocations in a group, and the bytes that they can share.
    group_limit: int = 256
    group_memory: int = 16384
    #: The most buffers that a kernel may take, and the bytes of each that it can see.
    bindings: int = 8
    binding_bytes: int = 128 << 20
    #: Groups along one dimension; more are folded into the second one. `None` when there is no limit.
    groups_per_dimension: int | None = 65535
    #: The most rounds of all loops of one invocation together. Some software adapters stop there, silently.
    loop_limit: int = 32768
    #: Whether invocations are lanes of a processor's registers, as on a software adapter: starting one takes about as
    #: long as the arithmetic of a vector, and built-in functions are made of the same instructions as ours.
    emulated: bool = False
    #: Neighbouring invocations that are one subgroup in every kernel; 0 when that is not known.
    subgroup_size: int = 0
    #: Functions, as "exp_f32", for which the dialect's own is called instead of ours: on this very device it was
    #: measured to be accurate enough (WGSL) or fast enough (OpenCL C, which promises the accuracy).
    trusted: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        return feature in self.features


# -- maps the types of programs to the types that kernels compute and store
#
# Seven compute types, or pairs of them.


#: The type that a value of each real type is computed in.
COMPUTE: dict[DType, ComputeType] = {
    "bool": "bool",
    "int8": "i32",
    "int16": "i32",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u32",
    "uint16": "u32",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f32",
    "bfloat16": "f32",
    "float32": "f32",
    "float64": "f64",
}

#: Functions that bring a value back into a type that is narrower than the one it is computed in.
NARROWED: dict[DType, str] = {
    "int8": "wrap_i8",
    "int16": "wrap_i16",
    "uint8": "wrap_u8",
    "uint16": "wrap_u16",
    "float16": "round_f16",
    "bfloat16": "round_bf16",
}

#: The type in which temporaries of each narrow type are stored: as they are computed.
WIDE: dict[DType, DType] = {
    "bool": "uint32",
    "int8": "int32",
    "int16": "int32",
    "uint8": "uint32",
    "uint16": "uint32",
    "float16": "float32",
    "bfloat16": "float32",
}

#: The type that has the compute type's name among programs' types.
STORED: dict[ComputeType, DType] = {
    "bool": "uint32",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
}


def part_of(dtype: DType) -> DType:
    """The real type that a value consists of."""
    return REAL_PART.get(dtype, dtype)


def components(dtype: DType) -> int:
    return 2 if dtype in REAL_PART else 1


def compute_type(dtype: DType) -> ComputeType:
    return COMPUTE[part_of(dtype)]


def is_narrow(dtype: DType, target: Target) -> bool:
    """Whether elements share a machine word on the target, so that only the owner of a whole word may write them."""
    if target.dialect == "opencl":
        return False
    return ITEMSIZE[dtype] < 4 and not (dtype == "float16" and target.has("f16"))


def missing_feature(dtype: DType, target: Target) -> str | None:
    """The feature that the target lacks for the type; `None` when it lacks none."""
    needed = {"f64": "f64", "i64": "i64", "u64": "i64"}.get(compute_type(dtype))
    return needed if needed is not None and not target.has(needed) else None


# -- how WGSL and OpenCL C are spelled
#
# One table, for printers, vectors and templates.
#
# Types are passed as the dialect spells them: `syntax.types["f32"]`, `syntax.vector("f32", 4)`, or the name of a
# struct.


INDENT = "    "

# fmt: off
#: The spelling of each construct in WGSL and in OpenCL C.
_TABLE: dict[str, tuple[str, str]] = {
    "lane": ("i32(lane_index)", "(int)get_local_id(0)"),
    "barrier": ("workgroupBarrier();", "barrier(CLK_LOCAL_MEM_FENCE);"),
    "let": ("let {name} = {value};", "const {kind} {name} = {value};"),
    "variable": ("var {name} = {value};", "{kind} {name} = {value};"),
    "array": ("var {name}: array<{kind}, {size}>;", "{kind} {name}[{size}];"),
    "shared_array": ("var<workgroup> {name}: array<{kind}, {size}>;", "__local {kind} {name}[{size}];"),
    "vector": ("vec{width}<{type}>", "{type}{width}"),
    "construct": ("{kind}({parts})", "({kind})({parts})"),
    "struct": ("{kind}({parts})", "({kind}){{{parts}}}"),
    "cast": ("{kind}({value})", "({kind})({value})"),
    "cast_of_name": ("{kind}({value})", "({kind}){value}"),
    "choose": ("select({no}, {yes}, {condition})", "{condition} ? {yes} : {no}"),
    "field": ("{name}: {kind},", "{kind} {name};"),
    "struct_type": ("struct {name} {{\n{fields}\n}}", "typedef struct {{\n{fields}\n}} {name};"),
    "parameter": ("{name}: {kind}", "{kind} {name}"),
    "function": ("fn {name}({parameters}) -> {result}", "{result} {name}({parameters})"),
    "procedure": ("fn {name}({parameters})", "void {name}({parameters})"),
}
_TYPES: dict[ComputeType, tuple[str, str]] = {
    "bool": ("bool", "bool"), "i32": ("i32", "int"), "u32": ("u32", "uint"), "i64": ("i64", "long"),
    "u64": ("u64", "ulong"), "f32": ("f32", "float"), "f64": ("f64", "double"),
}
#: The ends of literals, and the smallest integers, which have no literal.
_SUFFIXES: dict[ComputeType, tuple[str, str]] = {
    "i32": ("", ""), "u32": ("u", "u"), "i64": ("li", "L"), "u64": ("lu", "UL"), "f32": ("f", "f"), "f64": ("lf", ""),
}
_SMALLEST: dict[ComputeType, tuple[str, str]] = {
    "i32": ("i32(-2147483648)", "(-2147483647 - 1)"),
    "i64": ("(-9223372036854775807li - 1li)", "(-9223372036854775807L - 1L)"),
}

OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}
COMPARISONS = {
    "equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}
#: Between truth values, which have no order in either dialect: `~`, `&` and `|` stand for not, and, or.
LOGIC = {
    "bitwise_and": "{0} & {1}", "minimum": "{0} & {1}", "multiply": "{0} & {1}",
    "bitwise_or": "{0} | {1}", "maximum": "{0} | {1}", "add": "{0} | {1}",
    "bitwise_xor": "{0} != {1}", "not_equal": "{0} != {1}", "equal": "{0} == {1}",
    "less": "~{0} & {1}", "less_equal": "~{0} | {1}", "greater": "{0} & ~{1}", "greater_equal": "{0} | ~{1}",
}
# fmt: on

#: Types of 64 bits.
WIDE_TYPES: tuple[ComputeType, ...] = ("f64", "i64", "u64")
UNSIGNED: dict[ComputeType, ComputeType] = {"i32": "u32", "i64": "u64"}


def indented(lines: Iterable[str], steps: int = 1) -> list[str]:
    return [INDENT * steps + line if line else line for line in lines]


class Syntax:
    """The spelling of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        """The spellings of one dialect, from tables that have both."""
        self.dialect = dialect
        column = 0 if dialect == "wgsl" else 1
        self._table = {what: spelled[column] for what, spelled in _TABLE.items()}
        self.types = {type: spelled[column] for type, spelled in _TYPES.items()}
        self.suffixes = {type: spelled[column] for type, spelled in _SUFFIXES.items()}
        self._smallest = {type: spelled[column] for type, spelled in _SMALLEST.items()}
        self._components = "xyzw" if dialect == "wgsl" else [f"s{number:x}" for number in range(16)]
        #: The number of an invocation in its group, and the statement that waits for all of the group.
        self.lane, self.barrier = self._table["lane"], self._table["barrier"]

    # -- values

    def vector(self, type: ComputeType, width: int) -> str:
        """The type of a vector; of width 1 it is the type itself."""
        name = self.types[type]
        return name if width == 1 else self._table["vector"].format(type=name, width=width)

    def construct(self, kind: str, parts: Sequence[str]) -> str:
        """A vector from its parts, or from one that all components get."""
        return self._table["construct"].format(kind=kind, parts=", ".join(parts))

    def struct(self, kind: str, parts: Sequence[str]) -> str:
        """A struct from its fields."""
        return self._table["struct"].format(kind=kind, parts=", ".join(parts))

    def component(self, value: str, number: int) -> str:
        return f"{value}.{self._components[number]}"

    def cast(self, kind: str, value: str) -> str:
        return self._table["cast_of_name" if value.isalnum() else "cast"].format(kind=kind, value=value)

    def choose(self, condition: str, yes: str, no: str) -> str:
        """An expression; `choice` is the same as an operand."""
        if self.dialect == "opencl" and " " in condition:
            condition = f"({condition})"
        return self._table["choose"].format(condition=condition, yes=yes, no=no)

    def choice(self, condition: str, yes: str, no: str) -> str:
        text = self._table["choose"].format(condition=condition, yes=yes, no=no)
        return text if self.dialect == "wgsl" else f"({text})"

    def number(self, value: float, type: ComputeType) -> str:
        """A literal. Infinities and NaN have none."""
        if type == "bool":
            return "true" if value else "false"
        if type in ("f32", "f64"):
            import numpy as np  # late: the compiler of native code has no other use for it

            digits = str(np.float32(value)) if type == "f32" else repr(float(value))
            return f"{digits}{self.suffixes[type]}"
        if type in self._smallest and value == -(1 << (31 if type == "i32" else 63)):
            return self._smallest[type]
        return f"{int(value)}{self.suffixes[type]}"

    def wrapping(self, operator: str, type: ComputeType, one: str, other: str, width: int = 1) -> str | None:
        """A sum, difference or product of signed integers that wraps; `None` where the plain operator wraps.

        C leaves overflow of signed numbers undefined, and compilers make use of that: x + 1 > x is always true.
        """
        if self.dialect == "wgsl" or type not in UNSIGNED:
            return None
        signed, unsigned = f"as_{self.vector(type, width)}", f"as_{self.vector(UNSIGNED[type], width)}"
        return f"{signed}({unsigned}({one}) {operator} {unsigned}({other}))"

    # -- statements

    def let(self, name: str, kind: str, value: str) -> str:
        return self._table["let"].format(name=name, kind=kind, value=value)

    def position(self, name: str, value: str) -> str:
        return self.let(name, self.types["i32"], value)

    def variable(self, name: str, kind: str, value: str) -> str:
        return self._table["variable"].format(name=name, kind=kind, value=value)

    def array(self, name: str, kind: str, size: int | str) -> str:
        return self._table["array"].format(name=name, kind=kind, size=size)

    def shared_array(self, name: str, kind: str, size: int | str) -> str:
        return self._table["shared_array"].format(name=name, kind=kind, size=size)

    def loop(self, name: str, start: str, condition: str, advance: str) -> str:
        """The head of a loop over an i32: `condition` and `advance` are what follows the name."""
        return f"for ({self.variable(name, self.types['i32'], start)} {name} {condition}; {name}{advance}) {{"

    # -- declarations

    def struct_type(self, name: str, fields: Mapping[str, str]) -> str:
        lines = indented(self._table["field"].format(name=field, kind=kind) for field, kind in fields.items())
        return self._table["struct_type"].format(name=name, fields="\n".join(lines))

    def parameter(self, name: str, kind: str) -> str:
        return self._table["parameter"].format(name=name, kind=kind)

    def function(
        self,
        name: str,
        parameters: Mapping[str, str],
        result: str | None,
        body: Sequence[str],
        *,
        given: Sequence[str] = (),
        inline: bool = False,
    ) -> str:
        """`given` are parameters that are spelled already."""
        in_c = inline and self.dialect == "opencl"
        own = [self.parameter(each, f"const {kind}" if in_c else kind) for each, kind in parameters.items()]
        head = self._table["function" if result is not None else "procedure"].format(
            name=name, parameters=", ".join([*given, *own]), result=result
        )
        return "\n".join([f"{'static inline ' if in_c else ''}{head} {{", *indented(body), "}"])


SYNTAX: dict[Dialect, Syntax] = {"wgsl": Syntax("wgsl"), "opencl": Syntax("opencl")}
