"""Reflects on a kernel's text: the buffers and numbers that it takes, its constants and the size of its groups.

Everything that is not understood is refused here, before any compiler sees it, with its place in the user's own text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anygpu.codegen.custom.expressions import Number
from anygpu.codegen.custom.opencl_reflection import reflected_opencl
from anygpu.codegen.custom.reflected import Length, Reflected, ScalarParameter
from anygpu.codegen.custom.tokens import Unreadable, first_tokens
from anygpu.codegen.custom.wgsl_kernels import reflected_wgsl
from anygpu.errors import InvalidKernel
from anygpu.program.ops.custom import MAX_PARAMETERS, MAX_SOURCE, Language

__all__ = ["Length", "Number", "Reflected", "ScalarParameter", "language_of", "reflect"]

_LANGUAGES: tuple[Language, ...] = ("opencl", "wgsl")


def language_of(source: str) -> Language | None:
    """The language, by the first word that only one of them has; `None` when there is none."""
    for read_as in _LANGUAGES:
        before = ""
        for token in first_tokens(source, read_as):
            if before == "@" and token.text in ("compute", "group", "workgroup_size"):
                return "wgsl"
            if token.text in ("__kernel", "kernel", "__global"):
                return "opencl"
            before = token.text
    return None


def reflect(
    source: str,
    *,
    title: str = "",
    language: Language | None = None,
    entry: str | None = None,
    constants: Mapping[str, Number] | None = None,
    updates: Sequence[str] = (),
) -> Reflected:
    """Read a kernel's text. Raises `InvalidKernel`, with a line and a column where there are any.

    `title` is what errors call it; `constants` are values for WGSL's `override`s and OpenCL C's `#define`s; `updates`
    are the buffers that the kernel changes, and that a call therefore gives (others that it writes begin as zeros).
    """
    name = title or entry or ""
    if len(source) > MAX_SOURCE:
        raise InvalidKernel(name, f"its source has {len(source):,} characters; {MAX_SOURCE:,} is the most.")
    if "\0" in source:
        raise InvalidKernel(name, "its source has a zero character in it. Remove it.")
    found = language or language_of(source)
    if found is None:
        raise InvalidKernel(
            name,
            "this is neither WGSL (a function with @compute) nor OpenCL C (a function with __kernel). If it is one of "
            'them, say which: language="wgsl" or language="opencl".',
        )
    try:
        read = reflected_wgsl if found == "wgsl" else reflected_opencl
        result = read(source, entry, constants or {}, tuple(updates))
    except Unreadable as problem:
        raise problem.for_kernel(name) from None
    except RecursionError:
        raise InvalidKernel(name, "it is nested too deeply. Split it into steps.") from None
    return _checked(result, name, updates)


def _checked(result: Reflected, name: str, updates: Sequence[str]) -> Reflected:
    names = [each.name for each in result.parameters] + [each.name for each in result.scalars]
    if len(names) > MAX_PARAMETERS:
        raise InvalidKernel(name, f"it takes {len(names)} buffers and numbers; {MAX_PARAMETERS} is the most.")
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise InvalidKernel(name, f"two of its parameters are called {twice}. Rename one of them.")
    if not any(each.role != "input" for each in result.parameters):
        raise InvalidKernel(
            name,
            "it writes to no buffer, so it has no result. Declare one as var<storage, read_write> (WGSL) or as "
            "__global without const (OpenCL C).",
        )
    for update in updates:
        role = next((each.role for each in result.parameters if each.name == update), None)
        if role is None:
            raise InvalidKernel(name, f"updates= names {update!r}, and it has no buffer of that name.")
        if role == "input":
            raise InvalidKernel(name, f"updates= names {update}, and the kernel only reads it.")
    return result
