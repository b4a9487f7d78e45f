"""Runs nests without LLVM: the kernel form with NumPy, lanes all at once, sums in NumPy's own order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.index import Atom, Index, IndexVariable, Quotient, Remainder
from anygpu.engines.codegen.kernel import MINUS_ONE
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Choose,
    Expr,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Report,
    Statement,
    Store,
)
from anygpu.engines.codegen.kernel_ir import Variable as Changing
from anygpu.engines.codegen.nests.steps import HostStep, Nest, NestProgram
from anygpu.engines.numpy.lowering import erf, run_node
from anygpu.program.dtypes import REAL_PART, DType
from anygpu.program.graph import Program

_TYPES: dict[str, Any] = {
    "bool": np.bool_,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
}
_RENAMED = {
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "atan2": "arctan2",
    "popcount": "bitwise_count",
}


def interpreted(
    nests: NestProgram, program: Program, inputs: Sequence[HostArray], *, parts_backwards: bool = False
) -> list[HostArray]:
    """The results. Parts of nests may be done in any order: `parts_backwards` does them from the last to the first."""
    buffers: list[HostArray] = []
    for number, slot in enumerate(nests.slots):
        if slot.role == "input":
            buffers.append(np.ascontiguousarray(inputs[number]).reshape(-1).view(np.uint8))
        elif slot.data is not None:
            buffers.append(np.frombuffer(slot.data, np.uint8))
        else:
            # What nobody has written must not be read: it is all NaN, or nearly.
            fill = 0 if slot.role == "status" else 0xFF
            buffers.append(np.full(slot.nbytes, fill, np.uint8))
    with np.errstate(all="ignore"):
        for step in nests.steps:
            if isinstance(step, HostStep):
                _host(step, program, buffers)
            else:
                _nest(step, buffers, parts_backwards)
    if nests.status is not None:
        _raise(nests, buffers[nests.status].view(np.uint32))
    results = []
    for output in nests.outputs:
        data = buffers[output.slot][output.offset : output.offset + output.spec.nbytes]
        results.append(data.view(output.spec.dtype).reshape(output.spec.shape))
    return results


def _raise(nests: NestProgram, words: HostArray) -> None:
    for check in nests.checks:
        if words[check.number]:
            if check.error == "index":
                raise IndexError(f"index out of bounds for an axis with size {check.length}")
            raise ValueError("integers to negative integer powers are not allowed")


def _host(step: HostStep, program: Program, buffers: list[HostArray]) -> None:
    op, sources = program.nodes[step.node]
    given = [
        buffers[slot].view(program.specs[source].dtype).reshape(program.specs[source].shape)
        for slot, source in zip(step.sources, sources, strict=True)
    ]
    result = np.ascontiguousarray(run_node(op, given))
    assert result.dtype == program.specs[step.node].dtype, op
    buffers[step.slot] = result.reshape(-1).view(np.uint8)


def _nest(nest: Nest, buffers: list[HostArray], backwards: bool) -> None:
    arrays = {each.name: buffers[each.slot].view(_real(each.dtype))[: each.size] for each in nest.buffers}
    writable = {each.name for each in nest.buffers if each.access != "read"}
    parts = range(nest.parts)
    for part in reversed(parts) if backwards else parts:
        scratch = {each.name: np.full(each.nbytes, 0xFF, np.uint8).view(_real(each.dtype)) for each in nest.scratch}
        begin = part * nest.grain
        known: dict[str, Any] = {
            "begin": np.int64(begin),
            "end": np.int64(min(begin + nest.grain, nest.count)),
            "part": np.int64(part),
        }
        _Run({**arrays, **scratch}, writable | scratch.keys()).block(nest.body, known)


def _real(dtype: DType) -> str:
    return REAL_PART.get(dtype, dtype)


class _Run:
    def __init__(self, arrays: dict[str, HostArray], writable: set[str]) -> None:
        self.arrays = arrays
        self.writable = writable

    def block(self, statements: Sequence[Statement], known: dict[str, Any]) -> None:
        for statement in statements:
            match statement:
                case Let() | Changing():
                    if isinstance(statement, Let) and statement.name in known and statement.name in ("begin", "end"):
                        raise ValueError(f"{statement.name} is given")
                    known[statement.name] = self.value(statement.value, known)
                case Assign():
                    if statement.name not in known:
                        raise KeyError(statement.name)
                    known[statement.name] = self.value(statement.value, known)
                case Store():
                    self._store(statement, known)
                case If():
                    if self.value(statement.condition, known):
                        self.block(statement.body, known)
                case Report():
                    self._report(statement, known)
                case Loop():
                    self._loop(statement, known)
                case _:
                    raise TypeError(statement)

    def _store(self, statement: Store, known: dict[str, Any]) -> None:
        if statement.buffer not in self.writable:
            raise ValueError(f"{statement.buffer} is not for writing")
        array = self.arrays[statement.buffer]
        place = self.index(statement.index, known)
        _check_inside(statement.buffer, place, array)
        value = self.value(statement.value, known)
        array[place] = np.asarray(value).astype(array.dtype)

    def _report(self, statement: Report, known: dict[str, Any]) -> None:
        condition, value = np.broadcast_arrays(
            self.value(statement.condition, known), self.value(statement.value, known)
        )
        for wrong in np.ravel(value)[np.ravel(condition)][:1]:
            word = (int(wrong) + 1) & 0xFFFFFFFF
            self.arrays["status"][statement.number] = word or MINUS_ONE

    def _loop(self, loop: Loop, known: dict[str, Any]) -> None:
        start = int(self.value(loop.start, known))
        stop = loop.stop if isinstance(loop.stop, int) else int(self.value(loop.stop, known))
        if loop.vector == 1 and not loop.pairwise:
            for number in range(start, stop, loop.step):
                known[loop.variable] = np.int64(number)
                self.block(loop.body, known)
            return
        rounds = np.arange(start, stop, loop.step)
        if not len(rounds):
            return
        before = {name: known[name] for name, _ in loop.sums}
        for name, fn in loop.sums:
            neutral = {"add": 0, "multiply": 1}.get(fn)
            known[name] = before[name] if neutral is None else np.asarray(before[name]).dtype.type(neutral)
        names = set(known)
        known[loop.variable] = rounds
        self.block(loop.body, known)
        for name, fn in loop.sums:
            ufunc: np.ufunc = getattr(np, fn)
            terms = np.ascontiguousarray(np.broadcast_to(known[name], rounds.shape))
            known[name] = ufunc(before[name], ufunc.reduce(terms, dtype=terms.dtype))
        for name in set(known) - names:
            del known[name]

    # -- values

    def value(self, expr: Expr, known: dict[str, Any]) -> Any:
        match expr:
            case Literal():
                return _TYPES[expr.type](expr.value)
            case Name():
                return known[expr.name]
            case Position():
                return np.asarray(self.index(expr.index, known)).astype(_TYPES[expr.type])[()]
            case Load():
                array = self.arrays[expr.buffer]
                place = self.index(expr.index, known)
                _check_inside(expr.buffer, place, array)
                return array[place].astype(_TYPES[expr.type])
            case Choose():
                return np.where(*(self.value(each, known) for each in (expr.condition, expr.yes, expr.no)))[()]
            case Apply():
                return _applied(expr, [self.value(each, known) for each in expr.args])
        raise TypeError(expr)

    def index(self, index: Index, known: dict[str, Any]) -> Any:
        total: Any = index.constant
        for atom, factor in index.terms:
            total = total + factor * self._atom(atom, known)
        return total

    def _atom(self, atom: Atom, known: dict[str, Any]) -> Any:
        if isinstance(atom, IndexVariable):
            value = np.asarray(known[atom.name]).astype(np.int64)
            if np.any(value < atom.low) or np.any(value > atom.high):
                raise ValueError(f"{atom.name} is {value}, not between {atom.low} and {atom.high}")
            return value
        inner = self.index(atom.of, known)
        if isinstance(atom, Quotient | Remainder):
            if np.any(np.asarray(inner) < 0):
                raise ValueError(f"{atom.of!r} is {inner}: what is divided must not be negative")
            return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by
        return np.minimum(np.maximum(inner, atom.low), atom.high)


def _check_inside(name: str, place: Any, array: HostArray) -> None:
    if np.any(np.asarray(place) < 0) or np.any(np.asarray(place) >= len(array)):
        raise IndexError(f"{name}[{place}] is outside of {len(array)}")


def _applied(expr: Apply, values: list[Any]) -> Any:
    kind = _TYPES[expr.type]
    fn = expr.fn
    if fn in ("opaque", "noted"):
        return values[0]
    if fn.startswith("cast_"):
        return np.asarray(values[0]).astype(kind)[()]
    if fn.startswith(("wrap_", "round_")):
        return _narrowed(fn, values[0]).astype(kind)[()]
    special: dict[str, Callable[..., Any]] = {
        "exponent": lambda x: np.frexp(x)[1],
        "mantissa": lambda x: np.frexp(x)[0],
        "erf": erf,
        "nextafter_f16": lambda x, y: np.nextafter(x.astype(np.float16), y.astype(np.float16)),
    }
    function = special.get(fn) or getattr(np, _RENAMED.get(fn, fn))
    result = np.asarray(function(*values))
    if fn == "popcount":
        result = result.astype(kind)
    if result.dtype != kind and not fn.startswith("nextafter"):
        raise TypeError(f"{fn} of {[np.asarray(each).dtype for each in values]} gives {result.dtype}, not {expr.type}")
    return result.astype(kind)[()]


def _narrowed(fn: str, value: Any) -> Any:
    if fn == "round_bf16":
        bits = np.asarray(value, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return rounded.astype(np.uint32).view(np.float32)
    types = {"wrap_i8": "i1", "wrap_i16": "i2", "wrap_u8": "u1", "wrap_u16": "u2", "round_f16": "f2"}
    return np.asarray(value).astype(types[fn])
