"""`python -m tests.placement.fuzz_closed_code --count 3000 --seed 1`: random functions whose code is closed.

They write in place, to views and through `out=`, put arrays into lists and dicts, branch on values and call each other.
Each is called with the same array twice, with overlapping ones and with arrays that somebody else has, on NumPy and
deferred, and everything that can be seen afterwards is compared (see `hostile_functions`).
"""

from __future__ import annotations

import argparse
import gc
import linecache
import random
import sys
from collections import Counter

from tests.placement.fuzz_escaping import recorded
from tests.placement.hostile_functions import why_wrong

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
"""
_BLOCKS = r"""
if {a}.max() > {k}:\n    {one}\nelse:\n    {two}
if {a}.sum() > {b}.sum() and total > -5:\n    {one}
for number in range(3):\n    {one}\n    {two}
while total < {k}:\n    {one}\n    total = total + 1
for each in ({a}, {b}):\n    each += 1\n    {one}
for number, (u, v) in enumerate(zip([{a}, {b}], [{b}, {a}])):\n    u[{k}] = v[0]\n    {one}
with np.errstate(all="ignore"):\n    {one}\n    {two}
"""
_HELPERS = r"""
    return u * 2 + v
    u[0] = v[-1]\n    return u
    w = u - v\n    u += 1\n    return w
    if u.sum() > v.sum():\n        return u\n    return v
    v[:3] = 1.0\n    return u[::-1]
"""
_RETURNS = (
    "{a}|({a}, {b})|[{a}, {b}, held]|{{'k': {a}, 'l': [{b}]}}|{a}.sum()|(held, named)|({a}, total)|{a}[::2], {b}[1:]"
)


def _lines(text: str) -> list[str]:
    return [each.replace("\\n", "\n") for each in text.strip("\n").splitlines()]


NEW, OLD, BLOCKS, HELPERS = _lines(_NEW), _lines(_OLD), _lines(_BLOCKS), _lines(_HELPERS)


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

    lines = ["held, named, total = [x], {'k': y}, 0.0"]
    for number in range(chosen.randint(2, most)):
        lines += statement(number).splitlines()
    returned = chosen.choice(_RETURNS.split("|")).format(a=chosen.choice(arrays), b=chosen.choice(arrays))
    body = "\n    ".join([*lines, f"return {returned}"])
    return f"def helper(u, v):\n{chosen.choice(HELPERS)}\ndef function(x, y):\n    {body}\n"


def main() -> int:
    """Print what is wrong, and how many functions were deferred."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chosen = random.Random(given.seed)
    counts: Counter[str] = Counter()
    gc.freeze()  # what is there already is not looked through for arrays that are left
    with recorded():
        for number in range(given.count):
            text = source(chosen)
            why = why_wrong(text, chosen=lambda number: chosen.random() < 0.4)
            counts["refused" if why == "" else "right" if why is None else "wrong"] += 1
            if why:
                sys.stdout.write(f"-- {number}: {why[:600]}\n{text}\n")
            linecache.clearcache()
    sys.stdout.write(f"{given.count} functions of seed {given.seed}: {dict(counts)}\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
