"""Values of several components as text in both dialects: a complex number, a key with its position, a flag with a sum.

Such a value is a struct `Value` with the fields part_0, part_1, …; in it a bool is a u32.
"""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.syntax import Syntax
from anygpu.codegen.target import ComputeType

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
