"""A program as text that a person can read: one line for each node."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from anygpu.base.printable import printable
from anygpu.program.dtypes import ITEMSIZE, REAL_PART, DType
from anygpu.program.graph import Line, Program
from anygpu.program.ops.source import Constant
from anygpu.program.primitive import Shape

#: A constant of more elements is shown by its first ones.
MOST_ELEMENTS = 8
#: Lines are padded up to here, so that types stand in one column but one long line does not push all others away.
WIDEST_COLUMN = 48
#: A longer list of inputs has a line for each.
WIDEST_HEADER = 100


def to_text(program: Program, name: str = "program") -> str:
    """The whole program; `t3` is node 3, as in messages of errors."""
    names = value_names(program)
    steps = [
        (f"{names[position]} = {_step(program, position, names)}", str(program.specs[position]), position)
        for position in range(program.input_count, len(program))
    ]
    left = max((len(step) for step, _, _ in steps if len(step) <= WIDEST_COLUMN), default=0)
    right = max((len(spec) for _, spec, _ in steps if len(spec) <= WIDEST_COLUMN), default=0)
    lines = [_header(program, printable(name), names)]
    for step, spec, position in steps:
        line = line_of(program, position)
        lines.append(f"  {step:<{left}} : " + (f"{spec:<{right}}  # {line}" if line else spec))
    lines.append("  return " + ", ".join(names[output] for output in program.outputs))
    return "\n".join(lines)


def _header(program: Program, name: str, names: Sequence[str]) -> str:
    inputs = [f"{names[position]}: {spec}" for position, spec in enumerate(program.inputs)]
    header = f"{name}({', '.join(inputs)}):"
    return header if len(header) <= WIDEST_HEADER else f"{name}(\n  " + ",\n  ".join(inputs) + "\n):"


def value_names(program: Program) -> list[str]:
    """The name of each value: a, b, c … for inputs, or x0, x1 … when there are many; the others by position."""
    count = program.input_count
    inputs = [chr(ord("a") + i) if count <= 26 else f"x{i}" for i in range(count)]
    return inputs + [f"t{position}" for position in range(count, len(program))]


def line_of(program: Program, position: int) -> str:
    """`score.py:12`, or nothing when the user's line is not known."""
    line: Line | None = program.lines[position]
    if line is None:
        return ""
    file = line[0].replace("\\", "/").rpartition("/")[2]
    return f"{printable(file)}:{line[1]}"


def constant_text(op: Constant) -> str:
    """The values of a constant, or the first of them when there are many."""
    count = math.prod(op.shape)
    shown = _numbers(op.data[: MOST_ELEMENTS * ITEMSIZE[op.dtype]], op.dtype)
    if count > MOST_ELEMENTS:
        return f"[{', '.join(shown)}, … {count:,} in all]"
    return _nested(shown, op.shape)


def _step(program: Program, position: int, names: Sequence[str]) -> str:
    op, inputs = program.nodes[position]
    if isinstance(op, Constant):
        return f"constant {constant_text(op)}"
    operands = ", ".join(names[source] for source in inputs)
    attributes = op.details([program.specs[source] for source in inputs])
    return " ".join(part for part in (op.label, operands, attributes) if part)


_FORMATS: dict[DType, str] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}


def _numbers(data: bytes, dtype: DType) -> list[str]:
    if dtype in REAL_PART:
        parts = _numbers(data, REAL_PART[dtype])
        return [
            f"{real}{'' if imag.startswith('-') else '+'}{imag}j"
            for real, imag in zip(parts[::2], parts[1::2], strict=True)
        ]
    if dtype == "bfloat16":  # the upper half of a float32
        halves = [data[i : i + 2] for i in range(0, len(data), 2)]
        return [_shortest(struct.unpack("<f", b"\0\0" + half)[0], "bfloat16") for half in halves]
    values = [value for (value,) in struct.iter_unpack("<" + _FORMATS[dtype], data)]
    return [_shortest(value, dtype) for value in values] if dtype.startswith("float") else list(map(str, values))


def _shortest(value: float, dtype: DType) -> str:
    """The fewest digits that mean the same number in its type: 0.1 and not 0.10000000149011612."""
    if dtype == "float64" or not math.isfinite(value):
        return repr(value)
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if _rounded(short, dtype) == value:
            return repr(short)
    return repr(value)


def _rounded(value: float, dtype: DType) -> float:
    try:
        if dtype == "bfloat16":
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
            bits += 0x7FFF + (bits >> 16 & 1)
            return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])
        code = "<" + _FORMATS[dtype]
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except (OverflowError, struct.error):  # rounded up past the largest number of the type
        return math.inf


def _nested(values: Sequence[str], shape: Shape) -> str:
    """The values as nested lists, in the shape of the constant."""
    if not shape:
        return values[0]
    if 0 in shape:
        return "[]"
    step = len(values) // shape[0]
    return f"[{', '.join(_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"
