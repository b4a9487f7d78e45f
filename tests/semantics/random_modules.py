"""`python -m tests.semantics.random_modules --count 5000`: Python functions made by chance, beside NumPy.

Each is a module of its own: globals, an object with attributes, helpers, a closure, a function, and what changes
between calls. Numbers are multiples of 1/8 and stay small, so that no comparison depends on how something is rounded.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.semantics.cases import Case, World
from tests.semantics.moving import ENGINES, Placement, Run, moving, run

#: Calls of each function: every engine has its turn, with state that has changed meanwhile.
CALLS = 12

_HEAD = """\
import numpy as np

FACTOR = {factor}
COUNT = {count}
MODE = "a"
TABLE = (np.arange(6, dtype=np.float32) - 2) / 2
OPTIONS = {{"gain": {gain}, "shift": 1}}
ITEMS = [1.0, 2.0]
LOG = []


class Holder:
    scale = 0.5

    def __init__(self):
        self.weight = {weight}
        self.table = np.full(6, 0.25, np.float32)
        self.options = {{"deep": [1, 2]}}

    def apply(self, v):
        return v * self.weight + self.scale

    @property
    def double(self):
        return self.weight * 2


HOLDER = Holder()


def made(offset):
    total = offset

    def add(v):
        return v + total

    def set_total(value):
        nonlocal total
        total = value

    return add, set_total


ADD, SET_TOTAL = made(1.5)


def helper(v, by=2, *, limit=8):
    if by == 0:
        raise ZeroDivisionError("by nothing")
    return np.clip(v * by, -limit, limit)


def pick(v, *names, **options):
    return v + len(names) * options.get("step", 1)

"""

_CHANGES = """\

def change(n):
    global FACTOR, COUNT, MODE, TABLE, helper
{changes}


def arguments(n):
    rng = np.random.default_rng(n)
    x = (rng.integers(-31, 32, 6) / 8).astype(np.float32)
    y = (rng.integers(-31, 32, {second}) / 8).astype(np.{type})
    return (x, y, {a}, {k}, {mode})


def seen():
    return (FACTOR, COUNT, list(LOG), dict(OPTIONS), list(ITEMS), HOLDER.weight, HOLDER.table, TABLE)
"""


@dataclass
class Source:
    """The text of one function, in pieces that can be left out."""

    seed: int
    head: str
    body: list[str]
    result: str
    tail: str
    #: Whether a value may decide, so that it need not be recorded.
    hard: bool = False

    @property
    def text(self) -> str:
        lines = "\n".join("    " + line for piece in self.body for line in piece.split("\n"))
        return f"{self.head}\ndef function(x, y, a, k, mode):\n{lines}\n    {self.result}\n\n{self.tail}"

    def without(self, number: int) -> Source:
        return Source(self.seed, self.head, self.body[:number] + self.body[number + 1 :], self.result, self.tail)

    def case(self) -> Case:
        name = f"<random function {self.seed}>"
        text = self.text
        code = compile(text, name, "exec")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)

        def make() -> World:
            module: dict[str, Any] = {"__name__": "a_random_function"}
            exec(code, module)
            return World(module["function"], module["arguments"], module["change"], module["seen"])

        return Case(name, make, either=True)


@dataclass
class _Writer:
    """Writes one function."""

    rng: random.Random
    #: Arrays of six floats, and whether they are the function's own.
    arrays: list[str] = field(default_factory=lambda: ["x"])
    own: list[str] = field(default_factory=list)
    names: Iterator[str] = field(default_factory=lambda: (f"v{number}" for number in range(10_000)))
    hard: bool = False

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def one(self, *options: str) -> str:
        return self.rng.choice(options)

    # -- expressions

    def scalar(self) -> str:
        return self.one(
            "a", "k", "2", "0.5", "-1", "3", "FACTOR", "COUNT", 'OPTIONS["gain"]', "HOLDER.weight", "HOLDER.scale",
            "len(x)", "x.ndim", "HOLDER.double", "sum(ITEMS)", 'HOLDER.options["deep"][0]', "len(mode)", "a + k",
            "min(a, 1.0)", "max(k, 1)", "abs(a)", "(1 if k > 1 else 2)", "x.shape[0]", "int(a)", "k % 3",
            "y.sum()", "x[2]",
        )  # fmt: skip

    def atom(self) -> str:
        if self.chance(0.75):
            return self.rng.choice(self.arrays)
        return self.one("TABLE", "HOLDER.table", "np.ones(6, np.float32)", "np.arange(6)", "x[::-1]")

    def array(self, depth: int = 2) -> str:
        if depth == 0:
            return self.atom()
        one = self.array(depth - 1)
        match self.rng.randrange(16):
            case 0 | 1:
                return f"{one} {self.one('+', '-')} {self.array(depth - 1)}"
            case 2 | 3:
                return f"({one}) * {self.scalar()}"
            case 4:
                test = f"{self.atom()} {self.one('>', '<=', '==')} {self.one('0', '0.5', 'a')}"
                return f"np.where({test}, {one}, {self.array(0)})"
            case 5:
                return f"np.{self.one('maximum', 'minimum')}({one}, {self.one(self.scalar(), self.atom())})"
            case 6:
                return f"np.{self.one('abs', 'negative', 'square', 'floor', 'sign')}(np.clip({one}, -4, 4))"
            case 7:
                return f"np.roll({one}, {self.one('1', '-2', 'k')})"
            case 8:
                return f"{one} + ({self.atom()}).{self.one('sum', 'max', 'min')}()"
            case 9:
                return f"helper({one}{self.one('', ', 3', ', k + 1', ', limit=4', ', COUNT')})"
            case 10:
                return f"{self.one('ADD', 'HOLDER.apply')}({one})"
            case 11:
                return f"np.concatenate([({one})[:2], ({self.atom()} * 1)[2:]])"
            case 12:
                return f"(({one}) / {self.one('2', '4', '-2')})"
            case 13:
                return f"pick({one}, {self.one('mode', '*mode', '1, 2')}, step={self.scalar()})"
            case 14:
                return f"({one})[{self.one('::-1', '[5, 4, 3, 2, 1, 0]', 'np.arange(6) % 3', ':')}]"
            case _:
                return f"sum([{one}, {self.atom()}])"

    def condition(self) -> str:
        if self.chance(0.05):
            self.hard = True
            return f"{self.rng.choice(self.arrays)}.{self.one('max() > 2', 'sum() > 0', 'any()')}"
        return self.one(
            "k > 1", "a > 0", 'mode == "a"', "len(y) == 6", "y.dtype.kind == 'f'", "isinstance(x, np.ndarray)",
            "FACTOR > 1", 'OPTIONS.get("extra") is None', "MODE == 'a'", "hasattr(y, 'shape')", "isinstance(a, float)",
            "len(ITEMS) > 2", "HOLDER.weight == 1", "y.shape == x.shape", "not isinstance(k, int)", "x.size and k",
            "isinstance(mode, str)", "0 < k <= 2", "COUNT in (1, 2)", "x is y", "np.ndim(a) == 0", "callable(helper)",
        )  # fmt: skip

    # -- statements

    def block(self, depth: int, most: int = 2) -> str:
        kept = list(self.arrays), list(self.own)
        text = "\n".join(self.statement(depth) for _ in range(self.rng.randint(1, most)))
        self.arrays, self.own = kept
        return _indented(text)

    def new(self) -> str:
        return next(self.names)

    def assign(self) -> str:
        expression = self.array()
        name = self.new()
        self.own_now(name)
        return f"{name} = ({expression}) + 0"

    def own_now(self, name: str) -> None:
        """From here on the name stands for an array of the function's own."""
        self.arrays.append(name)
        self.own.append(name)

    def statement(self, depth: int = 2) -> str:
        choice = self.rng.randrange(22 if depth else 10)
        if choice <= 3 or (not self.own and choice < 10):
            return self.assign()
        if choice <= 9:
            return self.change_in_place()
        if choice <= 12:
            name = self.rng.choice(self.own) if self.own else "x"
            other = (
                f"\nelse:\n{self.block(depth - 1)}"
                if self.chance(0.6)
                else f"\nelif {self.condition()}:\n    {name} = {name} - 1"
            )
            return f"if {self.condition()}:\n{self.block(depth - 1)}{other}"
        if choice <= 14:
            counter = self.new()
            name = self.rng.choice(self.own) if self.own else "x"
            times = self.one("2", "3", "k", "len(ITEMS)", "COUNT")
            return f"for {counter} in range({times}):\n    {name} = {name} + {counter}\n{self.block(depth - 1, 1)}"
        if choice == 15:
            error = self.one(
                "ValueError", "KeyError", "ZeroDivisionError", "IndexError", "(TypeError, KeyError)", "Exception"
            )
            risky = self.one(
                'x = x * OPTIONS["extra"]', "x = x + np.ones(len(y), np.float32)", "x = x * (6 // (k - 1))",
                "x = x + ITEMS[2]", "x = helper(x, by=k - 1)", "x = x[:, None][:, k] * np.ones(6, np.float32)",
                "x = x + HOLDER.missing",
            )  # fmt: skip
            last = self.one("", "\nelse:\n    x = x + 1", "\nfinally:\n    x = x * 1")
            return f"try:\n    {risky}\nexcept {error}:\n    x = x - 0.5{last}"
        if choice == 16:
            name, times = self.new(), self.one("2", "k", "len(mode) + 1")
            text = f"{name} = sum([{self.array(1)} for _ in range({times})]) + x * 0"
            self.own_now(name)
            return text
        if choice == 17:
            inner, name = self.new(), self.new()
            text = f"def {inner}(v, by={self.scalar()}):\n    return v * by + {self.rng.choice(self.arrays)}\n"
            text += f"{name} = {inner}({self.array(1)})"
            self.own_now(name)
            return text
        if choice == 18:
            test = self.one("k > 2", "a < -1", "len(y) == 3", "FACTOR == 4")
            return f"if {test}:\n    raise ValueError(f'no {{k}} {{x.shape}}')"
        if choice == 19:
            if not self.chance(0.3):
                return self.assign()
            return self.one(
                "LOG.append(k)", "HOLDER.weight = HOLDER.weight + 1", 'OPTIONS["gain"] = 2', "ITEMS.append(1.0)",
                "x += 1", "y[0] = 1", "TABLE[0] = 1", "print('here', x.shape)", "HOLDER.table = x * 2",
                "LOG.append(x.shape)",
            )  # fmt: skip
        if choice == 20:
            name, counter = self.new(), self.new()
            times = self.one("2", "k", "3")
            loop = f"while {counter} < {times}:\n    {name} += {self.atom()}\n    {counter} += 1"
            self.own_now(name)
            return f"{name}, {counter} = x * 1, 0\n{loop}"
        name = self.new()
        self.own_now(name)
        table = self.one('{"a": x, "b": y.sum()}', "dict(a=x, b=TABLE)", '{"a": x * 2, "b": a}')
        return f'{name} = {table}\n{name} = {name}["a"] * 1 + {name}["b"]'

    def change_in_place(self) -> str:
        name = self.rng.choice(self.own)
        match self.rng.randrange(6):
            case 0:
                return f"{name} {self.one('+=', '-=')} {self.array(1)}"
            case 1:
                return f"{name} *= {self.one('2', '0.5', 'a', 'k')}"
            case 2:
                return f"{name}[{self.one('0', '-1', '1:3', '::2', 'k', ':k', '[1, 4]')}] = {self.scalar()}"
            case 3:
                return f"{name}[{self.one('1:4', '3:', '::2')}] {self.one('+=', '*=')} {self.scalar()}"
            case 4:
                return f"{name}[{name} > {self.one('0', '1', 'a')}] = {self.scalar()}"
            case _:
                return f"{name}[1:] = {self.atom()}[:-1]" if self.chance(0.5) else f"{name} = np.clip({name}, -8, 8)"

    def result(self) -> str:
        last = self.rng.choice(self.own) if self.own else "x * 1"
        other = self.array(1)
        return "return " + self.one(
            last, f"{last}, k", f"np.tanh({last})", f"[{last}, np.sum({last})]", f'{{"a": {last}, "b": {other}}}',
            f"({last}).sum()", f"({last}) @ ({last})", f"{last}, ({last})[1:3] * 1, mode",
            f"np.cumsum({last}), ({last}).max()",
            f"({last}).astype(np.int32), a", f"x * 2 if k else {last}", f"({last}, ({other}, None))",
        )  # fmt: skip


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


_STATE_CHANGES = (
    "FACTOR = (2.0, 3.0, 1, 4)[n % 4]",
    "COUNT = 1 + n % 3",
    'MODE = "ab"[n % 2]',
    "TABLE[n % 6] += 1",
    "TABLE = TABLE + 1",
    'OPTIONS["gain"] = (1.0, 2.0)[n % 2]',
    'if n % 3 == 2:\n        OPTIONS["extra"] = 2\n    else:\n        OPTIONS.pop("extra", None)',
    "ITEMS[:] = [1.0] * (1 + n % 3)",
    "HOLDER.weight = (1, 2.0, 3)[n % 3]",
    "HOLDER.table[n % 6] -= 1",
    "Holder.scale = (0.5, 1.0)[n % 2]",
    'HOLDER.options["deep"][0] = n % 2',
    "SET_TOTAL((1.5, 2.5)[n % 2])",
    "helper.__defaults__ = (2 + n % 2,)",
    "pass",
)


def write(seed: int) -> Source:
    rng = random.Random(seed)
    writer = _Writer(rng)
    if rng.random() < 0.7:
        first = "v = y.astype(np.float32) if len(y) == 6 else x - 1"
        writer.arrays.append("v")
        writer.own.append("v")
        body = [first]
    else:
        body = []
    body += [writer.statement() for _ in range(rng.randint(2, 5))]
    head = _HEAD.format(
        factor=rng.choice(("2.0", "3", "0.5")),
        count=rng.choice("12"),
        gain=rng.choice(("1.0", "2")),
        weight=rng.choice(("1.0", "2")),
    )
    tail = _CHANGES.format(
        changes="\n".join("    " + each for each in rng.sample(_STATE_CHANGES, 3)),
        second=rng.choice(("6", "6", "6", "(6, 6, 6, 3)[n % 4]")),
        type=rng.choice(("float32", "float32", "int32")),
        a=rng.choice(("1.5", "n / 2 - 2", "(0.5, -1.5)[n % 2]")),
        k=rng.choice(("2", "n % 4", "1 + n % 2")),
        mode=rng.choice(('"a"', '"ab"[n % 2]', '("a", "long")[n % 2]')),
    )
    return Source(seed, head, body, writer.result(), tail, writer.hard)


def shrunk(source: Source, placement: Placement) -> Source:
    """The same without what does not matter for its failure."""
    number = 0
    while number < len(source.body):
        less = source.without(number)
        try:
            fails = bool(trial(less, placement).differences)
        except SyntaxError:
            fails = False
        if fails:
            source = less
        else:
            number += 1
    return source


def trial(source: Source, placement: Placement) -> Run:
    return run(source.case(), placement, CALLS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.semantics.random_modules")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    options = parser.parse_args()
    engines = tuple(dict.fromkeys(["numpy", *options.engines.split(",")]))
    calls: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    recorded = failed = done = 0
    begin = time.perf_counter()
    with moving(engines) as placement:
        for seed in range(options.seed, options.seed + options.count):
            source = write(seed)
            found = trial(source, placement)
            done += 1
            calls += found.calls
            recorded += any(engine not in ("numpy", "raised") for engine in found.calls)
            if not any(engine not in ("numpy", "raised") for engine in found.calls):
                reasons.update(list(found.reasons)[:1])
            if found.differences or found.failed:
                failed += 1
                small = shrunk(source, placement) if found.differences else source
                differences = trial(small, placement).differences or found.differences or found.failed
                text = small.text[len(small.head) :]
                print(f"-- seed {seed}: {len(found.differences)} of {CALLS} calls differ\n{text}", flush=True)
                print("\n".join(f"   {each}" for each in differences[:3]), flush=True)
                if failed >= options.most:
                    break
    took = time.perf_counter() - begin
    print(f"{done} functions, {recorded} recorded, {failed} differ; {sum(calls.values())} calls in {took:.0f} s")
    print(", ".join(f"{engine} {count}" for engine, count in calls.most_common()))
    for reason, count in reasons.most_common(8):
        print(f"{count:6} {reason[:150]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
