"""Binary search in a sorted line, as the text of a function that any kernel can call."""

from __future__ import annotations

from string import Template
from typing import Literal

from anygpu.codegen.target import ComputeType, Target
from anygpu.codegen.templates.sort import KEY_TYPES, less_text, order_key
from anygpu.codegen.templates.stages import template
from anygpu.codegen.templates.values import TYPE_NAMES, Calls, carried, loaded, made, struct_text


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
    dialect = target.dialect
    calls: Calls = {}
    keys = tuple(KEY_TYPES.get(each, each) for each in components)
    less, _ = less_text(dialect, components, as_keys=True, struct=f"{name}_key", name=f"{name}_less")
    words = TYPE_NAMES[dialect]
    given = [(f"value_{k}", words[each]) for k, each in enumerate(components)]

    def key(expressions: list[str]) -> str:
        parts = zip(components, expressions, strict=True)
        return made(
            dialect, [order_key(each, loaded(dialect, each, text), calls) for each, text in parts], f"{name}_key"
        )

    values = {
        "name": name,
        "struct": f"{name}_key",
        "helpers": f"{struct_text(dialect, [carried(each) for each in keys], f'{name}_key')}\n\n{less}",
        "parameters": ", ".join(f"{one}: {kind}" if dialect == "wgsl" else f"{kind} {one}" for one, kind in given),
        "value": key([one for one, _ in given]),
        "load": key([f"{line}_{k}(${{pass}}i)" for k in range(len(components))]),
        "length": str(length),
        "further": f"{name}_less(candidate, value)" if side == "left" else f"!{name}_less(value, candidate)",
    }
    return Template(template(dialect, "search")).safe_substitute(values), calls
