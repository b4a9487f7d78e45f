"""`python -m tests.native.random_hostile_functions --count 3000 --seed 1`: random functions that write and keep.

They write in place, to views and through `out=`, put arrays and views of them into lists and dicts, branch on values,
raise, call each other and themselves, with defaults and keywords, and use names that mean something else from call to
call. Each is called with the same array twice, with overlapping ones and with arrays from outside, plain and decorated,
and everything that can be seen afterwards is compared (see `hostile_functions`).
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
from collections import Counter

from tests.native.hostile_functions import natively, what_came

#: {a} and {b} are arrays, {n} is a new name, {k} a small number.
_NEW = """
{n} = {a} * 2 + {b}
{n} = np.where({a} > {b}, {a}, {b})
{n} = np.sqrt(np.abs({a})) - {b} / 3
{n} = {a}[::-1]
{n} = {a}[:]
{n} = {a}.reshape(-1)
{n} = {a}.reshape(2, -1).T.ravel()
{n} = np.asarray({a})
{n} = np.ascontiguousarray({a})
{n} = np.atleast_1d({a})
{n} = {a}.T
{n} = {a}.copy()
{n} = {a}.astype(np.float64)
{n} = {a}.astype(np.float32) * 1.5
{n} = np.roll({a}, {k})
{n} = np.cumsum({a})
{n} = {a} if {a}.sum() > {b}.sum() else {b}
{n} = {a} * {b}.mean()
{n} = np.concatenate([{a}, {b}])[:SIZE]
{n} = np.concatenate([{b}[:{k}], {a}[{k}:]])
{n} = np.stack([{a}, {b}]).max(axis=0)
{n} = np.clip({a}, -1, {b}.max())
{n} = held[0] + {a}
{n} = held[-1]
{n} = held.pop() if len(held) > 1 else {b}
{n} = named["k"]
{n} = named.get("other", {a})
{n} = [each * 2 for each in ({a}, {b})][1]
{n} = sum(each for each in ({a}, {b}))
{n} = max([{a}.sum(), {b}.sum()]) + {a}
{n} = np.sort({a})
{n} = {a} - {b}.min() * float({a}[{k}])
{n} = helper({a}, {b})
{n} = helper({a}, {a})
{n} = (({a} > 0) & ({b} < 1)) * {a}
{n} = np.linalg.norm({a}) * {b}
{n} = np.add.reduce([{a}, {b}])
{n} = np.broadcast_to({a}, (2, SIZE))[1]
{n} = {a} ** 2 - abs({b})
{n} = kept = {a}[{k}:]; {n} = np.concatenate([kept, {b}[:{k}]])
{n}, rest = {a}, {b}[:{k}]
{n} = [{a}[i:] for i in range(3)][0]
{n} = {{"one": {a}, "two": {a}[:]}}["two"]
{n} = [each[::-1] for each in held][0]
{n} = {{i: each for i, each in enumerate(held)}}[0]
{n} = sorted([{a}.sum(), {b}.sum(), FACTOR])[1] * {a}
{n} = max(each.sum() for each in ({a}, {b})) - {b}
{n} = scaled({a})
{n} = scaled({a}, factor=FACTOR)
{n} = scaled({a}, offset={b})
{n} = nested({k}, {a})
{n} = list_of({a}, {b})[-1]
{n} = closed({a}, {b})
{n} = CHOSEN({a}, {b})
{n} = {a} * FACTOR if FACTOR is not None else {b}
{n} = np.diagonal(np.stack([{a}, {b}])).sum() + {a}
{n} = np.squeeze({a}[None, :])
{n} = np.split({a}, 2)[0].repeat(2)
{n} = np.swapaxes({a}.reshape(2, -1), 0, 1).T.reshape(-1)
{n} = {a}[np.argsort({b})]
{n} = np.take({a}, np.argmax({b})) + {b}
{n} = {a}.astype(np.float64, copy=False)
{n} = np.where({a} > 0)[0].sum() + {b}
{n} = np.multiply.accumulate(np.clip({a}, -1, 1))
{n} = np.maximum.reduce([{a}, {b}, held[0]])
{n} = np.outer({a}, {b})[{k}]
{n} = np.array({a})
{n} = np.array([{a}, {b}])[1]
{n} = np.real({a})
{n} = ({a} + 1j * {b}).imag
{n} = ({a} * 10).astype(np.int64) % 3 + {b}
{n} = np.array({a}.tolist())
{n} = {a}.ravel()
{n} = np.expand_dims({a}, 0)[0]
{n} = np.meshgrid({a}, {b}[:2])[0][1]
{n} = {a} if isinstance({a}, np.ndarray) and {a}.ndim == 1 else {b}
{n} = np.zeros_like({a}) + {a}.item({k})
{n} = np.empty(SIZE); {n}[:] = {a}
{n} = np.ones(SIZE); {n} *= {b}
{n} = {a}[{a} > 0.5].sum() + {b}
{n} = np.full_like({a}, FACTOR)
{n} = np.asanyarray({a})
{n} = {a} if FACTOR in (1.25, -1.0, None) else {b}
{n} = {a} * 2 if {a}.dtype.kind in ["f", "c"] else {b}
{n} = {a} if float({a}[{k}]) not in (0.5, 9.0) else {b}[::-1]
{n} = {b} if {a}[{k}] in (0.5, 2.5, 9.0) else {a}[:]
{n} = ({a}).astype(int) // 2
{n} = (np.abs({a}).astype(np.int32) << 1) % 3
{n} = np.round({a}, 1)
{n} = np.nan_to_num(np.sqrt({a}))
{n} = np.stack([{a}, {b}]).mean(axis=0)
{n} = np.dot({a}, {b}) * {b}
{n} = np.vstack(({a}, {b}))[1]
{n} = np.real({a} * 1j)
{n} = (({a}) * 1j).imag
{n} = np.argsort({a})
{n} = np.nanmax({a}) + {b}
{n} = np.isclose({a}, {b}) * 1.5
{n} = np.full_like({a}, {k})
{n} = np.median({a}) - {b}
{n} = np.diff({a}, prepend=0)
{n} = np.tile(({a})[:3], 2)
{n} = np.where(({a} > 0) & ~({b} > 1), {a}, {b})
{n} = np.angle({a} + 0j)
{n} = np.cumprod({a} / 8)
{n} = np.nanmean(np.where({a} > {k}, np.nan, {b})) * {b}
{n} = ({a}) @ {b} + {a}
{n} = np.clip({a}, {k}, None)
{n} = np.hypot({a}, {b})
{n} = np.true_divide({a}, 2, dtype=np.float32)
{n} = ({a}).round(1)
{n} = np.vdot({a}, {b}) * np.ones_like({a})
{n} = np.pad(({a})[1:], (1, 0))
{n} = np.asfortranarray({a})
{n} = divmod({a}, 2)[1]
{n} = np.interp({a}, np.sort({b}), {b})
{n} = np.einsum('i,i->i', {a}, {b})
{n} = np.interp({a}, {b}, {a})
{n} = np.searchsorted({a}, {b}) * 0.5
{n} = np.average({a}) * {b}
{n} = np.nanmedian({a}) - {b}
{n} = np.searchsorted(np.sort({a}), {b}, side='right') + {a}
{n} = np.percentile({a}, [25, 75.5]).sum() + {b}
{n} = np.average({a}, weights=np.abs({b}) + 1) * {b}
{n} = np.percentile({a}, {k}) + {b}
{n} = np.nanpercentile(np.where({a} > {k}, np.nan, {b}), 40) + {a}
{n} = np.median(np.where({a} > {k}, np.nan, {b})) + {a}
"""
_OLD = """
{a} += {b}
{a} -= 1
{a} *= {b}.mean()
{a}[{k}] = {b}[{k}]
{a}[:] = {b}
{a}[...] = {b} * 2
{a}[::2] *= 2
{a}[1:] = {a}[:-1]
{a}[:-1] += {b}[1:]
{a}[{a} > 1] = 0.5
{a}[{b} > {a}] += 1
{a}.sort()
{a}.fill({k})
{a}.put([0, {k}], 3.0)
np.add({a}, 1, out={b})
np.multiply({a}, {b}, {a})
np.clip({a}, -1, 1, out={a})
np.cumsum({a}, out={b})
np.add.at({a}, [0, {k}], 1.0)
held.append({a})
held[0][{k}] = 4.0
held[-1] = {a}
held.extend([{a}, {b}])
named["k"] = {a}
named["k"][:{k}] = {b}[:{k}]
named.update(other={b})
total = total + {a}.sum()
total += float({a}[{k}]) * {b}.size
{a}[[0, {k}]] += {b}[{k}]
{a}[1:-1] = ({a}[:-2] + {a}[2:]) / 2
{a}[::-1][:{k}] = {b}[0]
{a}.reshape(2, -1)[1] -= {b}.mean()
{a}.T[{k}] = 7.0
np.negative({a}[:{k}], out={a}[{k} : 2 * {k}])
np.subtract({a}[1:], {b}[:-1], out={a}[:-1])
np.where({a} > 0, {a}, {b}).sort()
{a}[{a} > {b}] = {b}[{a} > {b}]
{a}[{a} > 0.2] *= 0.5
held.append({a}[{k}:])
held.insert(0, {b}[::2])
held[-1][0] = 2.5
held[0] += 1
held += [{a}]
held = held + [{b}]
held.clear(); held.append({a})
named.setdefault("other", {a}[1:])
named["list"] = [{a}, {a}[:{k}]]; named["list"][1][0] = 9.0
named["k"] += {b}
named = {{**{{}}, "k": {a}}} if FACTOR == -1.0 else named
del_me = named.pop("k"); named["k"] = del_me
if {a}.max() > 40: raise ValueError(f"too large: {{total}}")
assert {a}.size > 0, "it is empty"
if FACTOR > 1.5: {a}[0] = FACTOR
scaled({a}, factor=2.0)[:] = 1.0
changed({a})
changed(held[0], {b})
list_of({a}, {b})[0][{k}] = 0.25
{a} += {k}
{a} -= 0.5
{a} *= {k}
{a}[0] = {k}
{a}[:] = {k}
{a}[1:3] = 0.5
{a}[...] = {b}
{a}[::2] += 1
{a}[{a} > 0] = {k}
{a}[[0, 1]] = 0.25
np.add({a}, {k}, out={a})
np.multiply({b}, 0.5, out={a})
np.copyto({a}, {k})
np.copyto({a}, {b})
{a}.fill(0.5)
{a}.put([0, 1], 0.5)
np.put({a}, [1], {k})
np.place({a}, {a} > 1, 0.25)
np.putmask({a}, {a} < 0, 0.5)
np.asarray({a})[0] = 0.75
{a}.flat[0] = 0.5
{a}.flat = 0.25
memoryview({a})[0] = 1.5
{a}.data[0] = 1.25
np.add.at({a}, [0, 0, 1], 1)
np.frombuffer({a}, {a}.dtype)[:1] = 0.5
np.ndarray(1, {a}.dtype, buffer={a})[0] = 2.5
np.lib.stride_tricks.as_strided({a}, (1,))[0] = 0.5
{a}.real = {k}
{a}.partition(1)
{a}.clip(-1, 1, out={a})
np.cumsum({a}, out={a})
np.random.default_rng(k).shuffle({a})
struct.pack_into('d', {a}, 0, 1.75)
ctypes.memset({a}.ctypes.data, 0, {a}.size and {a}.itemsize)
ctypes.memmove({a}.ctypes.data, {a}.dtype.type(0.5).tobytes(), {a}.size and {a}.itemsize)
{a}.itemsize, {a}.byteswap(inplace=True).byteswap(inplace=True)
ctypes.c_double.from_buffer({a}).value = 2.25
np.nan_to_num({a}, copy=False)
{a}.__setitem__(0, 0.5)
{a}.__iadd__(1)
np.negative({a}, {a})
{a}.setfield(0.5, {a}.dtype)
np.take({b}, [0, 1, 2, 3, 4, 5], out={a}, mode='clip')
np.asarray({a}).reshape(-1)[:1] = 0.5
np.from_dlpack({a})[0] = 0.5
{a} //= 2
{a} **= 2
{a} = {a} * 0 + {k}
np.exp2({b} * 0, out={a}, where={a} > 0)
np.einsum('i->i', {a})[0] = 0.5
np.array({a}, copy=False)[0] = 0.5
np.array([{a}], dtype=object)[0, 0:1] = 1
[{a}][0][0] = 0.5
np.median({a}, overwrite_input=True)
np.percentile({a}, 50, None, None, True)
object.__getattribute__({a}, '__array__')()[0] = 0.5
np.asarray({a}).setflags(write=True)
"""
_BLOCKS = r"""
if {a}.max() > {k}:\n    {one}\nelse:\n    {two}
if {a}.sum() > {b}.sum() and total > -5:\n    {one}
for number in range(3):\n    {one}\n    {two}
while total < {k} and rounds < 9:\n    {one}\n    total, rounds = total + 1, rounds + 1
for each in ({a}, {b}):\n    each += 1\n    {one}
for number, (u, v) in enumerate(zip([{a}, {b}], [{b}, {a}])):\n    u[{k}] = v[0]\n    {one}
with np.errstate(all="ignore"):\n    {one}\n    {two}
with np.errstate(divide="ignore", invalid="ignore"):\n    w = {a} / {b}\n    {one}
for each in held[:2]:\n    each[0] = {b}[{k}]\n    {one}
for each in [{a}[:{k}], {b}[{k}:]]:\n    each *= 0.5\n    {one}
for each in reversed([{a}, {b}]):\n    if each.sum() > 1:\n        break\n    {one}\nelse:\n    {two}
while {a}.max() > 3 and rounds < 9:\n    {a} *= 0.5\n    rounds = rounds + 3\n    {one}
while True:\n    {one}\n    rounds = rounds + 1\n    if rounds > 2 or {a}.sum() < {k}:\n        break
if not {a}.any():\n    return {b}[::2]\n{one}
"""
_HELPERS = r"""
    return u * 2 + v
    u[0] = v[-1]\n    return u
    w = u - v\n    u += 1\n    return w
    if u.sum() > v.sum():\n        return u\n    return v
    v[:3] = 1.0\n    return u[::-1]
"""
#: What every function can call beside `helper`.
_OTHERS = """
import copy, ctypes, struct
FACTOR = 1.25
def scaled(u, factor=2.0, offset=0.0):
    return u * factor + offset
def nested(depth, u):
    if depth <= 0:
        return u
    u[depth] = u[0] + depth
    return nested(depth - 1, u[:] if depth == 2 else u)
def list_of(u, v):
    found = [u]
    for each in (v, u[::-1]):
        found.append(each)
    return found[:2]
def changed(u, by=None):
    if by is None:
        u += 1
        return None
    u[:2] = by[:2]
def _made(times):
    def closed(u, v):
        return u * times - v
    return closed
closed = _made(3.0)
def first(u, v):
    return u[::2].repeat(2) if u.size == v.size else v
def second(u, v):
    v[0] = u[-1]
    return v
CHOSEN = first
def between(number):
    global FACTOR, CHOSEN
    FACTOR = (1.25, 2.0, -1.0)[number % 3]
    CHOSEN = second if number % 2 else first
"""
_RETURNS = (
    "{a}|({a}, {b})|[{a}, {b}, held]|{{'k': {a}, 'l': [{b}]}}|{a}.sum()|(held, named)|({a}, total)|{a}[::2], {b}[1:]"
    "|x|y[::-1]|x[1:], x[:-1]|x.reshape(2, -1).T|(x, (y, [x, y]))|np.diagonal(x.reshape(2, -1))|np.split({a}, 2)"
    "|[each[1:] for each in held]|float({a}.max())|({a} > {b}, {a}.shape)|None|{a}.max() > {b}.min()"
)


def _lines(text: str) -> list[str]:
    return [each.replace("\\n", "\n") for each in text.strip("\n").splitlines()]


NEW, OLD, BLOCKS, HELPERS = _lines(_NEW), _lines(_OLD), _lines(_BLOCKS), _lines(_HELPERS)
#: What a program cannot have, and what it may round in another way than NumPy; elements are compared by their bits.
_NOT_QUIET = (
    " if ", "sorted", "max(", "held", "named", "tolist", "float(", "nested", "CHOSEN", "list_of", "hypot", "angle",
    "dot",
    "@", "einsum", "norm", "mean", "cumprod", "average", "median", "percentile", "1j", "interp", "sum", "multiply.acc",
)  # fmt: skip
#: What may become a program.
_QUIET = [each for each in NEW if not any(word in each for word in _NOT_QUIET)]
_OWN = [each for each in OLD if each.startswith("{a}") and "if " not in each]
_QUIET_RETURNS = (
    "{a} * 1, {b}", "({b}, {b})", "{{'k': {a} + 0, 'l': [{b}]}}", "{b}.sum(), {a}", "({b} * 2, total)",
    "{b}[::2], {b}[1:]",
    "({b}, x)", "x[1:], {b} + 1", "({b} > {a}, {b}.shape)", "[{b}[1:], {b}]", "np.split({b} * 1, 2)",
)  # fmt: skip


def source(chosen: random.Random, most: int = 7) -> str:
    """The text of a function `function(x, y)` that does some of these."""
    arrays = ["x", "y"]

    def statement(number: int, *, is_inner: bool = False) -> str:
        names = {"a": chosen.choice(arrays), "b": chosen.choice(arrays), "k": chosen.randint(1, 5), "n": f"v{number}"}
        if is_inner or chosen.random() < 0.5:
            return chosen.choice(OLD).format(**names)
        if chosen.random() < 0.3:
            one, two = statement(number, is_inner=True), statement(number, is_inner=True)
            return chosen.choice(BLOCKS).format(**names, one=one, two=two)
        text = chosen.choice(NEW).format(**names)
        arrays.append(f"v{number}")
        return text

    # `total` may be NaN or below every number, because statements add arrays to it: only `rounds` ends each loop.
    lines = ["held, named, total, rounds = [x], {'k': y}, 0.0, 0"]
    for number in range(chosen.randint(2, most)):
        lines += statement(number).splitlines()
    returned = chosen.choice(_RETURNS.split("|")).format(a=chosen.choice(arrays), b=chosen.choice(arrays))
    body = "\n    ".join([*lines, f"return {returned}"])
    return f"{_OTHERS}\ndef helper(u, v):\n{chosen.choice(HELPERS)}\ndef function(x, y):\n    {body}\n"


def quiet(chosen: random.Random) -> str:
    """The text of a function that writes to nothing but arrays of its own, so that it may be native code."""
    names = ["x", "y"]
    lines = ["held, named, total, rounds = [x], {'k': y}, 0.0, 0"]
    for number in range(chosen.randint(2, 6)):
        a, b, k = chosen.choice(names), chosen.choice(names), chosen.randint(1, 5)
        text = chosen.choice(_QUIET).format(a=a, b=b, k=k, n=f"v{number}")
        lines.append(text)
        names.append(f"v{number}")
        if chosen.random() < 0.5:
            lines.append(f"v{number} = v{number} * 1")
            lines.append(chosen.choice(_OWN).format(a=f"v{number}", b=b, k=k))
    returned = chosen.choice(_QUIET_RETURNS).format(a=chosen.choice(names), b=names[-1])
    body = "\n    ".join([*lines, f"return {returned}"])
    return f"{_OTHERS}\ndef helper(u, v):\n    return u * 2 + v\ndef function(x, y):\n    {body}\n"


def main() -> int:
    """Print what is wrong, and how many functions are native code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with natively():
        for number in range(given.count):
            chosen = random.Random(given.seed * 1_000_003 + number)
            text = source(chosen) if number % 2 else quiet(chosen)
            came = what_came(text, chosen=lambda call: call < 5 or chosen.random() < 0.4)  # noqa: B023 - called at once
            counts["wrong" if came.wrong else "native" if came.natively else "on NumPy"] += 1
            if came.wrong:
                sys.stdout.write(f"-- {number}: {came.wrong[:600]}\n{text.removeprefix(_OTHERS)}\n")
            linecache.clearcache()
    sys.stdout.write(f"{given.count} functions of seed {given.seed}: {dict(counts)}\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
