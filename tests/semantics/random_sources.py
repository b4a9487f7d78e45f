"""Random NumPy functions and their arguments, written as source text; the same ones for the same seed.

Each statement is run on the first arguments while it is written, so that most functions do not raise, and those that do
raise late.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.semantics.random_arrays import DTYPES, FLOATS, HEAD, INTEGERS, ODD, Given, argument_text

_MODULE = """\

FACTOR = 1.5
TABLE = np.array([0.5, -1.0, 2.0, 0.25])


def helper(v, by=2, *, limit=None):
    v = v * by
    return v if limit is None else np.minimum(v, limit)


def halves(v):
    return v[: len(v) // 2], v[len(v) // 2 :]

"""


@dataclass(frozen=True)
class Call:
    """One set of arguments, with NumPy's modes and Python's warning filter."""

    statements: tuple[str, ...]
    modes: str = ""
    filter: str = "always"


@dataclass(frozen=True)
class Source:
    """A function in pieces that can be left out."""

    seed: int
    names: tuple[str, ...]
    body: tuple[str, ...]
    result: str
    calls: tuple[Call, ...]
    #: The number of this shorter form of the function; 0 for the whole.
    attempt: int = 0

    @property
    def module(self) -> str:
        """The text of the module that defines it; shorter ones need less of it."""
        return HEAD + _MODULE + self.function

    @property
    def function(self) -> str:
        lines = "\n".join(_indented(piece) for piece in self.body)
        return f"\ndef function({', '.join(self.names)}):\n{lines}\n    return {self.result}\n".replace(
            "\n\n    r", "\n    r"
        )

    def shorter(self) -> list[Source]:
        """The function without one of its pieces, for each of them, and with a part of its result."""
        found = [replace(self, body=self.body[:at] + self.body[at + 1 :]) for at in reversed(range(len(self.body)))]
        found += [replace(self, result=name) for name in _names_in(self.result) if name != self.result]
        return found + [self._without(name) for name in self.names if name not in _names_in(self.function, inside=True)]

    def _without(self, name: str) -> Source:
        """The function without one of its arguments."""
        calls = [
            replace(call, statements=tuple(line for line in call.statements if not line.startswith(f"{name} = ")))
            for call in self.calls
        ]
        return replace(self, names=tuple(each for each in self.names if each != name), calls=tuple(calls))

    def reproduced(self, at: int) -> str:
        """A script that makes one of the calls."""
        call = self.calls[at]
        lines = [*call.statements]
        inner = f"function({', '.join(self.names)})"
        if call.filter != "always":
            lines.append(f"warnings.simplefilter({call.filter!r})")
        lines.append(f"with np.errstate({call.modes}):\n    {inner}" if call.modes else inner)
        return self.function.strip() + "\n\n" + "\n".join(lines)


def _indented(text: str, by: int = 1) -> str:
    return "\n".join("    " * by + line for line in text.split("\n"))


def _names_in(text: str, *, inside: bool = False) -> list[str]:
    """Names of variables in a text, or `inside` of the text of a function."""
    text = text.partition("):\n")[2] if inside else text
    parts = "".join(each if each.isalnum() or each == "_" else " " for each in text).split()
    return sorted({each for each in parts if each[0] in "vxyzk" and each.isidentifier()})


def _words(text: str) -> list[str]:
    return text.split()


# -- what functions do. {a} {b} any array, {r} of real floats, {i} of integers, {z} complex, {m} of booleans,
# {v} with one axis, {w} with two or more, {s} a number, {t} a type, {x} an axis, {k} a small whole number

_UNARY = _words(
    "exp exp2 expm1 log log2 log10 log1p sqrt cbrt square reciprocal sin cos tan arcsin arccos arctan sinh cosh tanh "
    "arcsinh arccosh arctanh floor ceil rint trunc sign abs negative positive isnan isinf isfinite signbit spacing "
    "degrees radians conj angle real imag logical_not sinc fix nan_to_num i0 absolute fabs round isposinf isneginf"
)
_BINARY = _words(
    "add subtract multiply divide floor_divide remainder fmod power float_power minimum maximum fmin fmax arctan2 "
    "hypot logaddexp logaddexp2 copysign nextafter heaviside equal not_equal less greater_equal logical_and "
    "logical_or logical_xor ldexp gcd lcm bitwise_and bitwise_or bitwise_xor left_shift right_shift isclose"
)
_REDUCTIONS = _words(
    "sum prod mean var std max min any all argmax argmin ptp median count_nonzero nansum nanmean nanmax nanmin nanstd "
    "nanprod nanargmax nanmedian"
)

_ARITHMETIC = (
    "({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} / {b})", "({a} + {s})", "({a} - {s})", "({a} * {s})",
    "({a} / {s})", "({s} - {a})", "({s} / {a})", "({a} // {b})", "({a} % {b})", "({a} ** 2)", "({a} ** {s})",
    "({r} ** 0.5)", "(-{a})", "(~{i})", "({i} & {i})", "({i} | {k})", "({i} ^ {i})", "({i} << {k})", "({i} >> {i})",
    "({a} // {s})", "({a} % {s})", "(+{a})", "abs({a})", "({a} * {a})", "({a} - {a})", "({a} * 0)", "({r} * 1e-3)",
    "({a} + 1j)", "({z} * {z})", "({z} / {b})", "({m} & ~{m})", "({m} | {m})", "({m} * {a})", "({a} - {r} * {b})",
    "({a} * FACTOR)", "helper({a})", "helper({a}, {s})", "helper({r}, limit=1.5)", "divmod({a}, {b})[{k2}]",
)  # fmt: skip
_COMPARISONS = (
    "({a} > {b})", "({a} <= {s})", "({a} == {b})", "({a} != {s})", "({a} >= {s})", "({r} < {b})", "({a} == {a})",
    "np.isclose({a}, {b})", "np.isin({i}, [0, 1, {k}])", "np.logical_and({a}, {b})", "({a} > 0)", "np.isnan({a})",
    "np.array_equal({a}, {b})", "np.allclose({a}, {b})", "(0 < {a}) & ({a} < 2)",
)  # fmt: skip
_CASTS = (
    "{a}.astype(np.{t})", "{a}.astype(np.{t})", "{a}.astype(np.{t}, copy=False)", "np.asarray({a}, dtype=np.{t})",
    "np.array({a}, np.{t})", "{a}.astype({py})", "np.{t}({a})", "{a}.astype(np.{t}).astype(np.{t})",
    "np.rint({r}).astype(np.{it})", "({r} * {s}).astype(np.{it})", "np.floor({r}).astype(int)", "{z}.real", "{z}.imag",
    "np.asarray({a})", "np.ascontiguousarray({a})", "np.asfortranarray({a})", "{a}.copy()", "np.full_like({a}, {s})",
    "np.zeros_like({a})", "np.ones_like({a}, dtype=np.{t})", "np.float32({s}) * {a}", "np.int64({k}) + {a}",
    "np.float16({s}) + {a}", "np.add({a}, {b}, dtype=np.{ft})", "{a}.astype(np.{t}, casting='same_kind')",
    "{a}.view()", "{a}.astype('f8')", "np.real({a})", "np.imag({a})", "np.conj({z})", "np.abs({z})", "np.angle({z})",
)  # fmt: skip
_FUNCTIONS = (
    *("np.{unary}({a})",) * 9, *("np.{unary}({r})",) * 9, *("np.{binary}({a}, {b})",) * 6, "np.{binary}({a}, {s})",
    "np.{binary}({i}, {i})", "np.{unary}({z})", "np.{binary}({r}, {r})", "np.modf({r})[{k2}]", "np.frexp({r})[{k2}]",
    "np.divmod({a}, {b})[{k2}]", "np.{unary}({r}, where={m}, out=np.zeros({r}.shape))", "np.clip({a}, -1, 2)",
    "np.clip({a}, {s}, {s})", "np.where({m}, {a}, {b})", "np.where({a} > 0, {a}, {s})",
    "np.where({m}, np.{unary}({r}), {s})", "np.select([{a} > 1, {a} < 0], [{a}, {b}], {s})",
    "np.nan_to_num({r}, nan=1.0)", "np.round({r}, {k})", "np.maximum({a}, {s})", "np.minimum({a}, {b})",
    "{a}.clip(0)", "{a}.round({k2})", "np.interp({r}, [-1.0, 0.0, 2.0], [0.5, 1.0, 4.0])",
    "np.choose({i} % 2, [{a}, {b}])", "np.piecewise({r}, [{r} < 0], [0.0, 1.0])", "np.unwrap({v})",
    "np.gradient({v})", "np.log({a})", "np.sqrt({a})", "np.exp({a})", "np.sqrt(np.abs({a}))",
    "np.log(np.abs({r}) + 1)", "np.exp(-np.abs({r}))",
)  # fmt: skip
_REDUCED = (
    *("np.{reduction}({a})",) * 3, *("np.{reduction}({a}, axis={x})",) * 6,
    "np.{reduction}({r}, axis={x}, keepdims=True)", "{a}.sum()", "{a}.mean()", "{a}.max()", "{a}.min(axis={x})",
    "{a}.any()", "{a}.all(axis={x})", "{a}.argmax()", "{a}.sum(axis={x}, dtype=np.{t})", "{a}.std()",
    "{a}.var(axis={x}, ddof=1)", "{a}.prod(axis={x})", "{m}.sum()", "np.sum({a}, where={a} > 0)",
    "np.max({r}, initial=0.0)", "np.cumsum({a}, axis={x})", "np.cumprod({a})", "{a}.cumsum()",
    "np.diff({a}, axis={x})", "np.diff({v}, n=2)", "np.average({a})", "np.average({v}, weights=np.abs({v}) + 1)",
    "np.percentile({r}, {k} * 10)", "np.quantile({r}, [0.25, 0.5])", "np.add.reduce({a})",
    "np.maximum.accumulate({v})", "np.multiply.reduce({a}, axis={x})", "np.add.accumulate({v})",
    "np.logical_and.reduce({a})", "np.minimum.reduce({a}, axis={x})", "np.trapezoid({v})", "np.linalg.norm({r})",
    "np.linalg.norm({v}, {k})", "np.nancumsum({r})", "np.ediff1d({v})", "np.mean({a}, axis={x}, dtype=np.{ft})",
    "({a} - {a}.mean()) / {a}.std()", "({a} - {a}.min()) / ({a}.max() - {a}.min())", "np.bitwise_or.reduce({i})",
    "np.mean({m})", "float({a}.shape[0])", "np.count_nonzero({a} > {s})",
)  # fmt: skip
_MOVES = (
    "{a}.ravel()", "{a}.T", "np.transpose({a})", "{a}.reshape(-1)", "{a}[None]", "np.expand_dims({a}, -1)",
    "np.squeeze({a})", "np.flip({a})", "np.flip({a}, {x})", "np.roll({a}, {k})", "np.roll({a}, 1, axis={x})",
    "np.concatenate([{a}, {b}])", "np.concatenate([{a}, {a}], axis={x})", "np.stack([{a}, {b}])",
    "np.stack([{a}, {a}], axis=-1)", "np.vstack([{a}, {a}])", "np.hstack([{a}, {b}])", "np.tile({a}, 2)",
    "np.repeat({a}, 2)", "np.repeat({a}, 2, axis={x})", "np.pad({a}, 1)", "np.pad({v}, (1, 2), mode='edge')",
    "np.pad({v}, 1, constant_values={s})", "np.swapaxes({w}, 0, 1)", "np.rot90({w})", "np.diag({w})", "np.tril({w})",
    "np.triu({w}, 1)", "np.trace({w})", "np.broadcast_to({a}, (2, *{a}.shape))", "{v}[::2]", "{v}[::-1]", "{a}[0]",
    "{a}[-1]", "{a}[1:]", "{a}[:-1]", "{a}[...]", "{w}[:, 0]", "{w}[0, 1:]", "{w}[:, ::-1]", "{a}[()]",
    "np.moveaxis({w}, 0, -1)", "np.split({v}, [1, 2])[1]", "np.atleast_2d({a})", "{a}.flatten()",
    "{a}.reshape({a}.size, 1)", "{w}.reshape(-1, order='F')", "np.array([{a}, {b}])", "np.column_stack([{v}, {v}])",
    "halves({v})[{k2}]", "np.meshgrid({v}, {v})[0]", "np.append({v}, {s})", "np.insert({v}, 1, {s})",
    "np.outer({v}, {v})", "{v}[:, None]", "{v}[None, :] - {v}[:, None]", "{w} - {w}[0]", "{w} * {w}[:, :1]",
    "np.ravel({a})", "np.array({a})", "np.triu(np.ones((3, 3)))", "np.arange({k}) * {s}", "np.linspace(0, 1, 5)",
    "np.zeros({k})", "np.full(3, {s})", "np.eye(3)", "np.lib.stride_tricks.sliding_window_view({v}, 2)",
)  # fmt: skip
_PICKS = (
    "{a}[[0, -1]]", "{a}[{a} > {s}]", "{a}[{m}]", "np.take({a}, [0, 0])", "np.take({a}, 0, axis={x})",
    "np.sort({a})", "np.sort({a}, axis={x})", "np.argsort({v})", "np.argsort({a}, kind='stable')",
    "{v}[np.argsort({v})]", "np.unique({a})", "np.take_along_axis({v}, np.argsort({v}), 0)",
    "np.searchsorted(np.sort({v}), {v})", "np.nonzero({a})[0]", "np.argwhere({a})",
    "np.bincount(np.abs({i}).ravel() % 7)", "np.histogram({r}, 4)[{k2}]", "np.digitize({r}, [-1.0, 0.0, 1.0])",
    "{v}[{i} % 3]", "np.take(TABLE, {i} % 9, mode='wrap')", "np.take(TABLE, {i}, mode='clip')",
    "np.partition({v}, 1)", "np.compress([True, False], {a}, axis=0)", "np.flatnonzero({m})", "np.where({m})[0]",
    "np.histogram({v}, 3, (-2.0, 2.0))[0]", "np.lexsort([{v}])", "TABLE[({i} % 4)]",
    "np.searchsorted([0.0, 1.0, 2.0], {r}, side='right')", "np.extract({m}, {a})", "np.intersect1d({v}, {v})",
    "np.sort({v})[::-1]", "np.argmax({w}, axis={x})", "{v}[np.argmax({v})]", "np.argpartition({v}, 1)",
    "{v}[{v}.argmin()]", "np.median({v})",
)  # fmt: skip
_PRODUCTS = (
    "({w} @ {w})", "({w} @ {w}.T)", "({v} @ {v})", "np.dot({v}, {v})", "np.dot({w}, {v})", "np.inner({v}, {v})",
    "np.vdot({a}, {a})", "np.einsum('i,i->i', {v}, {v})", "np.einsum('ij->ji', {w})",
    "np.einsum('ij,ij->i', {w}, {w})", "np.convolve({v}, [1, 2, 1])", "np.convolve({v}, {v})",
    "np.correlate({v}, {v}[:2], mode='same')", "np.tensordot({w}, {w}, 2)", "np.kron({v}, [1, -1])",
    "np.cross({v}[:3], {v}[:3])", "np.linalg.det({w} @ {w}.T)", "np.matmul({w}, {w}.T)",
    "np.polyval([1, 0, 2], {r})", "np.cov({v}, {v})", "np.fft.fft({v})", "np.fft.rfft({v})", "np.fft.ifft({v}).real",
    "np.convolve({v}, {v}[:2], mode='valid')", "np.vander({v}[:3], 3)",
    "np.linalg.solve(np.eye({w}.shape[0]) * 3, {w})", "np.corrcoef({v}, {v})", "np.linalg.inv(np.eye(3) * {s})",
    "np.cumsum({w} @ {w}.T)",
)  # fmt: skip
#: Statements that write. {o} is an array of the function's own.
_WRITES = (
    "{o} += {b}", "{o} -= {s}", "{o} *= {s}", "{o} /= {s}", "{o} //= {s}", "{o} **= 2", "{o} %= {s}", "{o}[0] = {s}",
    "{o}[-1] = {s}", "{o}[1:] = {s}", "{o}[:] = {b}", "{o}[...] = {s}", "{o}[{o} > {s}] = {s}", "{o}[{o} < 0] *= 2",
    "{o}[np.isnan({o})] = 0", "{o}[1:] += {o}[:-1]", "{o}[::2] *= {s}", "{o}[[0, -1]] = {s}",
    "np.add({o}, {b}, out={o})", "np.multiply({a}, {s}, out={o})", "np.copyto({o}, {s})", "{o}.sort()",
    "{o}.fill({s})", "np.clip({o}, -1, 1, out={o})", "{o}[::-1] -= 1", "np.maximum({o}, {s}, out={o})",
    "{o}.T[0] = {s}", "{o}.reshape(-1)[0] = {s}", "np.add.at({o}, [0, 0], 1)", "np.sqrt({o}, out={o})",
    "{o}[{m}] = {s}", "{o}[{m}] += 1", "np.put({o}, [0], {s})", "{o}[0], {o}[-1] = {o}[-1], {o}[0]", "{o} &= {k}",
    "{o} <<= 1", "np.negative({o}, out={o}, where={o} > 0)", "{o}[:, 0] = {s}", "{o}[0] += {s}",
    "{o}[1] = {o}[0] * 2", "np.exp({o}, {o})", "np.putmask({o}, {o} > 1, {s})", "{o}[~{m}] = {o}.max()",
)  # fmt: skip
#: Arrays of the function's own, and statements that assign two names.
_NEW = ("{a}.copy()", "{a} * 1", "np.array({a})", "{a} + {b}", "np.zeros({a}.shape)")
_TWO = (
    "{one}, {two} = np.divmod({a}, 3)", "{one}, {two} = np.modf({a} * 0.5)", "{one}, {two} = {a}.min(), {a}.max()",
    "{one} = {two} = {a} * 2", "{one}, {two} = np.frexp({a} * 0.5)", "{one}, *{two} = {a}.shape",
)  # fmt: skip
#: What is returned: one and two of the latest, all of these, more of them, some of them, and an argument.
_RETURNED = (
    "{one}", "{one}", "({one}, {two})", "[{some}]", "({some},)", "{{'a': {one}, 'b': {two}}}", "({latest}, {x})",
    "({one}, {x}[...])", "({one}, ({two}, None))", "({more},)", "({more},)", "({one}, {one})", "({one}, k)",
    "({latest},)",
)  # fmt: skip
_CONDITIONS = (
    "k > 1", "k", "{a}.ndim == 2", "{a}.size > 3", "{a}.dtype.kind == 'f'", "isinstance({a}, np.ndarray)",
    "len({a}) > 2", "{a}.shape == {b}.shape", "FACTOR > 1", "np.issubdtype({a}.dtype, np.floating)",
    "{a}.dtype == {b}.dtype", "{a} is {b}", "np.ndim({a}) == 1", "k is None", "isinstance(k, int)",
    "{a}.flags.c_contiguous",
)  # fmt: skip
_CONDITIONS_ON_VALUES = ("{a}.sum() > 0", "({a} > 0).any()", "{a}.max() > {s}", "np.isnan({a}).any()", "{a}.all()")
_MODES = (
    "all='ignore'", "divide='ignore'", "invalid='ignore'", "all='raise'", "divide='raise', invalid='ignore'",
    "over='raise'", "all='warn'", "under='raise'", "invalid='raise'",
)  # fmt: skip
_EXPRESSIONS = (
    (_ARITHMETIC, 26), (_COMPARISONS, 8), (_CASTS, 16), (_FUNCTIONS, 24), (_REDUCED, 16), (_MOVES, 14), (_PICKS, 7),
    (_PRODUCTS, 5),
)  # fmt: skip
_SCALARS = (
    "2", "0.5", "-1", "3", "k", "1.5", "0", "10", "-2.5", "FACTOR", "1e-3", "100", "True", "np.float32(0.5)",
    "np.int8(3)", "0.1", "np.pi", "255", "1e5", "-0.0", "np.inf", "np.nan", "2j", "np.float64(2)", "-7",
)  # fmt: skip
_SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((3,),), ((5,),), ((8,),), ((17,),), ((33,),), ((64,),), ((100,),), ((6,), (1,)), ((2, 3), (3,)),
    ((4, 5), (4, 1)), ((3, 3),), ((8, 7), (7,)), ((1, 6), (4, 1)), ((2, 3, 4), (3, 1)), ((20, 31),), ((300,),),
    ((4, 4), ()), ((9,), ()), ((16,), (16,)), ((1,),),
)  # fmt: skip
#: Elements of what a function may make, on the arguments that it is written with.
_MOST = 6000


class _Writer:
    """Writes one function, and runs what it has written on sample arguments."""

    def __init__(self, rng: random.Random, module: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.rng = rng
        self.names = dict(module)
        self.values = arguments
        self.own: list[str] = []
        self._number = 0

    def new(self) -> str:
        self._number += 1
        return f"v{self._number}"

    # -- slots

    def named(self, fits: Callable[[Any], bool]) -> str | None:
        """A variable whose value is an array, or a number of NumPy's, that fits. The latest more often."""
        found = [name for name, value in self.values.items() if isinstance(value, np.ndarray) and fits(value)]
        if not found:
            found = [name for name, value in self.values.items() if isinstance(value, np.generic) and fits(value)]
        if not found:
            return None
        return self.rng.choice(found[-3:]) if self.rng.random() < 0.5 else self.rng.choice(found)

    def array(self, fits: Callable[[Any], bool], otherwise: str, depth: int) -> str:
        if depth > 0 and self.rng.random() < 0.3:
            text = self.expression(depth - 1)
            if self.fits(text, fits):
                return text if text[0] not in "-~" else f"({text})"
        name = self.named(fits)
        if name is not None:
            return name
        any_one = self.named(lambda value: True)
        return otherwise.format(any_one if any_one is not None else "TABLE")

    def fits(self, text: str, fits: Callable[[Any], bool]) -> bool:
        try:
            value = self.tried(text)
        except Exception:  # noqa: BLE001 - it is not taken
            return False
        return isinstance(value, np.ndarray | np.generic) and fits(value)

    def tried(self, text: str) -> Any:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return eval(text, self.names, dict(self.values))

    def slot(self, kind: str, depth: int) -> str:
        rng = self.rng
        match kind:
            case "a" | "b" | "c":
                return self.array(lambda v: v.dtype.kind in "biufc", "{}", depth)
            case "r":
                return self.array(lambda v: v.dtype.kind == "f", "({} * 0.5)", depth)
            case "i":
                return self.array(lambda v: v.dtype.kind in "iu", "{}.astype(np.int32)", depth)
            case "z":
                return self.array(lambda v: v.dtype.kind == "c", "({} + 1j)", depth)
            case "m":
                return self.array(lambda v: v.dtype.kind == "b", "({} > 0)", depth)
            case "v":
                return self.array(lambda v: v.dtype.kind in "biufc" and v.ndim == 1, "np.ravel({})", depth)
            case "w":
                return self.array(lambda v: v.dtype.kind in "biufc" and v.ndim >= 2, "np.stack([{0}, {0}])", depth)
            case "o":
                return rng.choice(self.own)
            case "s":
                number = self.named(lambda v: v.ndim == 0) if rng.random() < 0.2 else None
                return number or rng.choice(_SCALARS)
            case "t":
                return rng.choice(DTYPES)
            case "it":
                return rng.choice(INTEGERS)
            case "ft":
                return rng.choice((*FLOATS, "complex64"))
            case "py":
                return rng.choice(("int", "float", "bool", "complex"))
            case "x":
                return rng.choice(("0", "0", "-1", "1", "None"))
            case "k":
                return rng.choice(("1", "2", "3", "4"))
            case "k2":
                return rng.choice(("0", "1"))
            case "unary":
                return rng.choice(_UNARY)
            case "binary":
                return rng.choice(_BINARY)
            case _:
                return rng.choice(_REDUCTIONS)

    def filled(self, template: str, depth: int) -> str:
        text, rest = "", template
        while "{" in rest:
            before, _, rest = rest.partition("{")
            kind, _, rest = rest.partition("}")
            text += before + (self.slot(kind, depth) if kind else "{}")
        return text + rest

    def expression(self, depth: int = 1) -> str:
        tables, weights = zip(*_EXPRESSIONS, strict=True)
        table = self.rng.choices(tables, weights)[0]
        return self.filled(self.rng.choice(table), depth)

    # -- statements

    def run(self, text: str) -> bool:
        """Whether the statement can be run; it has been, then."""
        values = dict(self.values)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                exec(text, self.names, values)
        except Exception:  # noqa: BLE001 - another one is written
            return False
        for value in values.values():
            if isinstance(value, np.ndarray) and (value.size > _MOST or value.ndim > 4):
                return False
        self.values = {name: value for name, value in values.items() if not callable(value)}
        return True

    def statement(self) -> str:
        """A statement that can be run, as a rule."""
        while True:
            text = self.written()
            if self.run(text) or self.rng.random() < 0.01:
                return text

    def written(self, *, is_inner: bool = False) -> str:
        rng = self.rng
        kind = rng.random()
        if kind < 0.14 and self.own:
            return self.filled(rng.choice(_WRITES), 0)
        if kind < 0.20 and not is_inner:
            return self.block()
        if kind < 0.26:
            name = self.new()
            self.own.append(name)
            return f"{name} = {self.filled(rng.choice(_NEW), 0)}"
        if kind < 0.28:
            one, two, a = self.new(), self.new(), self.slot("a", 0)
            return rng.choice(_TWO).format(one=one, two=two, a=a)
        name = self.new()
        if rng.random() < 0.5:
            self.own.append(name)
        return f"{name} = {self.expression()}"

    def block(self) -> str:
        rng = self.rng
        kind = rng.randrange(12)
        if kind < 4:
            condition = rng.choice(_CONDITIONS) if rng.random() < 0.93 else rng.choice(_CONDITIONS_ON_VALUES)
            text = f"if {self.filled(condition, 0)}:\n{self.inside()}"
            return text + (f"\nelse:\n{self.inside()}" if rng.random() < 0.4 else "")
        if kind < 6:
            name = self.named(lambda value: True) or "TABLE"
            return f"for n in range({rng.choice(('2', '3'))}):\n    {name} = {name} * 0.5 + n\n{self.inside()}"
        if kind < 9:
            return f"with np.errstate({rng.choice(_MODES)}):\n{self.inside()}"
        if kind == 9:
            name, error = (
                self.new(),
                rng.choice(("Exception", "ValueError", "FloatingPointError", "(TypeError, IndexError)")),
            )
            return f"try:\n    {name} = {self.expression()}\nexcept {error}:\n    {name} = {self.slot('a', 0)}"
        if kind == 10:
            name = self.new()
            return f"{name} = sum([{self.slot('a', 0)} * n for n in range(3)])"
        if rng.random() < 0.3:
            return f"warnings.warn('the {self.slot('k', 0)}th', stacklevel=1)"
        test = self.filled(rng.choice(("{a}.ndim > 3", "{a}.size == 0", "k == 77", "{a}.dtype == bool")), 0)
        return f"if {test}:\n    raise ValueError(f'no {{{self.slot('a', 0)}.shape}}')"

    def inside(self) -> str:
        """A block whose names are there afterwards only if they were there before."""
        kept, own = dict(self.values), list(self.own)
        lines = []
        for _ in range(self.rng.randint(1, 2)):
            text = self.written(is_inner=True)
            for _ in range(10):
                if self.run(text):
                    break
                text = self.written(is_inner=True)
            else:
                text = "pass"
            lines.append(text)
        self.values, self.own = kept, own
        return "\n".join(_indented(each) for each in lines)

    def result(self) -> str:
        rng = self.rng
        names = [name for name in self.values if name[0] == "v"] or ["x"]
        last = names[-4:]
        rng.shuffle(last)
        one, two = last[0], last[-1]
        return rng.choice(_RETURNED).format(
            one=one,
            two=two,
            latest=", ".join(last),
            some=", ".join(last[: rng.randint(1, 4)]),
            more=", ".join(names[-6:]),
            x=next(iter(self.values)),
        )


_CALL_MODES = (
    *("",) * 22, "all='ignore'", "all='ignore'", "all='raise'", "all='raise'", "divide='raise'", "invalid='raise'",
    "over='raise'", "under='warn'", "invalid='ignore'", "divide='ignore', invalid='raise'", "under='raise'",
)  # fmt: skip
_CALL_FILTERS = (*("always",) * 10, "error", "error", "default", "ignore")


def _givens(rng: random.Random) -> dict[str, Given]:
    shapes = rng.choice(_SHAPES)
    if rng.random() < 0.01:
        shapes = ((2_500,),)
    common = rng.choice((*FLOATS, *FLOATS, *FLOATS, *DTYPES))
    found = {}
    for name in "xyz"[: rng.choice((1, 2, 2, 2, 3))]:
        dtype = common if rng.random() < 0.55 else rng.choice(DTYPES)
        if rng.random() < 0.01:
            dtype = rng.choice(ODD)
        found[name] = Given(dtype, shapes[0] if name == "x" else rng.choice(shapes))
        if name != "x" and rng.random() < 0.12:
            found[name] = Given(rng.choice(("float", "int", "complex", "bool", *DTYPES)))
    found["k"] = Given("int")
    return found


def _others(rng: random.Random, givens: dict[str, Given]) -> dict[str, Given]:
    """Arguments of other types or shapes."""
    found = dict(givens)
    kind = rng.randrange(6)
    new = rng.choice(DTYPES)
    for name, given in givens.items():
        if given.shape is None:
            continue
        if kind <= 1:
            found[name] = replace(given, dtype=new if rng.random() < 0.6 else given.dtype)
        elif kind == 2:
            found[name] = replace(given, shape=tuple(each and (each + 2 if each > 1 else 1) for each in given.shape))
        elif kind == 3:
            found[name] = replace(
                given, shape=tuple(0 if at == 0 and each > 1 else each for at, each in enumerate(given.shape))
            )
        elif kind == 4:
            found[name] = replace(given, shape=() if rng.random() < 0.7 else given.shape)
        else:
            found[name] = replace(given, shape=(1,) * len(given.shape) if rng.random() < 0.7 else given.shape[-1:])
    return found


def _statements(
    rng: random.Random, givens: dict[str, Given], special: float, *, plain: bool = False
) -> tuple[str, ...]:
    lines = []
    for name, given in givens.items():
        text = argument_text(rng, given, special, plain=plain)
        if name == "y" and not plain and given == givens["x"] and rng.random() < 0.12:
            text = rng.choice(("x", "x[::-1]", "x[:]")) if given.shape else "x"
        if name == "k":
            text = rng.choice("1223")
        lines.append(f"{name} = {text}")
    return tuple(lines)


def write(seed: int, sets: int = 20) -> Source:
    """The function of a seed, with some sets of arguments: most of the same types and shapes, with other values."""
    rng = random.Random(seed)
    givens = _givens(rng)
    first = _statements(rng, givens, 0.0, plain=True)
    module: dict[str, Any] = {"__name__": "a_random_function"}
    exec(HEAD + _MODULE, module)
    arguments: dict[str, Any] = {}
    exec("\n".join(first), module, arguments)
    writer = _Writer(rng, module, arguments)
    body = tuple(writer.statement() for _ in range(rng.randint(2, 6)))
    calls = [Call(first), Call(_statements(rng, givens, 0.0, plain=True))]
    other = _others(rng, givens)
    another = _others(rng, givens)
    while len(calls) < sets:
        at = len(calls)
        used = other if at % 5 == 3 else another if at % 10 == 6 else givens
        special = rng.choice((0.0, 0.05, 0.15, 0.5))
        modes, shown = rng.choice(_CALL_MODES), rng.choice(_CALL_FILTERS)
        calls.append(Call(_statements(rng, used, special), modes, shown))
    return Source(seed, tuple(givens), body, writer.result(), tuple(calls[:sets]))
