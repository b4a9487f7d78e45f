"""How operations are recorded: operands are brought to one type and shape as NumPy does, and a value is added.

Every function here returns a `Value` without computing anything. They are on the way of every operation, so common
cases are looked up in tables instead of being worked out.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from anygpu.array.core.device import NUMPY_DTYPES, ArrayDevice
from anygpu.array.core.expression import Value, active_tracer, is_portable, users_line
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.errors import InvalidOption, InvalidProgram
from anygpu.program.dtypes import DTYPES, ITEMSIZE, KIND, DType, default_float, is_inexact, promote
from anygpu.program.functions import (
    COMPARISONS,
    BinaryFunction,
    UnaryFunction,
    binary_dtype,
    is_defined,
    unary_dtype,
)
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Constant,
    Gather,
    Linear,
    Permute,
    Primitive,
    Reshape,
    Scatter,
    Select,
    Shape,
    Spec,
    Unary,
    product,
)

Scalar = bool | int | float | complex | TracedScalar
#: What an operation takes beside arrays; a scalar adapts to the type of the array it meets.
Operand = Value | Scalar

_UNARY = {fn: Unary(fn) for fn in UnaryFunction.__args__}  # type: ignore[attr-defined]
_BINARY = {fn: Binary(fn) for fn in BinaryFunction.__args__}  # type: ignore[attr-defined]
_SELECT = Select()


#: The type of each result, where that needs no further thought: looking it up is faster than working it out.
_RESULT: dict[tuple[BinaryFunction, DType], DType] = {
    (fn, dtype): binary_dtype(fn, dtype, dtype)
    for fn in _BINARY
    for dtype in DTYPES
    if dtype != "bool" and is_defined(fn, dtype)
}
_UNARY_RESULT: dict[tuple[UnaryFunction, DType], DType] = {
    (fn, dtype): unary_dtype(fn, dtype) for fn in _UNARY for dtype in DTYPES if is_defined(fn, dtype)
}
_COMPARISONS = frozenset(COMPARISONS)
#: NumPy makes up the name of a type each time it is asked.
_NAMES: dict[np.dtype[Any], DType] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}

#: The name of the device of abstract arrays, with which functions are traced.
ABSTRACT = "abstract"

#: Larger constants travel as inputs, so that programs stay small.
MAX_CONSTANT_BYTES = 4096


def apply(op: Primitive, *inputs: Value, spec: Spec | None = None) -> Value:
    """Record `op(*inputs)`; `spec` is the result's where the caller knows it. Raises for operands on two devices."""
    if spec is None:
        spec = op.infer(*[each.spec for each in inputs])
    value = Value(op, inputs, spec, common_device(inputs), users_line())
    if type(op) in _MAY_RAISE:
        _note_what_may_raise(value)
    return value


#: Primitives whose inputs' values decide whether NumPy raises an error, also where the result is not used.
_MAY_RAISE = frozenset((Gather, Scatter, Linear))
_RAISING = frozenset(("cholesky", "inv", "solve"))


def _note_what_may_raise(value: Value) -> None:
    """Tell the tracer of an operation that may raise for some values."""
    listening = active_tracer.get()
    if listening is None:
        return
    op = value.op
    # Positions that are known were looked at.
    if op.fn in _RAISING if isinstance(op, Linear) else not is_portable(value.inputs[1]):
        listening.may_raise.append(value)


def common_device(values: Sequence[Value]) -> ArrayDevice | None:
    """The device that all values are on; `None` for constants alone. Raises `InvalidOption` if they are on two."""
    device: ArrayDevice | None = None
    for value in values:
        if value.device is not device and value.device is not None:
            if device is not None:
                return _device_of_the_bound(values)
            device = value.device
    return device


def _device_of_the_bound(values: Sequence[Value]) -> ArrayDevice | None:
    """The device of operands on different devices: values of constants alone follow the others; two others raise."""
    bound = [value for value in values if value.device is not None and not is_portable(value)]
    devices = {id(value.device): value.device for value in bound}
    if len(devices) > 1:
        one, other, *_ = devices.values()
        assert one is not None
        assert other is not None
        raise InvalidOption(_apart(one.device, other.device))
    return bound[0].device if bound else values[0].device


def _apart(one: str, other: str) -> str:
    """The message for operands on two devices."""
    if ABSTRACT in (one, other):
        return "a function that is being recorded uses an array from outside. Pass it as an argument."
    return f'one operand is on {one} and the other on {other}. Move one of them first: x.to_device("{one}").'


def cast(value: Value, dtype: DType) -> Value:
    """The value in another dtype; itself if it has that."""
    if value.spec.dtype == dtype:
        return value
    if KIND[value.spec.dtype] == "complex" and KIND[dtype] not in ("complex", "bool"):
        listening = active_tracer.get()
        if listening is not None:
            listening.stop("it casts complex numbers to real ones, about which NumPy warns (ComplexWarning)")
    return Value(Cast(dtype), (value,), Spec(value.spec.shape, dtype), value.device, users_line())


def broadcast(value: Value, shape: Shape) -> Value:
    """The value in another shape, by repeating axes of length 1; itself if it has that."""
    if value.spec.shape == shape:
        return value
    op = Broadcast(shape)
    return Value(op, (value,), op.infer(value.spec), value.device, users_line())


def reshape(value: Value, shape: Shape) -> Value:
    """The value in another shape; itself if it has that."""
    return value if value.spec.shape == shape else apply(Reshape(shape), value)


def permute(value: Value, axes: tuple[int, ...]) -> Value:
    """The value with its axes in another order; itself if they are in that."""
    return value if axes == tuple(range(len(axes))) else apply(Permute(axes), value)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape to which NumPy broadcasts all of these together; raises `ValueError` where they do not fit."""
    length = max(map(len, shapes), default=0)
    result = [1] * length
    for shape in shapes:
        for position, n in enumerate(shape, length - len(shape)):
            if n != 1:
                if result[position] not in (1, n):
                    raise ValueError(f"operands could not be broadcast together: the shapes are {_listed(shapes)}.")
                result[position] = n
    return tuple(result)


def constant(scalar: Any, dtype: DType) -> Value:
    """A value without axes that is a part of the program; a `TracedScalar` becomes an input."""
    return _new_constant(scalar, dtype)


_FORMATS: dict[DType, str] = {"float32": "<f", "float64": "<d", "float16": "<e", "bool": "<?"}


def _overflows(scalar: float, dtype: DType) -> bool:
    """Return whether a number is too large for a float type, and becomes infinity."""
    try:
        struct.pack(_FORMATS.get(dtype, "<d"), scalar)
    except OverflowError:
        return True
    return False


def _new_constant(scalar: Any, dtype: DType) -> Value:
    """A constant with this number."""
    if type(scalar) is TracedScalar:
        return scalar.value(dtype)
    if dtype in _FORMATS:
        try:
            data = struct.pack(_FORMATS[dtype], scalar)
        except OverflowError:  # a float that is too large for the type becomes infinity, as in NumPy
            data = struct.pack(_FORMATS[dtype], math.copysign(math.inf, scalar))
            if active_tracer.get() is not None:  # which warns, and what traces listens
                np.asarray(scalar, dtype)
    else:
        data = np.asarray(scalar, dtype).tobytes()
    return Value(Constant((), dtype, data), (), Spec((), dtype), None)


def literal(values: np.ndarray[Any, Any]) -> Value:
    """A small array as a part of the program."""
    dtype = dtype_name(values.dtype)
    return Value(Constant(values.shape, dtype, values.tobytes()), (), Spec(values.shape, dtype), None)


def total_dtype(dtype: DType) -> DType:
    """The type in which NumPy adds up: small integers and truth values are counted in 64 bits."""
    match KIND[dtype]:
        case "bool" | "signed":
            return "int64"
        case "unsigned":
            return "uint64"
    return dtype


def weak_dtype(scalar: Scalar, dtype: DType) -> DType:
    """The dtype of a Python number beside an array (NEP 50): the array's own where its kind can hold the number."""
    kind = KIND[dtype]
    if isinstance(scalar, bool):
        return dtype
    if isinstance(scalar, int):
        return dtype if kind != "bool" else "int64"
    if isinstance(scalar, complex):
        return (
            dtype if kind == "complex" else "complex64" if dtype in ("float16", "float32", "bfloat16") else "complex128"
        )
    return dtype if kind in ("float", "complex") else "float64"


def _check_range(scalar: int, dtype: DType) -> None:
    """Raise `OverflowError` for an integer that a dtype cannot hold."""
    if KIND[dtype] in ("signed", "unsigned"):
        bits = 8 * ITEMSIZE[dtype]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if KIND[dtype] == "signed" else (0, (1 << bits) - 1)
        if not low <= scalar <= high:
            raise OverflowError(f"the Python integer {scalar} is out of bounds for {dtype}.")


def common(*operands: Operand, inexact: bool = False) -> list[Value]:
    """All operands in one type and one shape. Python numbers are weak: they take the type of the arrays."""
    values = [each for each in operands if isinstance(each, Value)]
    dtype = values[0].spec.dtype
    for value in values[1:]:
        if value.spec.dtype != dtype:
            dtype = promote(dtype, value.spec.dtype)
    for each in operands:
        if not isinstance(each, Value):
            dtype = promote(dtype, weak_dtype(each, dtype))
    if inexact and not is_inexact(dtype):
        dtype = "float64"
    shape = values[0].spec.shape
    if any(value.spec.shape != shape for value in values):
        shape = broadcast_shapes(*(value.spec.shape for value in values))
    return [_fitted(each, dtype, shape) for each in operands]


def _fitted(operand: Operand, dtype: DType, shape: Shape) -> Value:
    """An operand as a value of this dtype and shape."""
    if isinstance(operand, Value):
        return broadcast(cast(operand, dtype), shape)
    return _scalar_beside(operand, Spec(shape, dtype))


#: Numbers that were met beside arrays before, broadcast to their shape: `x * 2` in a loop makes the 2 only once.
_MET: dict[tuple[Any, ...], Value] = {}
#: Only these exact types: a subclass may define == and hash as it likes.
_MET_TYPES = frozenset((bool, int, float, complex))
#: Those of them whose numbers, other than 0, are the same when they are equal.
_EQUAL_IS_SAME = frozenset((bool, int, float))


def _nobody() -> None:
    """No array: in the place of a weak reference to the array that holds a value, for values that many operations
    share.
    """


def _scalar_beside(scalar: Scalar, spec: Spec) -> Value:
    """A Python number broadcast beside a value of this shape and dtype; equal numbers share one value.

    Raises `OverflowError` for an integer that the dtype cannot hold.
    """
    if type(scalar) is TracedScalar:
        return broadcast(scalar.value(spec.dtype), spec.shape)
    kind = type(scalar)
    if kind not in _MET_TYPES:
        return broadcast(_new_constant(scalar, spec.dtype), spec.shape)
    # 0.0 and -0.0 are equal and differ, in complex numbers too, as NaN does from itself: those go by what they look
    # like.
    key = (scalar if scalar and scalar == scalar and kind is not complex else repr(scalar), kind, spec)
    known = _MET.get(key)
    if known is None:
        if kind is int:
            _check_range(scalar, spec.dtype)  # type: ignore[arg-type]
        known = _new_constant(scalar, spec.dtype)
        if spec.shape:
            # On no line: operations on other lines, and of other functions, share it.
            known = Value(Broadcast(spec.shape), (known,), spec, None)
        known.holder = _nobody  # type: ignore[assignment]
        if isinstance(scalar, float) and _overflows(scalar, spec.dtype):
            return known  # NumPy warns of it each time
        if len(_MET) > 1000:
            _MET.clear()
        _MET[key] = known
    return known


def _weak(scalar: Operand, beside: Value) -> Value | None:
    """A Python number in the type of what it stands beside; `None` when both must change."""
    spec = beside.spec
    if not isinstance(scalar, Value) and weak_dtype(scalar, spec.dtype) == spec.dtype:
        return _scalar_beside(scalar, spec)
    return None


def unary(fn: UnaryFunction, x: Value) -> Value:
    """A function that keeps the type of its operand, or that has a fixed one."""
    spec = x.spec
    dtype = _UNARY_RESULT.get((fn, spec.dtype))
    if dtype is None:
        try:
            dtype = unary_dtype(fn, spec.dtype)
        except InvalidProgram as error:
            raise TypeError(str(error)) from None
    if dtype is not spec.dtype:
        spec = Spec(spec.shape, dtype)
    return Value(_UNARY[fn], (x,), spec, x.device, users_line())


def unary_float(fn: UnaryFunction, x: Value) -> Value:
    """A function such as `sin`, whose result is floating point whatever goes in."""
    return unary(fn, cast(x, default_float(x.spec.dtype)))


def binary(fn: BinaryFunction, one: Operand, other: Operand) -> Value:
    """Record a function of two operands after NumPy's promotion and broadcasting; `TypeError` for wrong dtypes."""
    if type(one) is Value:
        # The everyday cases, which need nothing looked up twice: equal operands, and a number that was met before.
        if type(other) is Value:
            beside = other if one.spec == other.spec and one.device is other.device else None
        else:
            beside = _MET.get((other, type(other), one.spec)) if type(other) in _EQUAL_IS_SAME and other else None
        if beside is not None:
            spec = one.spec
            dtype = _RESULT.get((fn, spec.dtype))
            if dtype is not None:
                if dtype is not spec.dtype:
                    spec = Spec(spec.shape, dtype)
                return Value(_BINARY[fn], (one, beside), spec, one.device, users_line())
    x, y = _pair(fn, one, other)
    dtype = x.spec.dtype
    if dtype == "bool":
        x, y, fn = _for_bool(fn, x, y)
        dtype = x.spec.dtype
    device = x.device if x.device is y.device or y.device is None else common_device((x, y))
    try:
        dtype = binary_dtype(fn, dtype, y.spec.dtype)
    except InvalidProgram as error:
        raise TypeError(str(error)) from None
    return Value(_BINARY[fn], (x, y), Spec(x.spec.shape, dtype), device, users_line())


def _pair(fn: BinaryFunction, one: Operand, other: Operand) -> tuple[Value, Value]:
    """Two operands in one type and shape, for a function that may have rules of its own, as power and division have."""
    if fn == "power" and type(other) is TracedScalar and other.is_whole:
        other.needs_value()  # whether it is negative decides
    if fn == "power" and type(one) is Value and one.spec.dtype == "bool" and type(other) is int and other == 2:
        one = cast(one, "int8")  # NumPy squares here, and the square of a bool is an int8
    if fn == "power" and type(other) is Value and KIND[other.spec.dtype] == "signed":
        _check_exponents(one, other)
    if fn != "divide":
        if type(one) is Value:
            if type(other) is Value:
                if one.spec == other.spec:
                    return one, other
            elif (weak := _weak(other, one)) is not None:
                return one, weak
        elif type(other) is Value and (weak := _weak(one, other)) is not None:
            return weak, other
    x, y = common(one, other, inexact=fn == "divide")
    return x, y


def _check_exponents(one: Operand, exponents: Value) -> None:
    """End the trace where integers are raised to integers that may be negative: NumPy raises an error for those."""
    listening = active_tracer.get()
    if listening is None or isinstance(exponents.op, Constant) or type(one) in (float, complex):
        return
    if type(one) is Value and KIND[one.spec.dtype] in ("float", "complex"):
        return
    if type(one) is TracedScalar and not one.is_whole:
        return
    listening.stop("it raises whole numbers to powers that may be negative, and then NumPy refuses them")


#: What NumPy makes of arithmetic with truth values.
_BOOL_MEANING: dict[BinaryFunction, BinaryFunction] = {"add": "bitwise_or", "multiply": "bitwise_and"}


def _for_bool(fn: BinaryFunction, x: Value, y: Value) -> tuple[Value, Value, BinaryFunction]:
    """The operands and the function that stand for a function of booleans."""
    if fn in _BOOL_MEANING:
        return x, y, _BOOL_MEANING[fn]
    if fn == "subtract":
        raise TypeError("bool values cannot be subtracted; use x ^ y or x != y.")
    if fn in _COMPARISONS or fn in ("bitwise_and", "bitwise_or", "bitwise_xor", "minimum", "maximum"):
        return x, y, fn
    return cast(x, "int8"), cast(y, "int8"), fn


def compare(fn: BinaryFunction, one: Operand, other: Operand) -> Value:
    """`binary` for comparisons: exact between int64 and uint64, which have no common integer type."""
    if type(one) is Value and type(other) is Value and one.spec == other.spec:
        return binary(fn, one, other)
    if isinstance(one, Value) and isinstance(other, Value):
        kinds = {KIND[one.spec.dtype], KIND[other.spec.dtype]}
        if kinds == {"signed", "unsigned"} and promote(one.spec.dtype, other.spec.dtype) == "float64":
            return _compare_signs(fn, one, other)
    elif isinstance(one, int) or isinstance(other, int):
        outside = _outside_range(fn, one, other)
        if outside is not None:
            return outside
    return binary(fn, one, other)


def _compare_signs(fn: BinaryFunction, one: Value, other: Value) -> Value:
    """Compare a signed with an unsigned integer of 64 bits, exactly."""
    signed_first = KIND[one.spec.dtype] == "signed"
    signed, unsigned = (one, other) if signed_first else (other, one)
    negative = binary("less", signed, 0)
    bits = cast(signed, "uint64"), cast(unsigned, "uint64")
    as_unsigned = binary(fn, *bits) if signed_first else binary(fn, *bits[::-1])
    below = fn in (("less", "less_equal") if signed_first else ("greater", "greater_equal")) or fn == "not_equal"
    return where(negative, below, as_unsigned)


def _outside_range(fn: BinaryFunction, one: Operand, other: Operand) -> Value | None:
    """The truth of a comparison with a Python integer that the array's dtype cannot hold; `None` where it can."""
    value, scalar = (one, other) if isinstance(one, Value) else (other, one)
    assert isinstance(value, Value)
    if type(scalar) is not int or KIND[value.spec.dtype] not in ("signed", "unsigned"):
        return None
    try:
        _check_range(scalar, value.spec.dtype)
    except OverflowError:
        is_larger = (scalar > 0) == isinstance(one, Value)  # the scalar is the larger one, seen from `one`
        truth = fn == "not_equal" or fn in (("less", "less_equal") if is_larger else ("greater", "greater_equal"))
        return broadcast(_new_constant(truth, "bool"), value.spec.shape)
    return None


def squared_length(value: Value) -> Value:
    """The square, or for complex numbers the square of the absolute value."""
    if KIND[value.spec.dtype] != "complex":
        return binary("multiply", value, value)
    real, imaginary = unary("real", value), unary("imag", value)
    return binary("add", binary("multiply", real, real), binary("multiply", imaginary, imaginary))


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """Record a choice: `a` where the condition holds, `b` elsewhere, promoted and broadcast together."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        dtype = np.result_type(*(each.sample if type(each) is TracedScalar else each for each in (a, b))).name
        a, b = constant(a, dtype), constant(b, dtype)  # type: ignore[arg-type]
    x, y = common(a, b)
    shape = broadcast_shapes(condition.spec.shape, x.spec.shape)
    chosen = (broadcast(condition, shape), broadcast(x, shape), broadcast(y, shape))
    return apply(_SELECT, *chosen, spec=Spec(shape, x.spec.dtype))


def power(one: Operand, other: Operand, *, by_operator: bool = False) -> Value:
    """Record a power, or the square root where NumPy takes it for a single exponent of 0.5.

    Both differ at -0.0 and -inf. `by_operator`, a Python float is such an exponent for all inexact types.
    """
    plain = binary("power", one, other)
    if not isinstance(plain.op, Binary):
        return plain
    x, y = plain.inputs
    source = y
    while isinstance(source.op, Broadcast):
        (source,) = source.inputs
    # NumPy looks for one exponent without a stride. Two arrays of one element each have strides.
    is_single = not source.spec.shape or source.spec.size == 1 < x.spec.size
    of_python = by_operator and type(other) in (float, TracedScalar)
    if not is_single or not (is_inexact(x.spec.dtype) if of_python else x.spec.dtype in _types_with_roots()):
        return plain
    while isinstance(source.op, Cast | Reshape):
        (source,) = source.inputs
    if isinstance(source.op, Constant):
        return unary("sqrt", x) if np.frombuffer(source.op.data, source.op.dtype)[0] == 0.5 else plain
    is_half = binary("equal", y, 0.5)
    return where(is_half, unary("sqrt", where(is_half, x, 1)), plain)


@cache
def _types_with_roots() -> frozenset[str]:
    """Return the types for which `np.power` takes the square root where all exponents are 0.5."""
    zeros = {name: np.full(2, -0.0, name) for name in ("float16", "float32", "float64")}
    return frozenset(name for name, zero in zeros.items() if np.signbit(np.power(zero, zero.dtype.type(0.5))).all())


is_array_dtype = NUMPY_DTYPES.__contains__


def dtype_name(dtype: Any) -> DType:
    """The name of a dtype, given in any form that NumPy takes; raises `TypeError` for one that arrays cannot have."""
    if isinstance(dtype, np.dtype) and (known := _NAMES.get(dtype)) is not None:
        return known
    name: DType = np.dtype(dtype).name
    if name not in NUMPY_DTYPES:
        raise TypeError(f"anygpu has no arrays of {name}; it has {', '.join(NUMPY_DTYPES)}.")
    return name


def normal_axis(axis: int, dimensions: int) -> int:
    """The axis counted from 0; negative ones count from the end. Raises `AxisError` outside of the dimensions."""
    try:
        position = axis.__index__()
    except AttributeError:
        raise TypeError(f"an axis is an integer, not {axis!r}.") from None
    if not -dimensions <= position < dimensions:
        raise np.exceptions.AxisError(position, dimensions)
    return position % dimensions


def normal_axes(axis: int | Sequence[int] | None, dimensions: int) -> tuple[int, ...]:
    """The axes counted from 0, sorted; `None` is all of them. Raises `ValueError` for one that is named twice."""
    if axis is None:
        return tuple(range(dimensions))
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    positions = sorted(normal_axis(each, dimensions) for each in axes)
    if len(set(positions)) != len(positions):
        raise ValueError(f"an axis is named twice in {axis}.")
    return tuple(positions)


def full_shape(shape: int | Sequence[int]) -> Shape:
    """A shape as a tuple, from an integer or a sequence of them; raises `ValueError` for negative lengths."""
    if hasattr(shape, "__index__"):
        return (shape.__index__(),)
    lengths = tuple(each.__index__() for each in shape)
    if any(length < 0 for length in lengths):
        raise ValueError(f"lengths are 0 or more; got {lengths}.")
    return lengths


def infer_length(shape: Shape, size: int) -> Shape:
    """The shape with -1 replaced by the length that is left; raises `ValueError` where `size` elements do not fit."""
    if -1 not in shape:
        return shape
    known = product(tuple(length for length in shape if length != -1))
    if shape.count(-1) > 1 or (size % known if known else size):
        raise ValueError(f"an array of {size} elements cannot be reshaped to {shape}.")
    return tuple(size // known if length == -1 and known else 0 if length == -1 else length for length in shape)


def _listed(shapes: Sequence[Shape]) -> str:
    """Shapes as text."""
    return ", ".join(map(str, shapes))
