"""Numbers as C has them: a value with its type, conversions, operators, and what OpenCL C has built in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anygpu.codegen.dialects.llvm.native import NativeTarget
from anygpu.codegen.dialects.llvm.values import FLOATS, Type, Value, Writer, constant, whole

#: The element types of C's, and their order in conversions.
ELEMENT = {
    **{"bool": "i1", "char": "i8", "uchar": "i8", "short": "i16", "ushort": "i16", "int": "i32", "uint": "i32"},
    **{"long": "i64", "ulong": "i64", "float": "float", "double": "double"},
}
_RANK = {"int": 0, "uint": 1, "long": 2, "ulong": 3, "float": 4, "double": 5}
UNSIGNED = frozenset(("bool", "uchar", "ushort", "uint", "ulong"))
#: How definitions of functions are named that are written for several types.
SHORT = {"int": "i32", "uint": "u32", "long": "i64", "ulong": "u64", "float": "f32", "double": "f64", "bool": "bool"}
C_NAME = {short: name for name, short in SHORT.items()}

_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_OF_FLOATS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
#: Operators that compare.
TESTS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
#: The sum with it has a whole number in its lowest bits.
_UNIT = 6755399441055744.0
_UNIT_BITS = 0x4338000000000000


class Number(NamedTuple):
    """A value with its type in C."""

    c: str
    value: Value


def literal(text: str) -> Number:
    """A number as it is written in C."""
    if "." in text and not text.startswith("0x"):
        single = text.endswith("f")
        return Number(
            "float" if single else "double", constant(float(text.rstrip("f")), Type("float" if single else "double"))
        )
    digits = text.rstrip("uUlL")
    suffix = text[len(digits) :].lower()
    type = {"": "int", "u": "uint", "l": "long", "ul": "ulong"}[suffix]
    return Number(type, constant(int(digits, 0), Type(ELEMENT[type])))


def converted(writer: Writer, number: Number, to: str) -> Number:
    """A conversion between C's types of numbers."""
    source, value = number
    elem = ELEMENT[to]
    if source == to:
        return number
    known = whole(value) if value.type.elem != "i1" else None
    if known is not None and to != "bool":
        if source in UNSIGNED:
            known &= (1 << (32 if value.type.elem == "i32" else 64)) - 1
        return Number(to, constant(known, Type(elem)))
    was = value.type.elem
    if to == "bool":
        return Number(to, writer.compare("une" if was in FLOATS else "ne", value, constant(0, value.type)))
    if was == elem:
        return Number(to, value)
    if was in FLOATS:
        if elem in FLOATS:
            name = "fpext" if elem == "double" else "fptrunc"
        else:
            name = "fptoui" if to in UNSIGNED else "fptosi"
    elif elem in FLOATS:
        name = "uitofp" if source in UNSIGNED else "sitofp"
    else:
        wider = was == "i1" or int(elem[1:]) > int(was[1:])
        name = ("zext" if source in UNSIGNED else "sext") if wider else "trunc"
    return Number(to, writer.convert(name, value, elem))


def bits_as(writer: Writer, number: Number, to: str) -> Number:
    """The same bits as another type."""
    return Number(to, writer.convert("bitcast", number.value, ELEMENT[to]))


def test(op: str, type: str) -> str:
    """The name of a comparison of values of a type of C."""
    name = TESTS[op]
    if type in ("float", "double"):
        return "une" if op == "!=" else f"o{name}"
    return name if op in ("==", "!=") else f"{'u' if type in UNSIGNED else 's'}{name}"


def instruction(op: str, type: str) -> str:
    """The instruction of an operator of numbers."""
    if type in ("float", "double"):
        return _OF_FLOATS[op]
    if op in "/%":
        return ("u" if type in UNSIGNED else "s") + ("div" if op == "/" else "rem")
    return _ARITHMETIC[op]


def alike(w: Writer, *numbers: Number) -> list[Number]:
    """Converted as C converts operands of different types, and in equally many lanes."""
    truths = len(numbers) > 1 and all(each.c == "bool" for each in numbers)
    to = "bool" if truths else max((each.c if each.c in _RANK else "int" for each in numbers), key=_RANK.__getitem__)
    same = [converted(w, each, to) for each in numbers]
    return [Number(to, each) for each in w.fitted([each.value for each in same])]


def builtin(w: Writer, target: NativeTarget, name: str, args: Sequence[Number]) -> Number | None:
    """A function that OpenCL C has and that is a few instructions; `None` for others."""
    if name.startswith("as_"):
        return bits_as(w, args[0], name.removeprefix("as_"))
    if name.startswith("convert_"):
        return _conversion(w, args[0], name.removeprefix("convert_"))
    if len(args) > 1:
        args = alike(w, *args)
    first, type = args[0].value, args[0].c
    match name:
        case "isnan":
            return Number("bool", w.compare("uno", first, constant(0, first.type)))
        case "isinf":
            return Number("bool", w.compare("oeq", w.intrinsic("fabs", first), constant(float("inf"), first.type)))
        case "isfinite":
            return Number("bool", w.compare("one", w.intrinsic("fabs", first), constant(float("inf"), first.type)))
        case "signbit":
            as_integer = w.convert("bitcast", first, "i32" if first.type.elem == "float" else "i64")
            return Number("bool", w.compare("slt", as_integer, constant(0, as_integer.type)))
        case "fabs":
            return Number(type, w.intrinsic("fabs", first))
        case "sqrt" | "copysign":
            return Number(type, w.intrinsic(name, *(each.value for each in args)))
        case "floor" | "ceil" | "trunc" | "rint" if target.rounds:
            return Number(type, w.intrinsic(name, first))
        case "fma":
            return Number(type, w.intrinsic("fma", *(each.value for each in args)))
        case "clz":
            return Number(type, w.intrinsic("ctlz", first, flags="false"))
        case "popcount":
            return Number(type, w.intrinsic("ctpop", first))
        case "fmin" | "min":
            return _chosen(w, "<", *args)
        case "fmax" | "max":
            return _chosen(w, ">", *args)
        case "clamp":
            return _chosen(w, "<", args[2], _chosen(w, ">", args[1], args[0]))
        case "mul_hi":
            return Number(type, _high_product(w, first, args[1].value))
    return None


def _chosen(w: Writer, op: str, one: Number, other: Number) -> Number:
    """The first where it compares so with the second, and else the second: NaN in the first is left out."""
    a, b = w.fitted([one.value, other.value])
    return Number(one.c, w.select(w.compare(test(op, one.c), a, b), a, b))


def _conversion(w: Writer, number: Number, to: str) -> Number:
    """What functions convert to integers are whole numbers of ordinary size; of others anything will do."""
    value = number.value
    if value.type.elem == "double" and to == "long":
        bits = w.convert("bitcast", w.binary("fadd", value, constant(_UNIT, value.type)), "i64")
        return Number(to, w.binary("sub", bits, constant(_UNIT_BITS, bits.type)))
    result = converted(w, number, to)
    if value.type.elem in FLOATS and to in ("int", "uint", "long", "ulong"):
        return Number(to, w.op(f"freeze {result.value}", result.value.type))
    return result


def _high_product(w: Writer, one: Value, other: Value) -> Value:
    """The upper half of the product of unsigned integers."""
    one, other = w.fitted([one, other])
    if one.type.elem == "i32":
        a, b = (w.convert("zext", each, "i64") for each in (one, other))
        product = w.binary("mul", a, b)
        return w.convert("trunc", w.binary("lshr", product, constant(32, product.type)), "i32")
    low, half = constant(0xFFFFFFFF, one.type), constant(32, one.type)
    (a, b), (x, y) = ((w.binary("lshr", each, half), w.binary("and", each, low)) for each in (one, other))
    carried = w.binary("add", w.binary("mul", a, y), w.binary("lshr", w.binary("mul", b, y), half))
    middle = w.binary("add", w.binary("mul", b, x), w.binary("and", carried, low))
    high = w.binary("add", w.binary("mul", a, x), w.binary("lshr", carried, half))
    return w.binary("add", high, w.binary("lshr", middle, half))
