"""The name that a kernel calls for a function: a built-in one where it is accurate enough, or our own definition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
import numpy as np

from anygpu.base.interrupts import float_errors_ignored
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.functions.source import defined, definition
from anygpu.engines.codegen.kernel import Binding, Kernel, Output, Schedule, Slot
from anygpu.engines.codegen.target import ComputeType, Dialect, Target
from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DType
from anygpu.program.functions import BINARY, FUNCTIONS, TRANSCENDENTAL
from anygpu.program.primitives import Spec

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
    """The name by which a dialect casts one compute type to another: our function, or the language's own conversion.

    Ours are those that differ from the language for NaN, infinity and numbers out of range.
    """
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
    """The name of a function of the library. Raises `InvalidProgram` where it is not defined for the type."""
    if name not in defined(dialect):
        raise InvalidProgram(f"{fn}: is not defined for {type} in {dialect}; cast the operands first.")
    return name


def definitions(dialect: Dialect, names: Iterable[str]) -> str:
    """The text of all named functions that are ours and of what they call, each once, callees first."""
    return _definitions(dialect, tuple(sorted(set(names))))


@cache
def _definitions(dialect: Dialect, names: tuple[str, ...]) -> str:
    """The texts of functions and of all that they call, each once and before its users."""
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


# -- decides which built-in functions of a device are accurate enough to be called instead of ours
#
# From measurements.
#
# WGSL promises little: sin to 2^-11, exp to 3 + 2|x| units, and nothing at all for infinities and NaN; but many
# devices do far better, and their own functions are fast. `measurement` is a schedule that evaluates them at chosen
# points, to be run once for each device and driver; `trusted` turns what came out into names for `Target.trusted`.
#
# OpenCL C promises accuracy but not speed: there a `race` decides.


#: The largest error in eps, relative to max(|result|, 1): three quarters of the published tolerance, as a reserve.
LIMIT = {"f32": 24.0, "f64": 48.0}

#: The criteria of measurements: those made by other criteria are made again.
JUDGED_BY = "accuracy, infinities, NaN and signs of zeros"

_GROUP_SIZE = 64


class FunctionTrial(msgspec.Struct, frozen=True):
    """Functions of one type and number of operands, which one kernel evaluates at the same points."""

    type: str
    #: Names in `CANDIDATES`; row i of the result belongs to name i.
    names: tuple[str, ...]
    binary: bool

    @property
    def points(self) -> tuple[HostArray, ...]:
        return _pairs(self.type) if self.binary else (_points(self.type),)


def trials(target: Target) -> tuple[FunctionTrial, ...]:
    """The trials for a target; none where the dialect itself promises accuracy."""
    if target.dialect != "wgsl":
        return ()
    found = []
    for type in ("f32", "f64") if target.has("f64") else ("f32",):
        for binary in (False, True):
            names = [
                name
                for name in CANDIDATES["wgsl"]
                if name.endswith(type) and (name.rsplit("_", 1)[0] in BINARY) == binary
            ]
            if names:
                found.append(FunctionTrial(type, tuple(names), binary))
    return tuple(found)


def measurement(target: Target) -> Schedule:
    """A kernel for each trial; output i has the results of trial i, one row for each of its names."""
    slots: list[Slot] = []
    kernels, outputs = [], []
    for number, trial in enumerate(trials(target)):
        first = len(slots)
        count = trial.points[0].size
        slots += [Slot(each.nbytes, "constant", each.tobytes()) for each in trial.points]
        slots.append(Slot(len(trial.names) * trial.points[0].nbytes, "output"))
        bindings = [Binding(slot, "read") for slot in range(first, len(slots) - 1)]
        kernels.append(
            Kernel(
                name=f"measure_accuracy_{number}",
                source=_text(trial, f"measure_accuracy_{number}"),
                bindings=(*bindings, Binding(len(slots) - 1, "write")),
                groups=-(-count // _GROUP_SIZE),
                group_size=_GROUP_SIZE,
            )
        )
        dtype: DType = "float32" if trial.type == "f32" else "float64"
        outputs.append(Output(len(slots) - 1, Spec((len(trial.names), count), dtype)))
    return Schedule(slots=tuple(slots), steps=tuple(kernels), outputs=tuple(outputs))


def _text(trial: FunctionTrial, name: str) -> str:
    """A kernel that computes the candidates of a trial at all points, a row of results for each."""
    operands = ("x", "y") if trial.binary else ("x",)
    count = trial.points[0].size
    lines = [
        f"@group(0) @binding({i}) var<storage, read> points_{operand}: array<{trial.type}>;"
        for i, operand in enumerate(operands)
    ]
    lines += [
        f"@group(0) @binding({len(operands)}) var<storage, read_write> results: array<{trial.type}>;",
        "",
        definitions("wgsl", [CANDIDATES["wgsl"][each] for each in trial.names]),
        f"@compute @workgroup_size({_GROUP_SIZE})",
        f"fn {name}(@builtin(global_invocation_id) id: vec3<u32>) {{",
        f"    if (id.x >= {count}u) {{",
        "        return;",
        "    }",
        *(f"    let {operand} = points_{operand}[id.x];" for operand in operands),
    ]
    lines += [
        f"    results[id.x + {row * count}u] = {CANDIDATES['wgsl'][each]}({', '.join(operands)});"
        for row, each in enumerate(trial.names)
    ]
    return "\n".join([*lines, "}", ""])


def trusted(target: Target, results: Sequence[HostArray]) -> tuple[str, ...]:
    """The names of the built-in functions that did well, from the outputs of the measurement."""
    good = [
        name
        for trial, rows in zip(trials(target), results, strict=True)
        for name, row in zip(trial.names, rows, strict=True)
        if is_good(trial, name, row)
    ]
    return tuple(sorted(good))


@float_errors_ignored
def is_good(trial: FunctionTrial, name: str, results: HostArray) -> bool:
    """Right everywhere: near NumPy's value, and infinite or NaN where that is.

    A device that takes subnormal numbers for zeros may do so here as well.
    """
    smallest = np.finfo(results.dtype).smallest_normal
    flushed = tuple(np.where(np.abs(each) < smallest, np.copysign(0, each), each) for each in trial.points)
    fine = _near(name, trial, results, trial.points) | _near(name, trial, results, flushed)
    return bool(fine.all())


def reference(name: str, points: tuple[HostArray, ...]) -> HostArray:
    """The right results of a function, in float64."""
    fn = name.rsplit("_", 1)[0]
    values: HostArray = getattr(np, FUNCTIONS[fn].numpy_name)(*(each.astype(np.float64) for each in points))
    return values


def _near(name: str, trial: FunctionTrial, results: HostArray, points: tuple[HostArray, ...]) -> HostArray:
    """At which points results are as near to the reference as the limit allows, with signs of zeros and NaN alike."""
    precise = reference(name, points)
    wanted = precise.astype(results.dtype)
    same_sign = (np.signbit(wanted) == np.signbit(results)) | (wanted != 0)
    special = ((wanted == results) & same_sign) | (np.isnan(wanted) & np.isnan(results))
    allowed = LIMIT[trial.type] * np.finfo(results.dtype).eps * np.maximum(np.abs(precise), 1.0)
    rounded = np.isfinite(wanted) & (points[0] != 0)
    near: HostArray = np.where(rounded, np.abs(results - precise) <= allowed, special)
    return near


#: Functions that are raced: where a dialect's own are slow, all of these are.
_RUNNERS = ("log_f32", "sin_f32", "atan_f32", "power_f32")
_RACE_LENGTH = 1 << 16


def race() -> Schedule:
    """Two kernels of OpenCL C, first with built-in functions and then with ours, to be timed one after the other."""
    points = np.linspace(0.05, 3.0, _RACE_LENGTH, dtype=np.float32)
    slots = (Slot(points.nbytes, "constant", points.tobytes()), Slot(points.nbytes, "output"))
    kernels = []
    for name, functions in (
        ("race_of_builtins", [CANDIDATES["opencl"][each] for each in _RUNNERS]),
        ("race_of_ours", list(_RUNNERS)),
    ):
        terms = [f"{each}(x, 1.7f)" if each in ("pow", "power_f32") else f"{each}(x)" for each in functions]
        lines = [
            definitions("opencl", functions),
            f"__kernel void {name}(__global const float *points, __global float *results) {{",
            "    const float x = points[get_global_id(0)];",
            f"    results[get_global_id(0)] = {' + '.join(terms)};",
            "}",
            "",
        ]
        kernels.append(
            Kernel(
                name=name,
                source="\n".join(lines),
                bindings=(Binding(0, "read"), Binding(1, "write")),
                groups=_RACE_LENGTH // _GROUP_SIZE,
                group_size=_GROUP_SIZE,
            )
        )
    return Schedule(slots=slots, steps=tuple(kernels), outputs=(Output(1, Spec((_RACE_LENGTH,), "float32")),))


def faster(builtin_seconds: float, our_seconds: float) -> tuple[str, ...]:
    """The names to trust after a race: all or none, for a device has either made its functions fast or has not."""
    return tuple(sorted(CANDIDATES["opencl"])) if builtin_seconds <= our_seconds else ()


@cache
def _points(type: str) -> HostArray:
    """Some hundred numbers: of ordinary size, near one, large and tiny, and the special ones."""
    dtype = np.float32 if type == "f32" else np.float64
    info = np.finfo(dtype)
    positive = np.concatenate(
        [
            np.linspace(0.013, 1.0, 60),
            np.linspace(1.0, 12.0, 60),
            1.0 + np.geomspace(1e-6, 0.3, 20),
            1.0 - np.geomspace(1e-6, 0.3, 20),
            # Where exponentials end, in both bases.
            np.linspace(80.0, 90.0, 41),
            np.linspace(100.0, 152.0, 27),
            np.geomspace(20.0, 1e9, 60),
            np.geomspace(1e10, float(info.max) / 2, 20),
            np.geomspace(float(info.smallest_normal) * 2, 1e-2, 30),
            [0.0, 0.5, 1.0, 2.0, 1.5, 2.5, np.inf, float(info.max), float(info.smallest_normal)],
            [float(info.smallest_subnormal), float(info.smallest_normal) / 8],
        ]
    )
    return np.concatenate([positive, -positive, [np.nan]]).astype(dtype)


@cache
def _pairs(type: str) -> tuple[HostArray, ...]:
    """Special numbers with each other, and pairs whose power is of every size."""
    dtype = np.float32 if type == "f32" else np.float64
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 1e30, -1e-30, np.inf, -np.inf, np.nan], dtype)
    first, second = np.meshgrid(special, special, indexing="ij")
    base = np.geomspace(1e-6, 1e6, 23)
    power = np.linspace(-6.0, 6.0, 23)
    bases, powers = np.meshgrid(
        np.concatenate([base, -base]), np.concatenate([power, np.arange(-3.0, 4.0)]), indexing="ij"
    )
    x = np.concatenate([first.ravel(), bases.ravel()]).astype(dtype)
    y = np.concatenate([second.ravel(), powers.ravel()]).astype(dtype)
    return x, y
