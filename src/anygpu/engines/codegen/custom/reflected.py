"""The facts about a user's kernel that its text states, and what is the same for both languages in reading them.

WGSL is read by `wgsl`, from its declarations. OpenCL C is read by its compiler (`engines.opencl.reflection`): here are
only the values of its `#define`s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from anygpu.errors import InvalidKernel
from anygpu.program.ops.custom import MAX_PARAMETERS, MAX_SOURCE, Language, Parameter, Three

ConstantNumber = int | float | bool

ScalarType = Literal["int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


class ScalarParameter(msgspec.Struct, frozen=True):
    """A number that the kernel takes; `anygpu.program.ops.custom.Scalar` is this with a value."""

    name: str
    dtype: ScalarType


class Length(msgspec.Struct, frozen=True):
    """The lengths that a buffer may have: any multiple of a number, or exactly that number."""

    multiple: int = 1
    exactly: int | None = None


class Reflected(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a kernel that its text states."""

    language: Language
    #: The function in the text.
    entry: str
    #: With the values of the constants in it. Lines are those of the user's own text.
    source: str
    #: Its buffers: in WGSL by their binding, in OpenCL C in the order of the parameters.
    parameters: tuple[Parameter, ...]
    scalars: tuple[ScalarParameter, ...]
    #: Invocations of a group; `None` where the text leaves it open (OpenCL C without reqd_work_group_size).
    group: Three | None
    #: For buffers that do not take every length.
    lengths: dict[str, Length]
    #: Bytes that the invocations of a group share.
    group_memory: int = 0


class Unreadable(Exception):
    """Why a text is not understood, and at which of its characters."""

    def __init__(self, why: str, at: int | None = None) -> None:
        """`why` is a sentence for the user, `at` the place in the source."""
        super().__init__(why)
        self.why = why
        self.at = at

    def for_kernel(self, title: str, source: str) -> InvalidKernel:
        """Return the error for the user, with the line and column where they are known."""
        if self.at is None:
            return InvalidKernel(title, self.why)
        line, column = source.count("\n", 0, self.at) + 1, self.at - source.rfind("\n", 0, self.at)
        return InvalidKernel(title, self.why, line=line, column=column)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD_OF_WGSL = re.compile(r"@\s*(?:compute|group|workgroup_size)\b")
_WORD_OF_OPENCL = re.compile(r"\b(?:__kernel|kernel|__global)\b")


def language_of(source: str, title: str = "", language: Language | None = None) -> Language:
    """Return the language: as given, or told by a word that only one has. Raises `InvalidKernel` if unknown."""
    if len(source) > MAX_SOURCE:
        raise InvalidKernel(title, f"its source has {len(source):,} characters; {MAX_SOURCE:,} is the most.")
    if "\0" in source:
        raise InvalidKernel(title, "its source has a zero character in it. Remove it.")
    text = _COMMENT.sub(" ", source)
    if language is not None:
        return language
    if _WORD_OF_WGSL.search(text):
        return "wgsl"
    if _WORD_OF_OPENCL.search(text):
        return "opencl"
    raise InvalidKernel(
        title,
        "this is neither WGSL (a function with @compute) nor OpenCL C (a function with __kernel). If it is one of "
        'them, say which: language="wgsl" or language="opencl".',
    )


def entry_among(kernels: Iterable[str], entry: str | None, mark: str) -> str:
    """Return the kernel of this name, or the only one; `mark` is written before kernels. Raises `Unreadable`."""
    known = list(kernels)
    names = ", ".join(known) or "none"
    if entry is not None and entry not in known:
        raise Unreadable(f"there is no {mark} function {entry!r}; available: {names}.")
    if not known:
        raise Unreadable(f"no function is marked with {mark}. Write it before the kernel.")
    if entry is None and len(known) > 1:
        raise Unreadable(f"the source has several {mark} functions ({names}). Choose one with entry=.")
    return entry or known[0]


def with_updates(found: Reflected, title: str, updates: Sequence[str]) -> Reflected:
    """Return the kernel with the buffers that it changes as arguments too.

    Raises `InvalidKernel` for equal or too many names, for no result, and for wrong `updates`.
    """
    names = [each.name for each in found.parameters] + [each.name for each in found.scalars]
    if len(names) > MAX_PARAMETERS:
        raise InvalidKernel(title, f"it takes {len(names)} buffers and numbers; {MAX_PARAMETERS} is the most.")
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise InvalidKernel(title, f"two of its parameters are called {twice}. Rename one of them.")
    roles = {each.name: each.role for each in found.parameters}
    if "output" not in roles.values():
        raise InvalidKernel(
            title,
            "it writes to no buffer, so it has no result. Declare one as var<storage, read_write> (WGSL) or as "
            "__global without const (OpenCL C).",
        )
    for update in updates:
        if update not in roles:
            raise InvalidKernel(title, f"updates= names {update!r}, and it has no buffer of that name.")
        if roles[update] == "input":
            raise InvalidKernel(title, f"updates= names {update}, and the kernel only reads it.")
    parameters = tuple(
        msgspec.structs.replace(each, role="update") if each.name in updates else each for each in found.parameters
    )
    return msgspec.structs.replace(found, parameters=parameters)


# -- the values of OpenCL C's #defines


_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\b(?!\()((?:(?!/[/*])[^\\\n]|\\\r?\n)*)", re.MULTILINE)
#: A literal of type double.
_DOUBLE = re.compile(r"(?:\d\.\d*|\.\d+)(?![\d.]*f)", re.IGNORECASE)


def with_defines(source: str, given: Mapping[str, ConstantNumber]) -> str:
    """Return the text with other values for its #defines. Raises `Unreadable` for names or values that do not fit."""
    known = {found[1] for found in _DEFINE.finditer(source)}
    for name in given:
        if name not in known:
            raise Unreadable(f"there is no #define {name!r} to set; available: {', '.join(sorted(known)) or 'none'}.")

    def replaced(found: re.Match[str]) -> str:
        name, before = found[1], found[2]
        if name not in given:
            return found[0]
        kept = found[0][: found.start(2) - found.start()]
        return f"{kept} {_spelled(before, given[name])} " + "\\\n" * before.count("\n")

    return _DEFINE.sub(replaced, source)


def _spelled(before: str, value: ConstantNumber) -> str:
    """Return a constant as OpenCL C writes it, in its earlier type. The compiler checks whether it fits."""
    if isinstance(value, bool):
        return str(int(value))
    is_double = _DOUBLE.search(before) is not None
    if isinstance(value, float) or is_double or re.search(r"\.\d*f", before, re.IGNORECASE):
        text = f"{float(value)!r}{'' if is_double else 'f'}"
    else:
        text = f"{value}{'u' if value >= 0 and before.rstrip(') ').lower().endswith('u') else ''}"
    return f"({text})" if text.startswith("-") else text
