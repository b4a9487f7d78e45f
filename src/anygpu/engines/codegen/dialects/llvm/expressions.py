"""Numbers as C has them, and functions of values as instructions."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.engines.codegen.dialects.llvm import functions
from anygpu.engines.codegen.dialects.llvm.functions import (
    C_NAME,
    Compiler,
    CValue,
    builtin,
    converted,
    instruction,
    test,
)
from anygpu.engines.codegen.dialects.llvm.values import Type, Value, constant
from anygpu.engines.codegen.target import COMPARISONS, LOGIC, OPERATORS, ComputeType
from anygpu.errors import InvalidProgram

# -- functions of values as instructions
#
# Operators, what LLVM has instructions for, and calls of our own functions.


#: The element type that values of each type are computed in.
COMPUTED: dict[ComputeType, str] = {
    **{"bool": "i1", "i32": "i32", "u32": "i32", "i64": "i64", "u64": "i64", "f32": "float", "f64": "double"},
}
_FLOATS = ("f32", "f64")
_UNSIGNED = ("u32", "u64")
#: Functions of floating-point numbers that OpenCL C has, by its name.
_BUILTIN = {
    **{name: name for name in ("floor", "ceil", "trunc", "rint", "sqrt", "copysign")},
    **{name: name for name in ("isnan", "isinf", "isfinite", "signbit")},
    "abs": "fabs",
}
#: Powers that have functions of their own, by the exponent.
_POWERS = {"0x3FF8000000000000": "power_1_5", "0xBFE0000000000000": "power_minus_0_5", "0x4010000000000000": "power_4"}
_EXTREMES = {"minimum": ("smin", "umin", "<"), "maximum": ("smax", "umax", ">")}
#: A value that changes nothing when it is combined with another one; what is not here repeats the first value.
NEUTRAL = {"add": -0.0, "multiply": 1.0, "bitwise_xor": 0}


def applied(compiler: Compiler, fn: str, args: Sequence[Value], types: Sequence[ComputeType]) -> Value:
    """A function of the kernel form, of operands of these types: in as many lanes as the widest operand has."""
    w, of = compiler.w, types[0]
    if fn == "opaque":
        return args[0]
    if fn.startswith("cast_"):
        return _cast(compiler, args[0], of, fn.removeprefix("cast_"))
    if fn == "power" and of in _FLOATS and args[1].text in _POWERS:
        fn, args, types = _POWERS[args[1].text], args[:1], types[:1]
    args = w.fitted(args)
    first = args[0]
    if of == "bool" and fn in LOGIC:
        return _logic(compiler, fn, args)
    if fn in COMPARISONS:
        return w.compare(test(COMPARISONS[fn], C_NAME[of]), first, args[1])
    if fn in OPERATORS:
        return w.binary(instruction(OPERATORS[fn], C_NAME[of]), first, args[1])
    if fn == "negative":
        return w.op(f"fneg {first}", first.type) if of in _FLOATS else w.binary("sub", constant(0, first.type), first)
    if fn == "invert":
        return w.binary("xor", first, constant(-1, first.type))
    if fn in _EXTREMES:
        return _extreme(compiler, fn, args, of)
    if of in _UNSIGNED and fn in ("abs", "order_key"):
        return first
    numbers = [CValue(C_NAME[type], value) for value, type in zip(args, types, strict=True)]
    if (of in _FLOATS and fn in _BUILTIN) or (of in _UNSIGNED and fn == "popcount"):
        made = builtin(w, compiler.target, _BUILTIN.get(fn, fn), numbers)
        if made is not None:
            return made.value
    if fn == "round_f16" and compiler.target.halves:
        return w.convert("fpext", w.as_half(first), "float")
    name = fn if functions.is_defined(fn) else f"{fn}_{of}"
    if not functions.is_defined(name):
        raise InvalidProgram(f"{fn}: is not defined for {of} on a processor; cast the operands first.")
    return compiler.call(name, numbers).value


def _cast(compiler: Compiler, value: Value, source: ComputeType, wanted: str) -> Value:
    if source == wanted:
        return value
    name = f"cast_{source}_{wanted}"
    number = CValue(C_NAME[source], value)
    if functions.is_defined(name) and value.text[0] == "%":
        return compiler.call(name, [number]).value
    return converted(compiler.w, number, C_NAME[wanted]).value


def _logic(compiler: Compiler, fn: str, args: Sequence[Value]) -> Value:
    """Of truth values, as `LOGIC` says it."""
    w = compiler.w
    one, other = args
    truth = constant(True, one.type)
    if fn in ("bitwise_xor", "not_equal", "equal"):
        differ = w.binary("xor", one, other)
        return w.binary("xor", differ, truth) if fn == "equal" else differ
    pattern = LOGIC[fn]
    one = w.binary("xor", one, truth) if pattern.startswith("~") else one
    other = w.binary("xor", other, truth) if "~{1}" in pattern else other
    return w.binary("and" if "&" in pattern else "or", one, other)


def _extreme(compiler: Compiler, fn: str, args: Sequence[Value], of: ComputeType) -> Value:
    """The smaller or the larger; NaN is both."""
    w = compiler.w
    one, other = args
    signed, unsigned, op = _EXTREMES[fn]
    if of not in _FLOATS:
        return w.intrinsic(unsigned if of in _UNSIGNED else signed, one, other)
    # Of NaN, the comparison takes the second; where that is the number, the first is taken back.
    taken = w.select(w.compare(f"o{'lt' if op == '<' else 'gt'}", one, other), one, other)
    return w.select(w.compare("uno", one, constant(0, one.type)), one, taken)


def folded(compiler: Compiler, fn: str, value: Value, type: ComputeType) -> Value:
    """All lanes combined, halves with halves."""
    lanes = value.type.lanes
    while lanes > 1:
        half = lanes // 2
        low, high = (compiler.w.shuffle(value, range(at, at + half)) for at in (0, half))
        combined = applied(compiler, fn, (low, high), (type, type))
        if lanes % 2:
            raise InvalidProgram(f"{value.type.lanes} lanes cannot be halved.")
        value, lanes = combined, half
    return value


def spread(compiler: Compiler, fn: str, value: Value, lanes: int) -> Value:
    """An accumulator of one lane as one of many that gives the same when they are combined."""
    if lanes == 1:
        return value
    neutral = NEUTRAL.get(fn)
    if neutral is None:
        return compiler.w.fit(value, lanes)
    type = Type(value.type.elem, lanes)
    return compiler.w.op(f"insertelement {constant(neutral, type)}, {value}, i64 0", type)
