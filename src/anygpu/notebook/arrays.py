"""Arrays as HTML. To be shown, an array is neither computed nor read from its device."""

from __future__ import annotations

import numpy as np

from anygpu.array.core.array import Array
from anygpu.base.units import readable_bytes
from anygpu.notebook.markup import Html, details, framed, pairs, paragraph, tag
from anygpu.notebook.programs import program_body
from anygpu.store.tensor import Tensor

#: Elements beyond which only the edges are shown.
MOST_ELEMENTS = 100


def array_html(array: Array) -> str:
    value = array._value
    facts = [
        ("shape", str(array.shape)),
        ("dtype", array.dtype.name),
        ("size", readable_bytes(array.nbytes)),
        ("device", array.device),
    ]
    rest: list[object] = []
    if not value.computed:
        program = array.program
        count = len(program) - program.input_count
        facts.append(("values", "not computed yet"))
        rest.append(
            details(f"Still to be computed: {count:,} operation{'' if count == 1 else 's'}", program_body(program))
        )
    elif array.device == "numpy":
        facts.append(("values", "computed"))
        rest.append(values_html(array._host()))
    else:
        facts.append(("values", f"computed, on {array.device}; np.asarray(x) reads them"))
    return framed("Array", paragraph(tag("b", "Array")), pairs(facts, "Facts of the array"), *rest)


def tensor_html(tensor: Tensor) -> str:
    facts: list[tuple[str, object]] = [
        ("shape", str(tensor.shape)),
        ("dtype", tensor.dtype.name),
        ("size", readable_bytes(tensor.nbytes)),
        ("device", tensor.device),
        ("on", tensor.tier),
        ("owner", tensor.owner),
        ("holders", ", ".join(tensor.holders)),
        ("version", str(tensor.version)),
    ]
    if tensor.namespace:
        facts.insert(0, ("namespace", "/".join(tensor.namespace)))
    return framed(
        f"Tensor {tensor.name}", paragraph(tag("b", f"Tensor {tensor.name}")), pairs(facts, "Facts of the tensor")
    )


def values_html(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Html:
    text = np.array2string(values, threshold=MOST_ELEMENTS, edgeitems=3, separator=", ", max_line_width=96)
    return tag("pre", text, tabindex="0")
