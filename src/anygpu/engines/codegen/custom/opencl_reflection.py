"""The parameters of an OpenCL C kernel, from its declarations, and the built-in functions that it may call.

`reflected_opencl` finds the entry point and the role of each parameter: pointers to constant memory are read, others
are written, and numbers are passed by value. `buffer_of`, `scalar_of` and `group_of` read single declarations; a kernel
that they do not understand is refused with its line.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.custom import opencl_text
from anygpu.engines.codegen.custom.opencl_text import TYPES, OpenCLFunction, Text
from anygpu.engines.codegen.custom.preprocessing import with_defines
from anygpu.engines.codegen.custom.reflected import (
    ConstantNumber,
    Length,
    Reflected,
    ScalarParameter,
    entry_among,
    evaluate_exactly,
)
from anygpu.engines.codegen.custom.tokens import Unreadable, words_in
from anygpu.program.dtypes import ITEMSIZE, DType
from anygpu.program.functions import BINARY, FUNCTIONS, TESTS, UNARY
from anygpu.program.ops.custom import Parameter, Role, Three


def _of_table(functions: Iterable[str]) -> str:
    """The built-in functions of OpenCL C that elementwise functions are."""
    return " ".join(FUNCTIONS[fn].opencl for fn in functions if FUNCTIONS[fn].opencl)


#: Built-in functions by what they take, which is how they are declared; "float, 2" takes two numbers of a float type.
FAMILIES = {
    "work item": (
        "get_global_id get_global_offset get_global_size get_group_id get_local_id get_local_size get_num_groups"
    ),
    "barrier": "barrier",
    "fence": "mem_fence read_mem_fence write_mem_fence",
    "float, 1": (
        "acospi asinpi atanpi cospi erfc exp10 logb round rsqrt sinpi tanpi tgamma lgamma "
        + _of_table(fn for fn in UNARY if fn not in TESTS)
    ),
    "float, 2": f"atan2pi fdim powr remainder {_of_table(BINARY)}",
    "float, 2 or scalar": "fmax fmin",
    "float, 3": "fma mad",
    "float test": f"isnormal {_of_table(TESTS)}",
    "integer, 1": "clz popcount",
    "integer, 2": "add_sat hadd mul_hi rhadd rotate sub_sat",
    "integer, 3": "mad_hi mad_sat",
    "any, 2 or scalar": "max min",
    "any, 3 or scalar": "clamp",
    "absolute": "abs",
    "scaled": "ldexp",
    "integer power": "pown",
    "exponent": "ilogb",
    "taken apart": "frexp",
    "of lanes": "all any",
    "select": "select",
}


#: Others that take numbers, which no kernel of ours calls.
_OTHERS = (
    "get_work_dim maxmag minmag nan rootn abs_diff ctz upsample mad24 mul24 degrees mix radians step smoothstep sign "
    "cross dot distance length normalize fast_distance fast_length fast_normalize isequal isnotequal isgreater "
    "isgreaterequal isless islessequal islessgreater isordered isunordered bitselect shuffle shuffle2 vec_step"
)


_NUMBER = r"(?:u?char|u?short|u?int|u?long|float|double|half)(?:2|3|4|8|16)?"


_PATTERNS = re.compile(
    rf"convert_{_NUMBER}(?:_sat)?(?:_rt[ezpn])?|as_{_NUMBER}"
    r"|(?:half|native)_(?:cos|divide|exp|exp2|exp10|log|log2|log10|powr|recip|rsqrt|sin|sqrt|tan)"
)


#: All but what takes an address.
_HARMLESS = words_in(" ".join((_OTHERS, *(names for family, names in FAMILIES.items() if family != "taken apart"))))


#: Functions that take the address of one number of 32 bits, or of 64.
ATOMIC = frozenset(
    f"atomic_{what}" for what in ("add", "sub", "xchg", "inc", "dec", "cmpxchg", "min", "max", "and", "or", "xor")
)


ATOM = frozenset(name.replace("atomic_", "atom_") for name in ATOMIC)


#: Compilers call these by themselves, and must not find a user's own instead.
_OF_COMPILERS = words_in("main memchr memcmp memcpy memmove memset bcmp bcopy bzero strlen abort exit malloc free")


def is_harmless(name: str) -> bool:
    return name in _HARMLESS or _PATTERNS.fullmatch(name) is not None


def may_be_defined(name: str) -> bool:
    """Whether a text may have a function of its own with this name."""
    return not is_harmless(name) and name not in _OF_COMPILERS and not name.startswith(("atom", "vload", "vstore"))


_SCALARS = ("int", "uint", "long", "ulong", "float", "double", "half")


#: Bytes that an array's first element is surely aligned to.
_ALIGNED = 16


class OpenCLBuffer(NamedTuple):
    """The element type of a buffer parameter."""

    dtype: DType
    #: Numbers in one element.
    parts: int


def reflected_opencl(
    source: str, entry: str | None, constants: Mapping[str, ConstantNumber], updates: Sequence[str]
) -> Reflected:
    """The parameters, scalars and group size of a kernel, read from its declarations; raises `Unreadable` with the
    place of what is not understood.
    """
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


def entry_of(text: Text, entry: str | None) -> OpenCLFunction:
    """The kernel of this name, or the only one; raises `Unreadable` otherwise."""
    kernels = [each for each in text.functions if each.is_kernel and each.body >= 0]
    return entry_among(kernels, entry, "__kernel", "__kernel before void")


def buffer_of(text: Text, parameter: opencl_text.OpenCLParameter) -> OpenCLBuffer:
    """The element type of a pointer parameter; refuses pointers to pointers, local memory and unknown types."""
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
    return OpenCLBuffer(dtype, parts)


def scalar_of(text: Text, parameter: opencl_text.OpenCLParameter) -> str:
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


def group_of(text: Text, function: OpenCLFunction) -> Three | None:
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
