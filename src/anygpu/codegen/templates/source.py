"""Reads template files, which are OpenCL C, and respells them in WGSL.

Templates use a small part of C: typed declarations, arrays, loops, barriers, casts to int, and `?:` of simple operands.
Each of these has one spelling in WGSL; shared arrays are declared outside of the kernel there. Where a template needs
different code in WGSL, that code stands between `#ifdef WGSL` and `#else` or `#endif`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from anygpu.codegen.functions.source import for_dialect
from anygpu.codegen.syntax import SYNTAX
from anygpu.codegen.target import Dialect

_FOLDER = Path(__file__).parent
_WGSL, _OPENCL = SYNTAX["wgsl"], SYNTAX["opencl"]
_TYPES = {spelled: _WGSL.types[type] for type, spelled in _OPENCL.types.items()}

#: The head of the kernel, and the arrays that stand first in it, with the comments on them.
_KERNEL = re.compile(
    r"__kernel __attribute__\(\(reqd_work_group_size\(\$group_size, 1, 1\)\)\)\n"
    r"void \$name\(\$parameters(\$builtins)?\) \{\n((?:    (?://.*|__local .*;)\n)*)"
)
_SHARED = re.compile(r"^ *__local (\S+) (\w+)\[(.+)\];$", re.MULTILINE)
_BUILTINS = "@builtin(workgroup_id) group_id: vec3<u32>", "@builtin(local_invocation_index) lane_index: u32"
#: A type: one of the language, a struct, or a placeholder.
_KIND = r"(int|bool|Value|\$\w+)"
_FUNCTION = re.compile(rf"^{_KIND} (\$?\w+)\((.*)\) \{{$", re.MULTILINE)
_PARAMETER = re.compile(rf"{_KIND} (\w+)")
#: Applied in this order, from OpenCL C to WGSL.
_RULES = [
    (re.compile(rf"\bconst {_KIND} (\w+) = "), r"let \2 = "),
    (re.compile(rf"(?<![\w$]){_KIND} (\w+) = "), r"var \2 = "),
    (re.compile(r"(?:\(int\))?get_local_id\(0\)"), _WGSL.lane),
    (re.compile(r"\(int\)(\w+)"), r"i32(\1)"),
    (re.compile(r"\((\$\w+)\)\(0\)"), r"\1()"),
    (re.compile(r"\((\$\w+)\)\("), r"\1("),
    (re.compile(r"\(([^()?\n]+) \? (\w+) : (\w+)\)"), r"select(\3, \2, \1)"),
    (re.compile(r"(?<== )([^?\n;]+) \? ([^?\n;]+) : ([^?\n;]+);"), r"select(\3, \2, \1);"),
    (re.compile(re.escape(_OPENCL.barrier)), _WGSL.barrier),
]
_ARRAY = re.compile(rf"(?<![\w$]){_KIND} (\w+)\[([^\]]+)\];")
_UNSET = re.compile(rf"^( *){_KIND} ((?:\w+, )*\w+);$", re.MULTILINE)


@cache
def template(dialect: Dialect, name: str) -> str:
    text = for_dialect(dialect, (_FOLDER / f"{name}.cl").read_text(encoding="utf-8"))
    return in_wgsl(text) if dialect == "wgsl" else text


def in_wgsl(text: str) -> str:
    text = _KERNEL.sub(_kernel, text)
    text = _FUNCTION.sub(_function, text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _ARRAY.sub(lambda found: _WGSL.array(found[2], _kind(found[1]), found[3]), text)
    return _UNSET.sub(_unset, text)


def _kind(spelled: str) -> str:
    return _TYPES.get(spelled, spelled)


def _kernel(found: re.Match[str]) -> str:
    inside = _SHARED.sub(lambda each: _WGSL.shared_array(each[2], _kind(each[1]), each[3]), found[2])
    shared = "".join(f"{line.strip()}\n" for line in inside.splitlines())
    if found[1]:
        arguments = "\n" + "".join(f"    {each},\n" for each in _BUILTINS) + f"    {found[1]}\n"
    else:
        arguments = ", ".join(_BUILTINS)
    between = "\n" if shared else ""
    return f"{shared}{between}@compute @workgroup_size($group_size)\nfn $name({arguments}) {{\n"


def _function(found: re.Match[str]) -> str:
    parameters = _PARAMETER.sub(lambda each: _WGSL.parameter(each[2], _kind(each[1])), found[3])
    return f"fn {found[2]}({parameters}) -> {_kind(found[1])} {{"


def _unset(found: re.Match[str]) -> str:
    return "\n".join(f"{found[1]}var {name}: {_kind(found[2])};" for name in found[3].split(", "))
