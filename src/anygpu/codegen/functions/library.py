"""The name that a kernel calls for a function, and the definitions of the names that are not the dialect's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from anygpu.codegen.functions.source import defined, definition
from anygpu.codegen.target import ComputeType, Dialect, Target
from anygpu.errors import InvalidProgram
from anygpu.program.functions import FUNCTIONS, TRANSCENDENTAL

FLOATS: tuple[ComputeType, ...] = ("f32", "f64")
SIGNED: tuple[ComputeType, ...] = ("i32", "i64")
UNSIGNED: tuple[ComputeType, ...] = ("u32", "u64")
INTEGERS = (*SIGNED, *UNSIGNED)

#: Functions of floats that WGSL has built in, and OpenCL C.
_WGSL_NAME = {fn: row.wgsl for fn, row in FUNCTIONS.items() if row.wgsl}
_OPENCL_NAME = {fn: row.opencl for fn, row in FUNCTIONS.items() if row.opencl}

#: Those of WGSL whose accuracy, and whose care for infinities and NaN, is left to the device.
_WGSL_LOOSE = TRANSCENDENTAL | {"sign"}
#: Those of OpenCL C whose accuracy is promised within some units only: a root is rounded correctly, and a rest exact.
_OPENCL_LOOSE = TRANSCENDENTAL - {"sqrt", "fmod"}

#: Built-in functions of WGSL that mean what NumPy means by their definition.
_WGSL: dict[tuple[str, ComputeType], str] = {
    **{(fn, type): name for fn, name in _WGSL_NAME.items() if fn not in _WGSL_LOOSE for type in FLOATS},
    **{("minimum", type): "min" for type in INTEGERS},
    **{("maximum", type): "max" for type in INTEGERS},
    **{("abs", type): type for type in UNSIGNED},
    **{("order_key", type): type for type in UNSIGNED},
    ("popcount", "u32"): "countOneBits",
}

#: Of those whose arguments are angles, our own take the large ones.
_WGSL_CANDIDATES = {f"{fn}_f32": _WGSL_NAME[fn] for fn in _WGSL_NAME if fn in _WGSL_LOOSE}
_WGSL_CANDIDATES |= {f"{fn}_f32": f"moderate_{fn}_f32" for fn in ("sin", "cos", "tan")} | {"sqrt_f64": "sqrt"}

_OPENCL_TYPE: dict[ComputeType, str] = {
    "i32": "int",
    "u32": "uint",
    "i64": "long",
    "u64": "ulong",
    "f32": "float",
    "f64": "double",
}

#: Built-in functions of OpenCL C that mean exactly what NumPy means.
_OPENCL: dict[tuple[str, ComputeType], str] = {
    **{(fn, type): name for fn, name in _OPENCL_NAME.items() if fn not in _OPENCL_LOOSE for type in FLOATS},
    **{("minimum", type): "min" for type in INTEGERS},
    **{("maximum", type): "max" for type in INTEGERS},
    **{("abs", type): f"convert_{_OPENCL_TYPE[type]}" for type in UNSIGNED},
    **{("order_key", type): f"convert_{_OPENCL_TYPE[type]}" for type in UNSIGNED},
    **{("popcount", type): "popcount" for type in UNSIGNED},
}

#: Ours is faster where both are made of the same instructions: drivers compute it with two exponentials.
_OUTDONE = frozenset(("tanh_f32",))

#: Built-in functions of which we have versions of our own, and which are called instead where `Target.trusted` has
#: their name. In WGSL those were measured to be accurate; in OpenCL C, which promises that, to be fast.
CANDIDATES: dict[Dialect, dict[str, str]] = {
    "wgsl": _WGSL_CANDIDATES,
    "opencl": {f"{fn}_{type}": name for type in FLOATS for fn, name in _OPENCL_NAME.items() if fn in _OPENCL_LOOSE},
}

#: The end of a vector function's name.
_VECTOR = re.compile(r"_f(?:32|64)x(\d+)$")

#: Functions whose name says their types already.
_PLAIN = frozenset(
    (
        *("wrap_i8", "wrap_i16", "wrap_u8", "wrap_u16"),
        *("round_f16", "nextafter_f16", "f16_from_bits", "f16_to_bits"),
        *("round_bf16", "nextafter_bf16", "bf16_from_bits", "bf16_to_bits"),
    )
)


@cache
def call(dialect: Dialect, fn: str, type: ComputeType, target: Target) -> str:
    """The name to call in a kernel for a function of operands of a type: the dialect's own, or one of ours.

    `fn` is a function of `anygpu.program.functions`, or `cast_<to>`, `order_key`, `wrap_i8` … `wrap_u16`,
    `round_f16`, `round_bf16`, `nextafter_f16`, `nextafter_bf16`, `f16_from_bits` and its like, `infinity`, `nan`.
    """
    if fn.startswith("cast_"):
        return _cast(dialect, type, fn.removeprefix("cast_"))
    name = fn if fn in _PLAIN else f"{fn}_{type}"
    outdone = target.emulated and name in _OUTDONE
    if name in target.trusted and name in CANDIDATES[dialect] and not outdone:
        return CANDIDATES[dialect][name]
    builtin = (_WGSL if dialect == "wgsl" else _OPENCL).get((fn, type))
    return builtin if builtin is not None else _ours(dialect, name, fn, type)


@cache
def vector_call(dialect: Dialect, fn: str, type: ComputeType, target: Target, width: int) -> str | None:
    """The name to call with vectors of `width` components, or `None` where a function takes single values only.

    In WGSL a conversion is named by its type alone, without the vector around it.
    """
    name = call(dialect, fn, type, target)
    if name == "fmod":
        return None  # Given vectors of mixed special values, that of PoCL does not end.
    if name in defined(dialect):
        wide = f"{name}x{width}"
        return wide if dialect == "opencl" and wide in defined(dialect, width) else None
    return f"{name}{width}" if name.startswith("convert_") else name


@cache
def _cast(dialect: Dialect, source: ComputeType, wanted: str) -> str:
    name = f"cast_{source}_{wanted}"
    if name in defined(dialect):
        return name
    known = source in ("bool", *INTEGERS, *FLOATS) and wanted in ("bool", *INTEGERS, *FLOATS)
    if known and dialect == "wgsl":
        return wanted
    if known and wanted in _OPENCL_TYPE:
        return f"convert_{_OPENCL_TYPE[wanted]}"
    return _ours(dialect, name, f"cast_{wanted}", source)


def _ours(dialect: Dialect, name: str, fn: str, type: ComputeType) -> str:
    if name not in defined(dialect):
        raise InvalidProgram(f"{fn}: is not defined for {type} in {dialect}; cast the operands first.")
    return name


def definitions(dialect: Dialect, names: Iterable[str]) -> str:
    """The text of all named functions that are ours and of what they call, each once, callees first."""
    return _definitions(dialect, tuple(sorted(set(names))))


@cache
def _definitions(dialect: Dialect, names: tuple[str, ...]) -> str:
    widths = {1, *(int(found.group(1)) for name in names if (found := _VECTOR.search(name)))}
    ordered: dict[str, str] = {}

    def visit(name: str) -> None:
        width = next((width for width in widths if name in defined(dialect, width)), None)
        if width is not None and name not in ordered:
            found = definition(dialect, name, width)
            for used in found.uses:
                visit(used)
            ordered[name] = found.text

    for name in names:
        visit(name)
    return "\n\n".join(ordered.values()) + "\n" if ordered else ""
