"""Declarations of just the built-in functions that a kernel uses, for a compiler that reads them all each time.

PoCL spends nine tenths of the first stage of compilation on Clang's header, 18,000 lines of built-in functions. A
kernel that comes with its own declarations is compiled without it, eight times faster. A name that is not known here is
an error of the compiler, never a wrong result, and the caller then builds the same text with the whole header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from anygpu.codegen.custom.opencl_functions import FAMILIES

#: The header's include guard: defined beforehand, nothing of it is read.
WITHOUT_HEADER = "-D_OPENCL_H_"

_SIGNED = ("char", "short", "int", "long")
_INTEGERS = tuple(name for signed in _SIGNED for name in (signed, f"u{signed}"))
_BITS = {"char": 8, "short": 16, "int": 32, "long": 64, "half": 16, "float": 32, "double": 64}
_SPACES = ("__global", "__local", "__private")

_PURE = "__attribute__((overloadable, const))"
_EFFECT = "__attribute__((overloadable))"
# Control flow around a barrier must stay as it is written.
_CONVERGENT = "__attribute__((overloadable, convergent))"

_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names.split()}
_ATOMIC = re.compile(r"(atomic|atom)_(add|sub|xchg|min|max|and|or|xor|inc|dec|cmpxchg)")
_CONVERSION = re.compile(r"convert_(u?(?:char|short|int|long)|float|double|half)(2|3|4|8|16)?(?:_sat)?(?:_rt[ezpn])?")
_VECTOR_ACCESS = re.compile(r"v(load|store)(2|3|4|8|16)")
_HALF_ACCESS = re.compile(r"v(load|store)_half(2|3|4|8|16)?(?:_rt[ezpn])?")

_IDENTIFIER = re.compile(r"\b[a-z][a-z0-9_]*\b")
#: What mentions vectors of some width: a type, a conversion to one, or an access to memory.
_VECTOR = re.compile(r"(?:char|short|int|long|half|float|double|vload|vstore)(2|3|4|8|16)(?![0-9])")


def with_declarations(source: str, *, floats: Iterable[str] = ("float", "double")) -> str:
    """The kernel behind declarations of what it uses; `floats` are the floating types of the device.

    The compiler's messages still count the lines of `source`.
    """
    floats = tuple(floats)
    widths = ("", *sorted(set(_VECTOR.findall(source)), key=int))
    names = sorted(set(_IDENTIFIER.findall(source)))
    declared = [line for name in names for line in _declarations(name, floats, widths)]
    return "\n".join([*declared, "#line 1", source])


def _declarations(name: str, floats: tuple[str, ...], widths: tuple[str, ...]) -> Iterator[str]:
    every = _INTEGERS + floats
    types = {"float": floats, "integer": _INTEGERS, "any": every}
    match (_FAMILY_OF.get(name) or "").split(", "):
        case ["work item"]:
            yield f"size_t {_PURE} {name}(uint);"
        case ["barrier"]:
            yield f"void {_CONVERGENT} {name}(cl_mem_fence_flags);"
        case ["fence"]:
            yield f"void {_EFFECT} {name}(cl_mem_fence_flags);"
        case [kind, arguments]:
            count = int(arguments[0])
            yield from _same(name, types[kind], count, widths)
            if arguments.endswith("scalar"):
                yield from _with_scalars(name, types[kind], count, widths)
        case ["float test"]:
            yield from _float_tests(name, floats, widths)
        case ["absolute"]:
            yield from (f"{_unsigned(t)}{w} {_PURE} {name}({t}{w});" for t in _INTEGERS for w in widths)
        case ["scaled"]:
            yield from (f"{t}{w} {_PURE} {name}({t}{w}, int{w});" for t in floats for w in widths)
            yield from (f"{t}{w} {_PURE} {name}({t}{w}, int);" for t in floats for w in widths[1:])
        case ["integer power"]:
            yield from (f"{t}{w} {_PURE} {name}({t}{w}, int{w});" for t in floats for w in widths)
        case ["exponent"]:
            yield from (f"int{w} {_PURE} {name}({t}{w});" for t in floats for w in widths)
        case ["taken apart"]:
            yield from (
                f"{t}{w} {_EFFECT} {name}({t}{w}, {s} int{w} *);" for t in floats for w in widths for s in _SPACES
            )
        case ["of lanes"]:
            yield from (f"int {_PURE} {name}({t}{w});" for t in _SIGNED for w in widths)
        case ["select"]:
            yield from _selections(every, widths)
        case _:
            yield from _by_pattern(name, floats, every)


def _by_pattern(name: str, floats: tuple[str, ...], every: tuple[str, ...]) -> Iterator[str]:
    if match := _ATOMIC.fullmatch(name):
        yield from _atomics(name, match[1], match[2])
    elif match := _CONVERSION.fullmatch(name):
        width = match[2] or ""
        yield from (f"{match[1]}{width} {_PURE} {name}({t}{width});" for t in every if match[1] in every)
    elif match := _VECTOR_ACCESS.fullmatch(name):
        yield from _vector_accesses(name, match[1], match[2], every)
    elif match := _HALF_ACCESS.fullmatch(name):
        yield from _half_accesses(name, match[1], match[2] or "", floats)


def _same(name: str, types: Iterable[str], arguments: int, widths: tuple[str, ...]) -> Iterator[str]:
    for type_ in types:
        for width in widths:
            yield f"{type_}{width} {_PURE} {name}({', '.join([type_ + width] * arguments)});"


def _with_scalars(name: str, types: Iterable[str], arguments: int, widths: tuple[str, ...]) -> Iterator[str]:
    """A vector first, then single numbers that go for all of it."""
    for type_ in types:
        for width in widths[1:]:
            scalars = ", ".join([type_] * (arguments - 1))
            yield f"{type_}{width} {_PURE} {name}({type_}{width}, {scalars});"


def _float_tests(name: str, floats: Iterable[str], widths: tuple[str, ...]) -> Iterator[str]:
    for type_ in floats:
        yield f"int {_PURE} {name}({type_});"
        yield from (f"{_signed_of(type_)}{w} {_PURE} {name}({type_}{w});" for w in widths[1:])


def _selections(types: Iterable[str], widths: tuple[str, ...]) -> Iterator[str]:
    for type_ in types:
        chooser = _signed_of(type_)
        for width in widths:
            yield f"{type_}{width} {_PURE} select({type_}{width}, {type_}{width}, {chooser}{width});"
            yield f"{type_}{width} {_PURE} select({type_}{width}, {type_}{width}, u{chooser}{width});"


def _atomics(name: str, family: str, operation: str) -> Iterator[str]:
    types: tuple[str, ...] = ("int", "uint") if family == "atomic" else ("int", "uint", "long", "ulong")
    if name == "atomic_xchg":
        types += ("float",)
    values = {"inc": 0, "dec": 0, "cmpxchg": 2}.get(operation, 1)
    for type_ in types:
        for space in ("__global", "__local"):
            arguments = ", ".join([f"volatile {space} {type_} *", *[type_] * values])
            yield f"{type_} {_EFFECT} {name}({arguments});"


def _vector_accesses(name: str, direction: str, width: str, types: Iterable[str]) -> Iterator[str]:
    for type_ in types:
        if direction == "load":
            for space in (*_SPACES, "__constant"):
                yield f"{type_}{width} __attribute__((overloadable, pure)) {name}(size_t, const {space} {type_} *);"
        else:
            for space in _SPACES:
                yield f"void {_EFFECT} {name}({type_}{width}, size_t, {space} {type_} *);"


def _half_accesses(name: str, direction: str, width: str, floats: Iterable[str]) -> Iterator[str]:
    if direction == "load":
        for space in (*_SPACES, "__constant"):
            yield f"float{width} __attribute__((overloadable, pure)) {name}(size_t, const {space} half *);"
    else:
        for type_ in floats:
            if type_ != "half":
                yield from (f"void {_EFFECT} {name}({type_}{width}, size_t, {space} half *);" for space in _SPACES)


def _signed_of(type_: str) -> str:
    """The signed integer of the same size."""
    bits = _BITS[type_.removeprefix("u")]
    return next(signed for signed in _SIGNED if _BITS[signed] == bits)


def _unsigned(type_: str) -> str:
    return type_ if type_.startswith("u") else f"u{type_}"
