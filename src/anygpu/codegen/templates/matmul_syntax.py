"""The words of both dialects that the unrolled parts of the matmul and convolution templates are made of."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anygpu.codegen.target import ComputeType, Dialect
from anygpu.codegen.templates.values import TYPE_NAMES

#: Signed overflow is undefined in C: OpenCL kernels multiply and add such numbers as unsigned ones, which wrap.
_WRAPPING: dict[ComputeType, ComputeType] = {"i32": "u32", "i64": "u64"}
_DIGITS = "0123456789abcdef"

Lines = list[str]


class Words(msgspec.Struct, frozen=True):
    """How values of one compute type, and vectors of them, are written in one dialect."""

    dialect: Dialect
    type: ComputeType

    @property
    def wgsl(self) -> bool:
        return self.dialect == "wgsl"

    @property
    def computed(self) -> ComputeType:
        """What totals are kept in."""
        return self.type if self.wgsl else _WRAPPING.get(self.type, self.type)

    @property
    def calls_in_a_row(self) -> int:
        """More calls of a store accessor than this are made in a loop: each is the whole epilogue once more.

        A loop over registers is written out by the compilers of WGSL in any case, and costs more than the calls do.
        """
        return 64 if self.wgsl else 16

    def vector(self, width: int) -> str:
        """The type of so many numbers; a single one is no vector."""
        name = TYPE_NAMES[self.dialect][self.computed]
        if width == 1:
            return name
        return f"vec{width}<{name}>" if self.wgsl else f"{name}{width}"

    def let(self, name: str, width: int, value: str) -> str:
        return f"let {name} = {value};" if self.wgsl else f"const {self.vector(width)} {name} = {value};"

    def position(self, name: str, value: str) -> str:
        return f"let {name} = {value};" if self.wgsl else f"const int {name} = {value};"

    def zero(self, name: str, width: int) -> str:
        kind = self.vector(width)
        return f"var {name} = {kind}();" if self.wgsl else f"{kind} {name} = 0;"

    def loop(self, name: str, first: str, end: str, step: str) -> str:
        kind = "var" if self.wgsl else "int"
        further = f"{name}++" if step == "1" else f"{name} += {step}"
        return f"for ({kind} {name} = {first}; {name} < {end}; {further}) {{"

    def component(self, value: str, number: int, width: int) -> str:
        if width == 1:
            return value
        return f"{value}[{number}]" if self.wgsl else f"{value}.s{_DIGITS[number]}"

    def all(self, value: str, width: int) -> str:
        """The same number in all components."""
        if width == 1:
            return value
        return f"{self.vector(width)}({value})" if self.wgsl else f"({self.vector(width)})({value})"

    def made(self, values: Sequence[str]) -> str:
        if len(values) == 1:
            return values[0]
        inner = ", ".join(values)
        return f"{self.vector(len(values))}({inner})" if self.wgsl else f"({self.vector(len(values))})({inner})"

    def loaded(self, value: str, width: int) -> str:
        """What an accessor gave, as it is computed with."""
        return value if self.computed == self.type else f"as_{self.vector(width)}({value})"

    def stored(self, value: str, width: int) -> str:
        """A total, as an accessor takes it."""
        if self.computed == self.type:
            return value
        return f"as_{Words('opencl', self.type)._named(width)}({value})"

    def _named(self, width: int) -> str:
        name = TYPE_NAMES[self.dialect][self.type]
        return name if width == 1 else f"{name}{width}"

    def multiply_add(self, total: str, a: str, b: str) -> str:
        """WGSL leaves it to the driver whether a product is rounded before it is added, and few drivers choose well."""
        if self.wgsl and self.type == "f32":
            return f"{total} = fma({a}, {b}, {total});"
        return f"{total} += {a} * {b};"


def indented(lines: Sequence[str], steps: int = 1) -> list[str]:
    return ["    " * steps + line for line in lines]


def plus(name: str, number: int) -> str:
    """`name + number`, without what adds nothing."""
    return f"{name} {'-' if number < 0 else '+'} {abs(number)}" if number else name


def times(name: str, number: int) -> str:
    return name if number == 1 else f"{name} * {number}"


def divided(name: str, number: int) -> str:
    return name if number == 1 else f"{name} / {number}"


def guarded(lines: Lines, conditions: Lines, steps: int = 1) -> Lines:
    if not conditions:
        return lines
    return [f"if ({' && '.join(conditions)}) {{", *indented(lines, steps), "}"]
