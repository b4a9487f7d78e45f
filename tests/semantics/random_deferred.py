"""`python -m tests.semantics.random_deferred --count 3000`: random functions, deferred and plain.

They write in place, hold arrays under several names, keep them, return them, raise and catch, with arrays that stand
for NumPy's and NumPy's own in one expression. Numbers are multiples of 1/8 and stay small. `--writers 200` makes
functions that write to an operand of an operation that waits, through another name.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from anygpu.array.deferred import recorder
from tests.semantics.cases import Case, World
from tests.semantics.deferring import run_deferred
from tests.semantics.moving import Run
from tests.support.deferred_placement import always_deferred
from tests.support.native_placement import native_at_once

#: The step of each call: two kinds of arguments, and as often as it takes until all that can wait does.
STEPS = (0, 0, 0, 1, 2, 3, 4, 5)
#: With native code: as often as it takes until segments are native.
NATIVE_STEPS = (*(0,) * 7, *range(1, 7))

_HEAD = """\
import collections, contextlib, copy, ctypes, functools, struct, sys, warnings
import numpy as np

BUFFER = np.zeros(6)
TABLE = (np.arange(6) - 2) / 2
KEPT = []
NAMED = {}
QUEUE = collections.deque()


class Holder:
    def __init__(self):
        self.table = np.full(6, 0.25)
        self.kept = None


class Slots:
    __slots__ = ("kept",)


HOLDER, SLOTS = Holder(), Slots()


def writes(v, by=1.0):
    v += by
    return v


def doubles(v):
    return np.clip(v * 2, -8, 8)


def first_of(v):
    v[0] = 0.5
    return v[1:]


def fails(v):
    v[1] = 0.25
    raise KeyError(float(v[0]))


def other():
    return BUFFER

"""

_TAIL = """\

def change(n):
    global BUFFER
    KEPT.clear(), NAMED.clear(), QUEUE.clear()
    HOLDER.kept = SLOTS.kept = None
    HOLDER.table[:] = n / 8
    TABLE[:] = (np.arange(6) - n) / 2
    BUFFER = np.random.default_rng(n + 77).integers(-31, 32, 6) / 8


def arguments(n):
    rng = np.random.default_rng(n)
    x = (rng.integers(-31, 32, 6) / 8).astype(np.{first})
    y = {second}
    return x, y, (2, 3, 1)[n % 3]


def seen():
    kept = getattr(SLOTS, "kept", None)
    return BUFFER, TABLE, KEPT, NAMED, QUEUE, HOLDER.table, HOLDER.kept, kept
"""

_SECOND = (
    "(rng.integers(-31, 32, 6) / 8).astype(np.float64)", "(rng.integers(-31, 32, 6) / 8).astype(np.float64)", "x",
    "x[::-1]", "BUFFER", "rng.integers(-9, 9, 6)", "np.float64(1.5)", "np.array(0.5)", "TABLE",
    "(rng.integers(-31, 32, 6) / 8).astype('>f8')", "np.broadcast_to(np.float64(0.5), 6)",
)  # fmt: skip


@dataclass
class Source:
    """The text of one function, in pieces that can be left out."""

    seed: int
    head: str
    body: list[str]
    tail: str
    #: Operations on arrays of at most so many elements are made at once.
    small: int = -1

    @property
    def text(self) -> str:
        lines = "\n".join("    " + line for piece in self.body for line in piece.split("\n"))
        return f"{self.head}\ndef function(x, y, k):\n{lines}\n\n{self.tail}"

    def without(self, number: int) -> Source:
        return Source(self.seed, self.head, self.body[:number] + self.body[number + 1 :], self.tail, self.small)

    def case(self) -> Case:
        name = f"<deferred function {self.seed}>"
        text = self.text
        code = compile(text, name, "exec")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

        def make() -> World:
            module: dict[str, Any] = {"__name__": "a_deferred_function"}
            exec(code, module)
            return World(module["function"], module["arguments"], module["change"], module["seen"])

        return Case(name, make, either=True)


@dataclass
class _Writer:
    """Writes one function."""

    rng: random.Random
    #: Names of arrays of six numbers, of shorter ones, and of numbers.
    arrays: list[str] = field(default_factory=lambda: ["x", "x", "y"])
    parts: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=lambda: ["k"])
    names: Iterator[str] = field(default_factory=lambda: (f"v{number}" for number in range(10_000)))

    def one(self, *options: str) -> str:
        return self.rng.choice(options)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # -- expressions

    def number(self) -> str:
        if self.chance(0.3):
            return self.rng.choice(self.numbers)
        return self.one("2", "0.5", "-1.0", "k", "1", "True", "np.float32(0.5)", "np.float64(0.25)", "float(x[0])",
                        "x.sum()", "x.max()", "len(x)", "3")  # fmt: skip

    def atom(self) -> str:
        if self.chance(0.7):
            return self.rng.choice(self.arrays)
        return self.one("BUFFER", "TABLE", "HOLDER.table", "np.ones(6)", "np.arange(6)", "np.zeros(6, np.float32)",
                        "other()", "x[::-1]", "np.array([1, 2, 3, 4, 5, 6.0])")  # fmt: skip

    def array(self, depth: int = 2) -> str:
        if depth == 0:
            return self.atom()
        one = self.array(depth - 1)
        match self.rng.randrange(18):
            case 0 | 1 | 2:
                return f"({one} {self.one('+', '-', '*')} {self.one(self.number(), self.array(depth - 1))})"
            case 3:
                test = f"{self.atom()} {self.one('>', '<=', '==', '!=')} {self.number()}"
                return f"np.where({test}, {one}, {self.one(self.number(), self.atom())})"
            case 4:
                return f"np.{self.one('maximum', 'minimum', 'add', 'copysign')}({one}, {self.one('0.5', self.atom())})"
            case 5:
                return f"np.{self.one('abs', 'negative', 'floor', 'sign', 'ceil')}({one})"
            case 6:
                return f"np.roll({one}, {self.one('1', '-2', 'k')})"
            case 7:
                return f"({self.one('-', '+')}{self.atom()})"
            case 8:
                return f"doubles({one})"
            case 9:
                return f"{self.atom()}[{self.one('::-1', ':', '...', '[5, 4, 3, 2, 1, 0]')}]"
            case 10:
                return f"({one}).{self.one('copy()', 'astype(np.float32)', 'astype(float)', 'cumsum()', 'clip(-2, 2)')}"
            case 11:
                return f"np.concatenate([{self.atom()}[:2], {self.atom()}[2:]])"
            case 12:
                return f"np.{self.one('sort', 'cumsum', 'flip', 'copy', 'zeros_like', 'ones_like')}({one})"
            case 13:
                return f"({one}).reshape(2, 3).T.{self.one('ravel()', 'reshape(6)', 'flatten()')}"
            case _:
                return self.one(*SIXES).format(a=one, b=self.atom(), number=self.number())

    # -- statements

    def new(self, pool: list[str]) -> str:
        name = next(self.names)
        pool.append(name)
        return name

    def statement(self, depth: int = 1) -> str:
        kind = self.rng.randrange(20 if depth else 14)
        if kind < 3:
            text = self.array()
            return f"{self.new(self.arrays)} = {text}"
        if kind < 5:
            return self.alias()
        if kind < 10:
            return self.write()
        if kind == 10:
            return self.masks() if self.chance(0.3) else self.keep()
        if kind == 11:
            name = self.atom()
            text = f"{name}.{self.one('sum()', 'max()', 'mean()', 'argmax()', 'min()', 'any()')}"
            text = self.one(text, f"{name}[{self.one('0', '-1', 'k')}]", f"float({text})", f"np.median({name})")
            return f"{self.new(self.numbers)} = {text}"
        if kind == 12:
            return self.one(
                f"print({self.rng.choice(self.numbers)})", f"print({self.atom()}[:2])", f"print({self.atom()}.shape)",
                f"print(f'{{float({self.atom()}.sum()):.3f}}')", f"print({self.atom()} is None)",
                f"print(np.shares_memory({self.atom()}, {self.atom()}))", f"print({self.atom()}.flags.writeable)",
                f"print({self.atom()}.base is None)", f"print({self.atom()}.tolist())", f"print(repr({self.atom()}))",
            )  # fmt: skip
        if kind == 13:
            return self.warns()
        if kind == 14:
            number = self.rng.choice(self.numbers)
            test = self.one(f"{self.atom()}.sum() > 0", f"({self.atom()} > 0).any()", f"{number} > 1",
                            f"({self.atom()} == {self.atom()}).all()", f"{self.atom()}[2] < 0.5")  # fmt: skip
            return f"if {test}:\n{self.block()}" + (f"\nelse:\n{self.block()}" if self.chance(0.5) else "")
        if kind == 15:
            return f"for n{depth} in range({self.one('2', 'k', '3')}):\n{self.block()}"
        if kind == 16 or kind == 17:
            return self.tries()
        if kind == 18:
            name = self.rng.choice(self.arrays)
            test = f"while abs({name}.sum()) > {self.one('4', '9')} and rounds < 6"
            return f"rounds = 0\n{test}:\n    {name}, rounds = {name} / 2, rounds + 1\n{self.block()}"
        name = self.new(self.arrays)
        return self.one(
            f"{name} = (lambda v: v * 2)({self.atom()})",
            f"def inner{name}():\n    return {self.atom()} + 1\n{name} = inner{name}()",
            f"{name} = sum([{self.atom()} for _ in range(2)]) + x * 0",
            f"{name} = functools.reduce(np.add, [{self.atom()}, {self.atom()}])",
            f"{name} = next(v * 2 for v in [{self.atom()}])",
            f"{name} = copy.{self.one('copy', 'deepcopy')}({self.atom()})",
        )

    def block(self) -> str:
        pools = self.arrays[:], self.parts[:], self.numbers[:]
        text = "\n".join(self.statement(0) for _ in range(self.rng.randint(1, 2)))
        self.arrays, self.parts, self.numbers = pools  # names may not be there afterwards
        return _indented(text)

    def alias(self) -> str:
        name = self.atom()
        if self.chance(0.4):
            text = self.one("[1:]", "[:3]", "[::2]", "[k:]", "[None, :]", ".reshape(2, 3)", ".reshape(3, 2).T")
            return f"{self.new(self.parts)} = {name}{text}"
        text = self.one(
            "{}", "{}[:]", "{}[::-1]", "np.asarray({})", "{}.view()", "{}.ravel()", "np.asanyarray({}, float)",
            "np.array({})", "np.ascontiguousarray({})", "{}.T", "{}.reshape(6)", "np.reshape({}, 6)", "np.squeeze({})",
            "{}.astype(float, copy=False)", "np.array({}, copy=None)", "{}.real", "np.transpose({})", "{}.reshape(-1)",
            "np.require({})", "np.atleast_1d({})", "np.ravel({})", "[{}][0]", "np.broadcast_to({}, 6)", "{}.conj()",
        )  # fmt: skip
        return f"{self.new(self.arrays)} = {text.format(name)}"

    def written(self) -> str:
        return self.rng.choice(self.arrays + self.parts)

    def write(self) -> str:
        name, number = self.written(), self.number()
        text = self.one(*WRITES).format(name=name, number=number, other=self.atom(), place=self.one("0", "1", "-1"))
        if self.chance(0.7):
            return f"try:\n{_indented(text)}\nexcept Exception as error:\n    print(type(error).__name__, error)"
        return text

    def keep(self) -> str:
        name = self.rng.choice(self.arrays + self.parts + self.numbers)
        return self.one(
            "KEPT.append({})", "HOLDER.kept = {}", "NAMED['a'] = {}", "SLOTS.kept = {}", "QUEUE.append({})",
            "KEPT.append(({}, k))", "NAMED['b'] = [{}, {{'c': {}}}]", "HOLDER.kept = ({}, [{}])",
            "KEPT.append({}[None])", "NAMED[float({}.sum())] = 1", "KEPT.append(copy.copy({}))",
        ).format(*[f"np.asarray({name})" if name in self.numbers else name] * 2)  # fmt: skip

    def masks(self) -> str:
        """Elements that a mask selects, computed with and put back, or kept."""
        name, mask, part = self.rng.choice(self.arrays), next(self.names), next(self.names)
        used = self.one("{0} * 2 + 1", "np.sqrt(np.abs({0}))", "{0} + {0}", "{0}.copy()", "k - {0}").format(part)
        last = self.one("{0}[{1}] = {2}", "{0}[~{1}] = {2}.sum()", "KEPT.append({2})", "{0}[{1}] *= 2",
                        "{1}[0] = True\n{0}[{1}] = 1", "print({2}.shape)").format(name, mask, part)  # fmt: skip
        text = f"{mask} = {self.atom()} > {self.number()}\n{part} = {name}[{mask}]\n{part} = {used}\n{last}"
        return f"try:\n{_indented(text)}\nexcept Exception as error:\n    print(type(error).__name__, error)"

    def warns(self) -> str:
        name, other = self.atom(), self.atom()
        new = self.new(self.arrays)
        mode = self.one("ignore", "raise", "warn", "ignore")
        return self.one(
            f"{new} = {name} / np.where({other} == {other}, {other}, 1)", f"{new} = np.log(np.abs({name}))",
            f"{new} = np.sqrt({name})", f"{new} = {name} / ({other} - {other})",
            f"with np.errstate(all='{mode}'):\n    {new} = np.sqrt({name} - 4) + 1",
            f"with np.errstate(divide='{mode}'):\n    {new} = 1 / {name}",
            f"{new} = np.asarray({name}).astype(np.int32) // np.sign({other}).astype(np.int32)",
            f"with warnings.catch_warnings():\n    warnings.simplefilter('{self.one('ignore', 'error', 'always')}')\n"
            f"    {new} = np.full(6, np.nanmean({name} * np.nan))\n    {new} = {new} + (1 / {other})",
            f"with warnings.catch_warnings(record=True) as seen:\n    warnings.simplefilter('always')\n"
            f"    {new} = np.log({name} - {name})\n    with warnings.catch_warnings():\n        {new} = 1 / {other}\n"
            f"    print(len(seen))\nprint(*[each.message for each in seen])",
            f"warnings.warn('said', stacklevel=1)\n{new} = {name} / 0", f"{new} = ({name} * 1j).astype(float)",
            f"{new} = {name} * 1\n{new}[{self.one(':', '[0, 1]')}] = 1j * {name}[:1]",
        )  # fmt: skip

    def tries(self) -> str:
        name, other = self.written(), self.written()
        risky = self.one(
            "{0} + np.ones(5)", "{0}.reshape(4, 4)", "{0}[17]", "fails({0})", "raise ValueError({0}.sum())",
            "{0}[7] = 1", "{0} @ np.ones((4, 4))", "np.log({0}) if k > 2 else {0}.nothing", "raise KeyError({0})",
            "{0} += np.ones((2, 3, 4))", "int({0})", "bool({0})", "{0}['a']", "np.add({0}, 1, out=np.zeros(2))",
            "{0} << 1", "{0}.sum(axis=3)", "np.concatenate([{0}, {0}[None]])", "{0} @ {0}.reshape(3, 2)",
            "np.linalg.inv(np.zeros((2, 2)) * {0}[0])", "float(np.stack([{0}, {0}]))", "{0}[::0]", "len({0}.sum())",
            "hash({0})", "{0}.sort(axis=2)", "np.broadcast_to({0}, (2, 2))", "{0}.shape = (5, 5)",
        ).format(name)  # fmt: skip
        before = f"{other} += 1\n    " if self.chance(0.5) else ""
        after = self.one("print(type(error).__name__, error)", "x = x - 0.5", "KEPT.append(str(error))",
                         "print(error.__traceback__.tb_lineno)", "raise", "KEPT.append(error.args)")  # fmt: skip
        kinds = self.one("Exception", "Exception", "ValueError", "(KeyError, IndexError)", "TypeError")
        last = f"\nfinally:\n    {self.write()}" if self.chance(0.3) else ""
        last = last if "\n" not in last[11:].strip() else ""
        return f"try:\n    {before}{risky}\nexcept {kinds} as error:\n    {after}{last}"

    def result(self) -> str:
        names = [self.rng.choice(self.arrays + self.parts + self.numbers) for _ in range(3)]
        one, two, three = names
        return "return " + self.one(
            one, f"{one}, {two}", f"[{one}, {{'a': {two}}}]", f"({one}, {one}, {three})", f"{one}, {self.array(1)}",
            f"{{'a': {one}, 'b': [{two}, ({three},)]}}", "None", f"{self.rng.choice(self.arrays)}[1:], {one}",
            f"np.asarray({one}), {two}", f"x, y, {one}", f"{self.rng.choice(self.arrays)}.sum(), {one}",
            f"lambda: {one}", f"(v for v in [{one}, {two}])", f"collections.deque([{one}])", f"iter([{one}])",
        )  # fmt: skip


#: Ways to make six numbers of six.
SIXES = (
    "({a}).astype(int) // 2", "(np.abs({a}).astype(np.int32) << 1) % 3", "(({a}).astype(int) & 3) ** k",
    "(({a}).reshape(2, 3) - ({b}).reshape(2, 3).sum(axis=0, keepdims=True)).ravel()", "np.round({a}, 1)",
    "({a}).reshape(2, 3).mean(axis=1, keepdims=True).repeat(3, axis=1).reshape(6)", "np.nan_to_num(np.sqrt({a}))",
    "np.stack([{a}, {b}]).mean(axis=0)", "np.outer({a}, {b})[k]", "np.dot({a}, {b}) * {b}", "np.vstack(({a}, {b}))[1]",
    "(({a}).reshape(2, 3) @ ({b}).reshape(3, 2)).repeat(2)[:6].copy()", "np.real({a} * 1j)", "(({a}) * 1j).imag",
    "np.real_if_close({a} * (1j if k > 2 else 1)) * 1", "np.argsort({a})", "{a}[np.argsort({b})]",
    "np.nanmax({a}) + {b}", "np.isclose({a}, {b}) * 1.5", "np.full_like({a}, {number})", "np.median({a}) - {b}",
    "np.broadcast_to({a}, (2, 6)).sum(0)", "np.tril(({a}).reshape(2, 3)).ravel()", "np.diff({a}, prepend=0)",
    "np.tile(({a})[:3], 2)", "np.where(({a} > 0) & ~({b} > 1), {a}, {b})", "np.angle({a} + 0j)", "np.cumprod({a} / 8)",
    "np.moveaxis(({a}).reshape(2, 3), 0, 1).reshape(6)", "np.nanmean(np.where({a} > {number}, np.nan, {b})) * {b}",
    "np.std(({a}).reshape(3, 2), axis=1, ddof=1).repeat(2)", "np.add.reduce(({a}).reshape(1, 6))", "({a}) @ {b} + {a}",
    "np.clip({a}, {number}, None)", "np.hypot({a}, {b})", "np.true_divide({a}, 2, dtype=np.float32)", "({a}).round(1)",
    "np.vdot({a}, {b}) * np.ones_like({a})", "np.pad(({a})[1:], (1, 0))", "np.asfortranarray({a})", "divmod({a}, 2)[1]",
    "np.interp({a}, np.sort({b}), {b})", "np.einsum('i,i->i', {a}, {b})", "np.linalg.norm({a}) * {b}",
    "np.interp({a}, {b}, {a})", "np.searchsorted({a}, {b}) * 0.5", "np.average({a}) * {b}", "np.nanmedian({a}) - {b}",
    "np.searchsorted(np.sort({a}), {b}, side='right') + {a}", "np.percentile({a}, [25, 75.5]).sum() + {b}",
    "np.quantile(({a}).reshape(2, 3), 0.3, axis=0).repeat(2)", "np.average({a}, weights=np.abs({b}) + 1) * {b}",
    "np.median(({a}).reshape(3, 2), axis=1, keepdims=True).repeat(2)", "np.percentile({a}, {number}) + {b}",
    "np.nanpercentile(np.where({a} > {number}, np.nan, {b}), 40) + {a}",
    "np.median(np.where({a} > {number}, np.nan, {b})) + {a}", "np.histogram({a}, 6)[0] * {b}",
    "np.histogram({a} / {number}, 6)[1][1:] + {b}",
    "np.histogram({a}, 6, (-2, 1.5))[0] + np.interp({b}.flat, {a}, {a})",
)  # fmt: skip
#: Ways to write to an array, whoever waits for it.
WRITES = (
    "{name} += {number}", "{name} -= 0.5", "{name} *= {number}", "{name}[{place}] = {number}", "{name}[:] = {number}",
    "{name}[1:3] = 0.5", "{name}[...] = {other}", "{name}[::2] += 1", "{name}[{name} > 0] = {number}",
    "{name}[[0, 1]] = 0.25", "np.add({name}, {number}, out={name})", "np.multiply({other}, 0.5, out={name})",
    "np.copyto({name}, {number})", "np.copyto({name}, {other})", "{name}.sort()", "{name}.fill(0.5)",
    "{name}.put([0, 1], 0.5)", "np.put({name}, [1], {number})", "np.place({name}, {name} > 1, 0.25)",
    "np.putmask({name}, {name} < 0, 0.5)", "np.asarray({name})[{place}] = 0.75", "{name}.flat[0] = 0.5",
    "{name}.flat = 0.25", "memoryview({name})[0] = 1.5", "{name}.data[0] = 1.25", "np.add.at({name}, [0, 0, 1], 1)",
    "np.frombuffer({name}, {name}.dtype)[:1] = 0.5", "np.ndarray(1, {name}.dtype, buffer={name})[0] = 2.5",
    "np.lib.stride_tricks.as_strided({name}, (1,))[0] = 0.5", "writes({name})", "writes({name}, {number})",
    "first_of({name})", "{name}.real = {number}", "{name}.partition(1)", "np.clip({name}, -1, 1, out={name})",
    "{name}.clip(-1, 1, out={name})", "np.cumsum({name}, out={name})", "np.random.default_rng(k).shuffle({name})",
    "struct.pack_into('d', {name}, 0, 1.75)", "ctypes.memset({name}.ctypes.data, 0, {name}.size and {name}.itemsize)",
    "ctypes.memmove({name}.ctypes.data, {name}.dtype.type(0.5).tobytes(), {name}.size and {name}.itemsize)",
    "{name}.itemsize, {name}.byteswap(inplace=True).byteswap(inplace=True)",
    "ctypes.c_double.from_buffer({name}).value = 2.25", "np.nan_to_num({name}, copy=False)",
    "{name}.__setitem__(0, 0.5)", "{name}.__iadd__(1)", "np.maximum({name}, {other}, {name})",
    "np.negative({name}, {name})", "HOLDER.table[:] = {name}[:1]", "other()[{place}] = {number}", "TABLE[:] = {name}",
    "x[1:], x[0] = x[:-1].copy(), 0.5", "{name}.setfield(0.5, {name}.dtype)",
    "np.take({other}, [0, 1, 2, 3, 4, 5], out={name}, mode='clip')", "np.asarray({name}).reshape(-1)[:1] = 0.5",
    "np.from_dlpack({name})[0] = 0.5", "{name} //= 2", "{name} **= 2", "{name} = {name} * 0 + {number}",
    "np.exp2({other} * 0, out={name}, where={name} > 0)", "np.einsum('i->i', {name})[0] = 0.5",
    "with np.nditer({name}, op_flags=['readwrite']) as it:\n    for v in it: v[...] = v + 1",
    "np.array({name}, copy=False)[0] = 0.5", "np.array([{name}], dtype=object)[0, 0:1] = 1", "[{name}][0][0] = 0.5",
    "np.median({name}, overwrite_input=True)", "np.percentile({name}, 50, None, None, True)",
    "object.__getattribute__({name}, '__array__')()[0] = 0.5", "np.asarray({name}).setflags(write=True)",
)  # fmt: skip


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


def write(seed: int) -> Source:
    """A function that writes, keeps, returns and catches."""
    rng = random.Random(seed)
    writer = _Writer(rng)
    writer.arrays += ["o", "t"]
    body = ["o, t = other(), TABLE", *(writer.statement() for _ in range(rng.randint(3, 8)))]
    tail = _TAIL.format(second=rng.choice(_SECOND), first=rng.choice(("float64", "float64", "float64", "float32")))
    return Source(seed, _HEAD, [*body, writer.result()], tail, rng.choice((-1, -1, 4, 5)))


def write_writer(seed: int) -> Source:
    """A function in which an operation waits while somebody writes to its operand through another name."""
    rng = random.Random(seed)
    ways = [each for each in WRITES if "{name}" in each and "= {name}" not in each and "HOLDER" not in each]
    target = rng.choice(("x", "o", "x[1:]", "o[::-1]", "y"))
    names = ["y = x + 1", "y = np.sin(x) * 0.5 + x", "y = x[1:] * 2", "y = np.where(x > 0, x, 0)", "y = x.copy() + 1"]
    name = "w" if "[" in target or rng.random() < 0.3 else target
    body = [
        "o = other()",
        rng.choice(names),
        rng.choice(("y.sum()", "q = y * 2", "q = float(y[0])", "q = [y]", "q = y[:3]")),
    ]
    for _ in range(rng.randint(1, 3)):
        if name == "w":
            body.append(f"w = {target}")
        body.append(f"v = {rng.choice(('x', 'y', 'o'))} {rng.choice('+-*')} {rng.choice(('1', 'k', 'x[:1]'))}")
        way = rng.choice(ways).format(name=name, number=rng.choice(("2", "0.5", "k")), other="x[:1]", place="0")
        body.append(f"try:\n{_indented(way)}\nexcept Exception as error:\n    print(type(error).__name__, error)")
        body.append(f"u = {rng.choice(('x * x', 'y + x[:1]', 'x[::-1] - 1', 'o + 1'))}")
    body.append("return v, u, y, x, y.sum() + x.sum()")
    tail = _TAIL.format(second="x", first="float64").replace(
        "return x, y,", "globals()['BUFFER'] = x\n    return x, y,"
    )
    return Source(seed, _HEAD, body, tail)


def trial(source: Source, steps: tuple[int, ...] = STEPS) -> Run:
    """What is another one with deferred calls."""
    with mock.patch.object(recorder, "SMALL", source.small):
        case = source.case()
        return run_deferred(case, steps)


def shrunk(source: Source, steps: tuple[int, ...]) -> Source:
    """The same without what does not matter for its failure."""
    number = 0
    while number < len(source.body):
        less = source.without(number)
        try:
            fails = bool(trial(less, steps).differences)
        except SyntaxError:
            fails = False
        if fails:
            source = less
        else:
            number += 1
    return source


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.semantics.random_deferred")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--writers", type=int, default=0, help="functions that write through another name, instead")
    parser.add_argument("--native", action="store_true", help="with segments as native code as soon as there is any")
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    options = parser.parse_args()
    steps = NATIVE_STEPS if options.native else STEPS
    calls: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    failed = done = 0
    begin = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(always_deferred())
        if options.native:
            stack.enter_context(native_at_once())
        for seed in range(options.seed, options.seed + (options.writers or options.count)):
            source = write_writer(seed) if options.writers else write(seed)
            found = trial(source, steps)
            done += 1
            calls += found.calls
            reasons += found.reasons
            if found.differences or found.failed:
                failed += 1
                small = shrunk(source, steps) if found.differences else source
                differences = trial(small, steps).differences or found.differences or found.failed
                text = small.text[len(small.head) :]
                print(f"-- seed {seed}: {len(found.differences)} of {len(steps)} calls differ\n{text}", flush=True)
                print("\n".join(f"   {each}" for each in differences[:3]), flush=True)
                if failed >= options.most:
                    break
    took = time.perf_counter() - begin
    print(f"{done} functions, {failed} differ; {sum(calls.values())} calls in {took:.0f} s")
    print(", ".join(f"{how} {count}" for how, count in calls.most_common()))
    for reason, count in reasons.most_common(8):
        print(f"{count:6} {reason[:150]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
