"""The parameters of an OpenCL C kernel, from its declarations."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anygpu.codegen.custom import opencl_text
from anygpu.codegen.custom.expressions import Number, evaluate_exactly
from anygpu.codegen.custom.opencl_text import TYPES, Function, Text
from anygpu.codegen.custom.preprocessing import with_defines
from anygpu.codegen.custom.reflected import Length, Reflected, ScalarParameter
from anygpu.codegen.custom.tokens import Unreadable
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.ops.custom import Parameter, Role, Three

_SCALARS = ("int", "uint", "long", "ulong", "float", "double", "half")
#: Bytes that an array's first element is surely aligned to.
_ALIGNED = 16


class Buffer(NamedTuple):
    dtype: DType
    #: Numbers in one element.
    parts: int


def reflected_opencl(
    source: str, entry: str | None, constants: Mapping[str, Number], updates: Sequence[str]
) -> Reflected:
    source = with_defines(source, constants)
    text = Text(source)
    function = entry_of(text, entry)
    parameters: list[Parameter] = []
    scalars: list[ScalarParameter] = []
    lengths: dict[str, Length] = {}
    for each in function.parameters:
        name = each.name.text
        if each.stars:
            buffer = buffer_of(text, each)
            reads = each.is_const or each.space == "constant"
            role: Role = "input" if reads else "update" if name in updates else "output"
            parameters.append(Parameter(name, buffer.dtype, role))
            if buffer.parts > 1:
                lengths[name] = Length(multiple=buffer.parts)
        else:
            scalars.append(ScalarParameter(name, TYPES[scalar_of(text, each)]))  # type: ignore[arg-type]
    return Reflected(
        language="opencl",
        entry=function.name.text,
        source=source,
        parameters=tuple(parameters),
        scalars=tuple(scalars),
        order=tuple(each.name.text for each in function.parameters),
        group=group_of(text, function),
        constants=text.constants,
        lengths=lengths,
        foldable=True,
        group_memory=group_memory(text),
    )


def entry_of(text: Text, entry: str | None) -> Function:
    kernels = [each for each in text.functions if each.is_kernel and each.body >= 0]
    names = ", ".join(each.name.text for each in kernels) or "none"
    if entry is not None:
        chosen = next((each for each in kernels if each.name.text == entry), None)
        if chosen is None:
            raise Unreadable(f"there is no __kernel function {entry!r}; available: {names}.")
        return chosen
    if not kernels:
        raise Unreadable("no function is marked with __kernel. Write __kernel before void.")
    if len(kernels) > 1:
        raise Unreadable(
            f"the source has several __kernel functions ({names}). Choose one with entry=.", kernels[1].name
        )
    return kernels[0]


def buffer_of(text: Text, parameter: opencl_text.Parameter) -> Buffer:
    name = parameter.name.text
    if parameter.stars > 1:
        raise Unreadable(f"{name} is a pointer to pointers. Kernels take arrays of numbers.", parameter.name)
    if parameter.space == "local":
        raise Unreadable(
            f"{name} is memory of the group. Declare it inside of the kernel, with a length: __local float {name}[64];",
            parameter.tokens[0],
        )
    if parameter.space == "private":
        raise Unreadable(f"{name} points to nowhere. Write __global before it.", parameter.tokens[0])
    found = text.element(parameter.words)
    if found is None:
        words = " ".join(word.text for word in parameter.words)
        raise Unreadable(
            f"{name} points to {words or 'nothing'}. Kernels take arrays of numbers, or vectors of 2, 4 or 8 of them.",
            parameter.tokens[0],
        )
    dtype, parts = TYPES[found[0]], found[1]
    if parts == 3:
        raise Unreadable(
            f"elements of {found[0]}3 are as far apart as those of {found[0]}4. Use {found[0]} and three indices, or "
            f"vload3(i, {name}).",
            parameter.tokens[0],
        )
    if parts * ITEMSIZE[dtype] > _ALIGNED:
        raise Unreadable(
            f"arrays begin at multiples of {_ALIGNED} bytes, and {found[0]}{parts} wants more. Use {found[0]} and "
            f"vload{parts}(i, {name}).",
            parameter.tokens[0],
        )
    return Buffer(dtype, parts)


def scalar_of(text: Text, parameter: opencl_text.Parameter) -> str:
    """The name of its type."""
    found = text.element(parameter.words)
    if found is None or found[1] != 1 or found[0] not in _SCALARS:
        words = " ".join(word.text for word in parameter.words)
        raise Unreadable(
            f"{parameter.name.text} is {words}. Numbers are {', '.join(_SCALARS)}; arrays are __global pointers.",
            parameter.tokens[0],
        )
    if parameter.space != "private":
        raise Unreadable(f"{parameter.name.text} is a number, and those have no address space.", parameter.tokens[0])
    return found[0]


def group_of(text: Text, function: Function) -> Three | None:
    """The group size that reqd_work_group_size states; `None` without it."""
    place = function.start
    end = function.body
    while place < end:
        if text.tokens[place].text == "reqd_work_group_size" and text.tokens[place + 1].text == "(":
            sizes = list(text.separated(place + 2, text.partners[place + 1]))
            if len(sizes) != 3:
                raise Unreadable("reqd_work_group_size takes three numbers.", text.tokens[place])
            values: list[int] = []
            for words in sizes:
                value = evaluate_exactly(words, text.enumerators)
                if not value:
                    raise Unreadable(f"{value} is not a size of a group.", words[0])
                values.append(value)
            return values[0], values[1], values[2]
        place += 1
    return None


def group_memory(text: Text) -> int:
    """Bytes of all arrays that are declared as __local."""
    total = 0
    for place, token in enumerate(text.tokens):
        if opencl_text.SPACES.get(token.text) != "local" or token.kind != "name":
            continue
        start = place
        while start and text.is_specifier(text.tokens[start - 1]):
            start -= 1
        if not start or text.begins_statement(start):
            # A pointer, or a length that is not understood: checks refuse it, and compilers have a count of their own.
            with contextlib.suppress(Unreadable):
                total += sum(variable.nbytes for _, variable, _ in text.declared(start, text.next_mark(start, ";")))
    return total
