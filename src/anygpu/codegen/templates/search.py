"""Binary search in a sorted line, as the text of a function that any kernel can call."""

from __future__ import annotations

from string import Template
from typing import Literal

from anygpu.codegen.syntax import SYNTAX
from anygpu.codegen.target import ComputeType, Target
from anygpu.codegen.templates.sort import KEY_TYPES, less_text, order_key
from anygpu.codegen.templates.source import template
from anygpu.codegen.templates.values import Calls, carried, loaded, made, struct_text


def search_text(
    target: Target,
    name: str,
    components: tuple[ComputeType, ...],
    length: int,
    side: Literal["left", "right"],
    line: str = "load_line",
) -> tuple[str, Calls]:
    """The text of `name(${pass}value_0, …) -> i32` over the accessors load_line_0(${pass}i), …, and what it calls.

    The text holds the generator's placeholders `${pass}`, `${taken}`, and one for each of the calls. NaN is last in the
    order of the line, as everywhere.
    """
    syntax = SYNTAX[target.dialect]
    calls: Calls = {}
    keys = tuple(KEY_TYPES.get(each, each) for each in components)
    less, _ = less_text(syntax, components, as_keys=True, struct=f"{name}_key", name=f"{name}_less")
    given = {f"value_{k}": syntax.types[each] for k, each in enumerate(components)}

    def key(expressions: list[str]) -> str:
        parts = zip(components, expressions, strict=True)
        return made(syntax, [order_key(each, loaded(syntax, each, text), calls) for each, text in parts], f"{name}_key")

    values = {
        "name": name,
        "struct": f"{name}_key",
        "helpers": f"{struct_text(syntax, [carried(each) for each in keys], f'{name}_key')}\n\n{less}",
        "parameters": ", ".join(syntax.parameter(one, kind) for one, kind in given.items()),
        "value": key(list(given)),
        "load": key([f"{line}_{k}(${{pass}}i)" for k in range(len(components))]),
        "length": str(length),
        "further": f"{name}_less(candidate, value)" if side == "left" else f"!{name}_less(value, candidate)",
    }
    return Template(template(target.dialect, "search")).safe_substitute(values), calls
