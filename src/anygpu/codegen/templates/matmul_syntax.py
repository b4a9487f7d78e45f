"""Lines of templates that are unrolled: numbers of one type, and vectors of them, in one dialect."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anygpu.codegen.syntax import SYNTAX, UNSIGNED, Syntax, indented
from anygpu.codegen.target import ComputeType, Dialect

Lines = list[str]


class TypedSyntax(msgspec.Struct, frozen=True):
    """The syntax of a dialect for the compute type that a template works in."""

    dialect: Dialect
    type: ComputeType

    @property
    def plain(self) -> Syntax:
        return SYNTAX[self.dialect]

    @property
    def wgsl(self) -> bool:
        return self.dialect == "wgsl"

    @property
    def computed(self) -> ComputeType:
        """The type of totals. Signed overflow is undefined in C, so OpenCL kernels compute in unsigned numbers."""
        return self.type if self.wgsl else UNSIGNED.get(self.type, self.type)

    @property
    def calls_in_a_row(self) -> int:
        """More calls of a store accessor than this are made in a loop: each is the whole epilogue once more.

        A loop over registers is written out by the compilers of WGSL in any case, and costs more than the calls do.
        """
        return 64 if self.wgsl else 16

    def vector(self, width: int) -> str:
        return self.plain.vector(self.computed, width)

    def let(self, name: str, width: int, value: str) -> str:
        return self.plain.let(name, self.vector(width), value)

    def position(self, name: str, value: str) -> str:
        return self.plain.position(name, value)

    def zero(self, name: str, width: int) -> str:
        kind = self.vector(width)
        return self.plain.variable(name, kind, f"{kind}()" if self.wgsl else "0")

    def loop(self, name: str, first: str, end: str, step: str) -> str:
        return self.plain.loop(name, first, f"< {end}", "++" if step == "1" else f" += {step}")

    def component(self, value: str, number: int, width: int) -> str:
        if width == 1:
            return value
        return f"{value}[{number}]" if self.wgsl else self.plain.component(value, number)

    def all(self, value: str, width: int) -> str:
        """The same number in all components."""
        return value if width == 1 else self.plain.construct(self.vector(width), [value])

    def made(self, values: Sequence[str]) -> str:
        return values[0] if len(values) == 1 else self.plain.construct(self.vector(len(values)), values)

    def loaded(self, value: str, width: int) -> str:
        """The value of an accessor, in the type of totals."""
        return value if self.computed == self.type else f"as_{self.vector(width)}({value})"

    def stored(self, value: str, width: int) -> str:
        """A total, in the type that an accessor takes."""
        return value if self.computed == self.type else f"as_{self.plain.vector(self.type, width)}({value})"

    def multiply_add(self, total: str, a: str, b: str) -> str:
        """WGSL leaves it to the driver whether a product is rounded before it is added, and few drivers choose well."""
        if self.wgsl and self.type == "f32":
            return f"{total} = fma({a}, {b}, {total});"
        return f"{total} += {a} * {b};"


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
