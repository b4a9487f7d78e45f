"""A program as text that a person can read: one line for each node."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

from anygpu.program.attention import Attend
from anygpu.program.custom import Custom
from anygpu.program.dtypes import ITEMSIZE, REAL_PART, DType
from anygpu.program.graph import Line, Program
from anygpu.program.primitives import (
    Argsort,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Fourier,
    Gather,
    Input,
    Iota,
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Shape,
    Slice,
    Sort,
    Spec,
    Update,
    Windows,
)

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
    """What each value is called: a, b, c … for inputs, or x0, x1 … when there are many; the others by position."""
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


def printable(text: str) -> str:
    """The text without anything that would break a line or a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def operation(op: Primitive) -> str:
    """What a person calls the operation, family included where the function alone would mislead."""
    match op:
        case Scan():
            return f"running {op.fn}"
        case Scatter():
            return f"scatter {op.fn}"
        case Linear() if part_name(op):
            return f"{op.fn}.{part_name(op)}"
        case Custom():
            return printable(op.title)
    return op.name


_PARTS: dict[str, tuple[str, ...]] = {
    "slogdet": ("sign", "logabsdet"),
    "qr": ("Q", "R"),
    "svd": ("U", "S", "Vh"),
    "eigh": ("eigenvalues", "eigenvectors"),
    "eig": ("eigenvalues", "eigenvectors"),
}


def part_name(op: Linear) -> str:
    """Which result of a decomposition it is; nothing when there is only one."""
    return _PARTS[op.fn][op.part] if op.fn in _PARTS else ""


def details(op: Primitive, inputs: Sequence[Spec]) -> str:
    """The attributes, as they follow the operands, whose specs are given."""
    match op:
        case Input() | Constant():
            return ""
        case Iota():
            return f"to {op.length}"
        case Cast():
            return f"to {op.dtype}"
        case Reduce():
            return _over(op.axes)
        case Scan() | Sort() | Argsort() | Concatenate():
            return f"along axis {op.axis}"
        case Reshape() | Broadcast():
            return f"to {_shape(op.shape)}"
        case Permute():
            return f"axes {_shape(op.axes)}"
        case Slice():
            return _region(op.starts, op.stops, op.steps, inputs[0].shape)
        case Update():
            counts = zip(op.starts, op.steps, inputs[1].shape, strict=True)
            stops = tuple(start + (count - 1) * step + 1 if count else start for start, step, count in counts)
            return "at " + _region(op.starts, stops, op.steps, inputs[0].shape)
        case Flip():
            return _along(op.axes)
        case Pad():
            return "by " + ", ".join(f"{low}+{high}" for low, high in zip(op.low, op.high, strict=True))
        case Windows():
            return f"of {op.size} along axis {op.axis}" + (f" every {op.step}" if op.step != 1 else "")
        case Contract():
            return _contracted(op)
        case Gather() | Scatter():
            return f"along axis {op.axis}" + (f", batch axes {op.batch}" if op.batch else "")
        case Search():
            return f"side {op.side}"
        case Fourier():
            return f"of length {op.length} along axis {op.axis}"
        case Linear():
            return "full" if op.full else ""
        case Attend():
            return f"scaled by {op.scale:g}" + (", causal" if op.causal else "")
        case Custom():
            return _launch(op)
    return ""


def _launch(op: Custom) -> str:
    """The user's text, of which a hash must do, and how it is launched."""
    numbers = "".join(f", {each.name} = {each.value}" for each in op.scalars)
    which = f", result {printable(op.written[op.result].name)}" if len(op.shapes) > 1 else ""
    digest = hashlib.blake2b(op.source.encode(), digest_size=4).hexdigest()
    return f"{op.language} {digest}, {_shape(op.groups)} groups of {_shape(op.group)}{printable(numbers)}{which}"


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
    attributes = details(op, [program.specs[source] for source in inputs])
    return " ".join(part for part in (operation(op), operands, attributes) if part)


def _over(axes: tuple[int, ...]) -> str:
    if not axes:
        return "over no axis"
    return f"over {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"


def _along(axes: tuple[int, ...]) -> str:
    return _over(axes).replace("over", "along", 1)


def _shape(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _region(starts: Shape, stops: Shape, steps: Shape, shape: Shape) -> str:
    return f"[{', '.join(map(_range, starts, stops, steps, shape))}]"


def _range(start: int, stop: int, step: int, length: int) -> str:
    first, last = str(start or ""), "" if stop == length else str(stop)
    return f"{first}:{last}:{step}" if step != 1 else f"{first}:{last}"


def _contracted(op: Contract) -> str:
    over = ", ".join(f"{left}×{right}" for left, right in zip(op.left, op.right, strict=True)) or "no axes"
    batch = ", ".join(f"{left}×{right}" for left, right in zip(op.left_batch, op.right_batch, strict=True))
    return f"over {over}" + (f", batch {batch}" if batch else "")


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
    """As nested lists, in the shape of the constant."""
    if not shape:
        return values[0]
    if 0 in shape:
        return "[]"
    step = len(values) // shape[0]
    return f"[{', '.join(_nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"
