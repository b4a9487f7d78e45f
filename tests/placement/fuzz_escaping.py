"""`python -m tests.placement.fuzz_escaping --count 3000 --seed 1`: random functions that keep arrays or write outside.

Each is made of ways to do so, and of ways that look alike and do not. Where a proof accepts one, it is called on NumPy
and deferred: no array that stood for NumPy's may be left anywhere, no memory from outside may be written to, and what
it returns or raises is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import linecache
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from anygpu.array.deferred.standing_in import StandIn
from anygpu.placement.deferred import _Run
from anygpu.placement.escaping.proof import Proof, kinds_of
from anygpu.placement.options import Options
from anygpu.placement.segments import Segments

_HEAD = """
import contextlib, functools, itertools, operator, typing, warnings
import numpy as np

O1, O2 = np.arange(6.0), np.linspace(0.5, 3, 6)
LIST, ARRAYS, NAMED, TEXTS = [], [np.ones(6), np.zeros(6)], {}, {"a": O1, "n": 3}
NUMBER = 2.5


class Holder:
    shared = []
    table = np.full(6, 0.25)

    def __init__(self, x=None):
        self.x = x

    def keep(self, x):
        self.kept = x

    def total(self):
        return self.x.sum()

    @property
    def twice(self):
        return self.x * 2

    @property
    def leaking(self):
        LIST.append(self.x)
        return self.x


class Truthful(Holder):
    def __bool__(self):
        LIST.append(self.x)
        return True


class Ordered(Holder):
    def __lt__(self, other):
        LIST.append(self.x)
        return True

    def __eq__(self, other):
        LIST.append(other)
        return True

    def __hash__(self):
        LIST.append(self.x)
        return 3


class Manager(Holder):
    def __enter__(self):
        return self.x

    def __exit__(self, *error):
        self.x = error


class Adding:
    def __add__(self, other):
        LIST.append(other)
        return other

    __radd__ = __mul__ = __add__

    def __contains__(self, other):
        LIST.append(other)
        return True


class Number(float):
    def __mul__(self, other):
        LIST.append(other)
        return 2 * other


class Odd(ValueError):
    def keep(self):
        LIST.append(self.args)


class Even(ValueError):
    pass


class Pair(typing.NamedTuple):
    one: object
    other: object


class Leaking(typing.NamedTuple):
    one: object

    def keep(self):
        LIST.append(self.one)
        return 1.0


HOLDER, ADDING, OWN_NUMBER = Holder(O2), Adding(), Number(2)
APPEND, PARTIAL = LIST.append, functools.partial(np.add, out=O1)


@contextlib.contextmanager
def managed(x):
    try:
        yield x * 2
    finally:
        pass


@contextlib.contextmanager
def keeping(x):
    LIST.append(x)
    yield x


def through(function):
    @functools.wraps(function)
    def inner(*given, **named):
        return function(*given, **named)

    return inner


def remembering(function):
    def inner(*given):
        LIST.append(given)
        return function(*given)

    return inner


@functools.lru_cache
def cached(value):
    return value


def plain(x, by=2.0, *rest, named=None, **more):
    return x * by if named is None else x + named


def default(x, kept=[]):
    kept.append(x)
    return x + 1


def default_named(x, *, into=O1):
    into[:2] += 1
    return x + 1


def same(v):
    return v


@contextlib.contextmanager
def bound(v):
    yield v


def twice(x):
    return (x, x * 2)


def keeps_second(a, b=None):
    if b is not None:
        LIST.append(b)
    return a.sum()


def zeroes(row):
    row[:] = 0
    return 0.0


def values(x):
    for each in (x, x * 2):
        yield each


vary = lambda x, k=3: x * k
"""

#: Ways: {a}, {b} are arrays of the call, {o} one from outside, {n} a new variable that is an array of the call then.
_WAYS = """
{n} = {a} * 2 + {b}
{n} = np.where({a} > 0, {b}, 1.0)
{n} = {a}.copy(); {n}[1:] += 3
{n} = {a}[::-1] + {o}
{n} = np.asarray({a}); {n} *= 2
{n} = plain({a}, 3.0)
{n} = plain({a}, named={b})
{n} = plain(*[{a}, 2.0])
{n} = plain(**{{"x": {a}, "by": 4.0}})
{n} = vary({a})
{n} = Holder({a} * 2).twice
{n} = Holder({a} * 2).leaking
{n} = Pair({a}, {b}).other + 1
{n} = {a} + Leaking({a} * 2).keep()
{n} = Pair({a}, LIST).one; Pair({a}, LIST).other.append({a} + 1)
{n}, extra = twice({a})
{n}, *others = [{a} * 2, {b}, {a}]
first, (second, {n}) = {a}, ({b}, {a} - 1)
{n} = [each * 2 for each in ({a}, {b})][1]
{n} = sum(each for each in ({a}, {b}))
{n} = sum(values({a}))
{n} = max(({a}, {b}), key=lambda each: each.sum())
{n} = max(({a}, {b}), key=remembering(np.sum))
{n} = functools.reduce(operator.add, [{a}, {b}])
{n} = list(map(lambda each: each + 1, [{a}]))[0]
{n} = list(map(remembering(vary), [{a}]))[0]
{n} = through(plain)({a})
{n} = remembering(plain)({a} * 2)
{n} = {a} if ({n} := {a} * 3) is None else {n}
{n} = {{"k": {a} * 2}}["k"]
{n} = dict(k={a}).get("k", {o}) * 1.0
{n} = dict(k={a}).get("m", {o}); {n} = {n} + 0
{n} = dict(k={a}).get("m", {o}); {n} += 1
{n} = {a} + TEXTS["n"]
{n} = TEXTS["a"]; {n}[0] = 7.0
{n} = TEXTS.get("a", {a}); {n} += 1
{n} = np.add({a}, 1, out={a}.copy())
{n} = np.add({a}, 1, out={o})
{n} = np.add({a}, {b}, {o})
{n} = np.add(*[{a}, {b}, {o}])
{n} = np.add({a}, {b}, **{{"out": {o}}})
{n} = {a}.cumsum(0, None, {o})
{n} = {a}.cumsum(*[0, None, {o}])
{n} = np.diagonal(np.outer({a}, {b})).cumsum(0, None, {o})
{n} = np.sum({a}.reshape(1, -1), 0, None, {o})
{n} = np.clip({a}, 0, 1, {o})
{n} = np.take({a}, [0, 1, 2, 3, 4, 5], 0, {o})
{n} = np.concatenate([{a}[:3], {b}[3:]], 0, {o})
{n} = np.nan_to_num({o}, False) + {a}
{n} = np.nan_to_num({o}, copy=False) + {a}
{n} = {a} + np.median({o}, None, None, True)
{n} = {a} + np.median({o}, overwrite_input=True)
{n} = {a} + np.percentile({o}, 30, None, None, True)
{n} = {a}; np.copyto({o}, 3.0)
{n} = {a}; np.copyto(dst={o}, src=3.0)
{n} = {a}; np.put({o}, [0], 9.0)
{n} = {a}; np.ndarray.sort({o})
{n} = {a}; np.ndarray.fill({o}, 3.0)
{n} = {a}; list.__setitem__(ARRAYS, 0, {a} * 2)
{n} = {a}; list.append(LIST, {a} * 2)
{n} = {a}; operator.setitem(ARRAYS, 0, {a} * 2)
{n} = {a}; operator.iadd({o}, 1)
{n} = {a} + np.apply_along_axis(zeroes, 0, {o})
{n} = {a} + np.apply_along_axis(keeps_second, 0, {a}, {b})
{n} = {a} + np.apply_along_axis(lambda row: row.sum(), 0, {b})
{n} = PARTIAL({a}, 1)
{n} = functools.partial(plain, {a})()
{n} = {a}; APPEND({a} * 2)
{n} = {a}; LIST.append({a} * 2)
{n} = {a}; LIST.extend([{a}])
{n} = {a}; LIST[:] = [{a} * 2]
{n} = {a}; LIST += [{a}]
{n} = {a}; kept = LIST; kept += [{a} * 2]
{n} = {a}; NAMED["x"] = {a} * 2
{n} = {a}; NAMED.setdefault("x", {a} * 2)
{n} = {a}; NAMED.update(x={a})
{n} = {a}; NAMED |= {{"x": {a} * 2}}
{n} = {a}; HOLDER.kept = {a} * 2
{n} = {a}; HOLDER.keep({a} * 2)
{n} = {a}; setattr(HOLDER, "kept", {a} * 2)
{n} = {a}; Holder.table = {a} * 2
{n} = {a}; Holder.shared.append({a} * 2)
{n} = {a}; Holder({a}).shared.append({a} * 2)
{n} = {a}; Holder({a}).__class__.table = {a} * 2
{n} = {a}; plain.kept = {a} * 2
{n} = {a}; plain.__globals__["NAMED"] = {a} * 2
{n} = {a}; default.__defaults__[0].append({a})
{n} = {a}; vars(HOLDER)["kept"] = {a} * 2
{n} = {a}; globals()["NUMBER"] = {a}.sum()
{n} = {a}; globals().update(k={a})
{n} = {a}; exec("LIST.append(1)")
{n} = default({a} * 2)
{n} = default({a} * 2, [])
{n} = default_named({a})
{n} = default_named({a}, into={b}.copy())
{n} = {a} + cached(3)
{n} = {a} + cached({a}.sum())
{n} = {a} if Truthful({a} * 2) else {b}
{n} = {a} if not Truthful({a} * 2) else {b}
{n} = [each for each in [{a}] if Truthful(each * 2)][0]
{n} = sorted([Ordered({a} * 2), Ordered({b} * 2)])[0].x
{n} = {{Ordered({a} * 2): {b}}}.popitem()[1]
{n} = {{1: {b}}}.get(Ordered({a} * 2), {a})
{n} = {a} if Ordered({a} * 2) in [1, 2] else {b}
{n} = {a} if {a} in [ADDING] else {b}
{n} = {a} if {a}.sum() in ADDING else {b}
{n} = ADDING + {a} * 2
{n} = {a} * 2 + ADDING
{n} = OWN_NUMBER * ({a} * 2)
{n} = {a}; {o}[:2] = 3.0
{n} = {a}; {o} += 1
{n} = {a}; view = {o}[1:]; view[0] = 5.0
{n} = {a}; view = np.asarray({o}).reshape(2, 3); view += 1
{n} = {a}; ([{o}] + [])[0][:] = 4.0
{n} = {a}; ({o},)[0][:] = 4.0
{n} = {a}; (({o},) + TUPLE)[0][:] = 4.0
{n} = {a}; held = [] + []; held.append({o}); held[0][:] = 8.0
{n} = {a}; held = [{o}]; held[0] += 1
{n} = {a}; held = [{a}.copy()]; held[0] += 1; {n} = held.pop()
{n} = {a}; held = {{}}; held["k"] = {o}; held["k"][:] = 2.0
{n} = {a}; ARRAYS[0] += 1
{n} = {a}; ARRAYS[1][:] = {a}
{n} = ARRAYS[0] + {a}
{n} = {a}; [each.fill(2.0) for each in ARRAYS]
{n} = {a}; [each.fill(2.0) for each in ({a}.copy(), {b} * 1)]
{n} = {a}; [row.__setitem__(0, 3.0) for row in [{o}]]
{n} = {a}; method = {o}.fill; method(3.0)
{n} = {a}; method = LIST.append; method({a} * 2)
{n} = {a}; methods = [{a}.copy().sort, {o}.sort]; methods[1]()
{n} = {a}; getattr({o}, "sort")()
{n} = {a}; getattr(LIST, "append")({a} * 2)
{n} = {a}; np.random.shuffle({o})
{n} = {a}; {a}[1:].base[0] = 3.0
{n} = {a}; {o}.T[0] = 9.0
{n} = {a}; {o}.flat[0] = 9.0
{n} = {a}; {o}.real[0] = 9.0
{n} = {a}; {o}.shape = (6,)
{n} = {a}; {a} += 1
{n} = {a}; {a}[0] = {b}[1]
{n} = {a}; x[:] = {b}
{n} = {a}; warnings.warn(UserWarning({a} * 2))
{n} = {a}; warnings.warn("x", source={a} * 2)
{n} = {a} if isinstance({a}, np.ndarray) else HOLDER.keep({a})
{n} = {a} if type({a}) is np.ndarray else {b}
{n} = {a}; del {n}; {n} = {b} * 2
{n} = {a} + len([*values({b})])
{n} = next(values({a} * 2))
{n} = next(iter([{a}, {b}]))
{n} = next(each for each in ARRAYS) + {a}
{n} = next(each for each in ARRAYS); {n} += 1
{n} = list(zip(*[({a}, {o})]))[1][0]; {n}[:] = 3.0
{n} = [*zip([{a}], ARRAYS)][0][1]; {n} += 1
{n} = {a} + [*enumerate(ARRAYS)][0][0]
{n} = [*itertools.chain([{o}], [{a}])][0]; {n} *= 2
{n} = [*itertools.chain([{a}], [{b}])][0] * 2
{n} = {a} if {a} is not {o} else {b}
{n} = np.einsum("i,i->i", {a}, {b})
{n} = np.linalg.norm({a}) + {b}
{n} = np.array([{a}, {b}], dtype="O")[0]
{n} = Holder([{a} * 2]).x[0]
{n} = np.frompyfunc(lambda each: LIST.append(each) or each, 1, 1)({a}).astype(float)
"""

#: Blocks around statements.
_BLOCKS = r"""
if {a}.sum() > 0:\n    {way}\nelse:\n    {n} = {a} + 1
for each in range(2):\n    {way}
for {n} in ({a}, {b} * 2):\n    pass
while True:\n    {way}\n    break
try:\n    {way}\nfinally:\n    {n} = {a} * 3
try:\n    {way}\n    raise ValueError({a} * 2)\nexcept ValueError as error:\n    {n} = error.args[0]
try:\n    raise Odd({a} * 2)\nexcept Odd as error:\n    error.keep()\n    {way}
try:\n    raise Even({a} * 2)\nexcept ValueError as error:\n    {way}\n    LIST.append(error)
try:\n    raise Even({a} * 2)\nexcept ValueError:\n    {way}
try:\n    {n} = {a} + undefined\nexcept NameError:\n    {way}
with managed({a}) as {n}:\n    {way}
with keeping({a} * 2) as {n}:\n    {way}
with Manager({a} * 2) as {n}:\n    {way}
manager = Manager({a})\nwith contextlib.suppress(ValueError), manager:\n    raise ValueError({a} * 2)\n{way}
with np.errstate(all="ignore"):\n    {way}
with warnings.catch_warnings(record=True) as heard:\n    {way}
def inner(u, v={b}):\n    {way_inner}\n    return u + v\n{n} = inner({a})
def inner(u):\n    nonlocal_kept.append(u)\n    return u\nnonlocal_kept = []\n{n} = inner({a} * 2)
def inner(u):\n    global NUMBER\n    NUMBER = u\n    return u\n{n} = inner({a} * 2)
@remembering\ndef inner(u):\n    return u * 2\n{n} = inner({a})
@through\ndef inner(u):\n    return u * 2\n{n} = inner({a})
class Inner:\n    held = {a} * 2\n{n} = Inner.held
inner = lambda u, into=LIST: (into.append(u), u)[1]\n{n} = inner({a} * 2)
inner = lambda u: u * 2\n{n} = inner({a})
holder = Holder({a})\nif {a}.sum() > 0:\n    holder.shared = []\nholder.shared.append({a} * 2)\n{n} = {a}
holder = Holder([])\nholder.x.append({a} * 2)\n{n} = holder.x[0]
held = [{a}, []]\nheld[1].append({a} * 2)\n{n} = held[1][0]
def gives():\n    yield {a} * 2\n    LIST.append({a})\n{n} = [*gives()][0]
options = dict(by=3.0)\noptions["named"] = {b}\n{n} = plain({a}, **options)
"""

_RETURNS = """
{a}
({a}, {b})
[{a}, {{"k": {b}}}]
{a}.sum()
float({a}.sum())
Pair({a}, {b})
({a}, {o})
Holder({a} * 2)
Holder(3.0)
(row for row in ({a}, {b}))
(float({a}.sum()) for each in range(3))
map(float, [{a}.sum()])
zip([{a}], [1])
lambda: {a}
functools.partial(np.add, {a} * 2)
({a} * 2).sum
{{float({a}.sum())}}
{{{a}.sum()}}
{{{a}.sum(): 1}}
{{"k": Holder({a})}}
{a}.flat
iter([{a} * 2])
itertools.takewhile(lambda each: {a}.sum() > each, [1, 2])
Manager({a}.sum())
np.broadcast_to({a}, (2, 6))
[each for each in ({a}, {b})]
Even({a} * 2)
"""


#: Expressions that give the object {e} itself.
_SAME = """
[{e}][0]
({e},)[0]
{{"k": {e}}}["k"]
list(({e},))[0]
tuple([{e}])[0]
([{e}] + [])[0]
([{e}] * 2)[1]
((1,) + ({e},))[1]
[*[{e}]][0]
[[{e}]][0][0]
[1, {e}][-1:][0]
next(iter([{e}]))
(lambda v: v)({e})
(lambda *v: v[0])({e})
(lambda *v: v)(*[{e}])[0]
(lambda **v: v["k"])(k={e})
(lambda **v: v)(**{{"k": {e}}})["k"]
(lambda v={e}: v)()
(lambda *, v={e}: v)()
(lambda: {e})()
same({e})
same(v={e})
same(*({e},))
same(**dict(v={e}))
through(same)({e})
functools.partial(same)({e})
Holder({e}).x
Holder([{e}]).x[0]
getattr(Holder({e}), "x")
Pair({e}, 1).one
Pair(other=1, one={e})[0]
({e} if x.sum() > -1e9 else x)
(x if x.sum() < -1e9 else {e})
(None or {e})
(1 and {e})
[v for v in [{e}]][0]
[w for v in [[{e}]] for w in v][0]
{{k: v for k, v in [("k", {e})]}}["k"]
next(v for v in [{e}])
dict(k={e}).get("k")
dict([("k", {e})])["k"]
{{**dict(k={e})}}["k"]
list(dict(k={e}).values())[0]
list(dict(k={e}).items())[0][1]
{{}}.setdefault("k", {e})
[{e}].pop()
{{"k": {e}}}.pop("k")
[{e}].copy()[0]
sorted([{e}], key=len)[0]
list(zip([{e}], [1]))[0][0]
list(zip(*[[{e}]]))[0][0]
list(enumerate([{e}]))[0][1]
list(map(same, [{e}]))[0]
list(map(lambda v, w: w, [1], [{e}]))[0]
list(filter(lambda v: True, [{e}]))[0]
list(reversed([{e}]))[0]
max([{e}], key=lambda v: 1)
functools.reduce(lambda v, w: w, [1, {e}])
functools.reduce(lambda v, w: v, [1], {e})
[*itertools.chain([1], [{e}])][1]
[*itertools.repeat({e}, 2)][1]
[*itertools.zip_longest([{e}], [])][0][0]
operator.getitem([{e}], 0)
sum([[{e}]], [])[0]
[*values({e})][0]
(w := {e})
"""
#: Expressions that give the memory of the array {e}.
_VIEWS = """
np.asarray({e})
np.asanyarray({e})
np.ascontiguousarray({e})
np.asarray_chkfinite({e})
np.real_if_close({e})
{e}[:]
{e}[::-1]
{e}[...]
{e}[None][0]
{e}.view()
{e}.reshape(-1)
{e}.T
{e}.ravel()
{e}.squeeze()
{e}.swapaxes(0, 0)
{e}.astype(float, copy=False)
{e}.real
np.ravel({e})
np.real({e})
np.squeeze({e})
np.transpose({e})
np.reshape({e}, (6,))
np.atleast_1d({e})
np.atleast_1d({e}, x)[0]
np.broadcast_arrays({e}, x)[0]
np.split({e}, 1)[0]
np.array_split({e}, 1)[0]
np.flip({e})
np.diagonal(np.atleast_2d({e}).T)
np.einsum("i->i", {e})
np.trim_zeros({e})
np.expand_dims({e}, 0)[0]
np.rot90(np.atleast_2d({e}), 2)[0]
np.meshgrid({e}, copy=False)[0]
np.moveaxis({e}, 0, 0)
np.nan_to_num({e}, copy=False)
np.nan_to_num({e}, False)
np.lib.stride_tricks.as_strided({e})
np.array({e}, copy=None)
[row for row in {e}.reshape(1, 6)][0]
next(iter({e}[None]))
operator.getitem({e}, slice(None))
"""
#: Statements after which the last expression is the object {e}.
_STATEMENTS = r"""
h{k} = Holder()\nh{k}.x = {e} -> h{k}.x
h{k} = Holder()\nsetattr(h{k}, "x", {e}) -> h{k}.x
l{k} = []\nl{k}.append({e}) -> l{k}[0]
l{k} = [0]\nl{k}[0] = {e} -> l{k}[0]
l{k} = [1]\nl{k} += [{e}] -> l{k}[1]
l{k} = []\nl{k}.extend(({e},)) -> l{k}[0]
l{k} = []\nl{k}.insert(0, {e}) -> l{k}[0]
l{k} = []\nm{k} = l{k}\nm{k}.append({e}) -> l{k}[0]
l{k} = []\nm{k} = [l{k}] + []\nm{k}[0].append({e}) -> l{k}[0]
l{k} = []\nm{k} = (l{k},)\nm{k}[0].append({e}) -> l{k}[0]
l{k} = [[]]\nl{k}[0].append({e}) -> l{k}[0][0]
l{k} = [] + []\nl{k}.append({e}) -> l{k}[0]
d{k} = {{}}\nd{k}["k"] = {e} -> d{k}["k"]
d{k} = {{}}\nd{k}.update(k={e}) -> d{k}["k"]
d{k} = dict(k=1)\nd{k}["k"] = {e} -> (lambda **q: q["k"])(**d{k})
a{k}, *b{k} = [1, {e}] -> b{k}[0]
(a{k}, (b{k}, c{k})) = (1, ({e}, 2)) -> b{k}
a{k} = b{k} = {e} -> b{k}
for v{k} in [{e}]:\n    pass -> v{k}
for _, v{k} in enumerate(({e},)):\n    break -> v{k}
i{k} = 0\nv{k} = None\nwhile i{k} < 2:\n    v{k}, i{k} = ({e}, i{k} + 1) -> v{k}
with bound({e}) as v{k}:\n    pass -> v{k}
def g{k}():\n    return {e}\n -> g{k}()
def g{k}():\n    yield {e}\n -> next(g{k}())
def g{k}(v={e}):\n    return v\n -> g{k}()
def g{k}(*v, **w):\n    return v[0]\n -> g{k}({e}, 1, k=2)
c{k} = None\ndef g{k}():\n    nonlocal c{k}\n    c{k} = {e}\ng{k}() -> c{k}
c{k} = []\ndef g{k}():\n    c{k}.append({e})\ng{k}() -> c{k}[0]
try:\n    raise Even({e})\nexcept Even as err:\n    v{k} = err.args[0] -> v{k}
try:\n    v{k} = {e}\nfinally:\n    pass -> v{k}
if x.sum() > 0:\n    v{k} = {e}\nelse:\n    v{k} = x -> v{k}
v{k} = x\nif x.sum() > 0:\n    v{k} = {e} -> v{k}
@through\ndef g{k}():\n    return {e}\n -> g{k}()
"""
#: Writes to the memory of the array v.
_WRITES = """
v += 1
v **= 2
v[0] = 9.0
v[...] = 1
v[1:3][:] = 5
v.fill(2)
v.sort()
v.partition(2)
v.put(0, 3)
v.flat[0] = 1
v.real[0] = 1
v.byteswap(True)
v.cumsum(out=v)
v.cumsum(0, None, v)
v.clip(0, 1, v)
np.add(x, 1, out=v)
np.add(x, 1, v)
np.negative(x, v)
np.negative(x, out=(v,))
np.copyto(v, 3.0)
np.put(v, 0, 3)
np.place(v, x > 0, 1)
np.putmask(v, x > 0, 1)
np.cumsum(x, 0, None, v)
np.clip(x, 0, 1, out=v)
np.multiply.at(v, [0], 3)
np.add.accumulate(x, 0, None, v)
np.add.reduce(x.reshape(1, 6), 0, None, v)
np.einsum("i->i", x, out=v)
np.dot(np.eye(6), x, v)
np.matmul(np.eye(6), x, v)
np.take(x, [0, 1, 2, 3, 4, 5], out=v)
np.fill_diagonal(v.reshape(2, 3), 1)
np.random.shuffle(v)
np.nan_to_num(v, copy=False)
np.median(v, overwrite_input=True)
for v[0] in [3.0]: pass
v[:], w = 1, 2
(lambda: v.fill(3))()
(lambda u: u.__setitem__(0, 3))(v)
[u.fill(4) for u in [v]]
operator.setitem(v, 0, 1)
operator.iadd(v, 1)
functools.partial(np.copyto, v)(1.0)
list(map(np.ndarray.sort, [v]))
np.apply_along_axis(zeroes, 0, v)
v.setflags(write=False)
v.shape = (2, 3)
"""
#: Ways to keep an array in the object v: by its kind.
_KEEPS = {
    "LIST": "v.append(x * 2)|v += [x * 2]|v[len(v) :] = [x * 2]|v.extend([x])|v.insert(0, x * 2)|v *= 2; v.append(x)",
    "NAMED": "v['k'] = x * 2|v.update(k=x * 2)|v.setdefault('k', x * 2)|v |= {'k': x * 2}",
    "HOLDER": "v.kept = x * 2|v.keep(x * 2)|setattr(v, 'kept', x * 2)|vars(v)['k'] = x|v.x = x * 2",
}


def _lines(text: str) -> list[str]:
    return [each.replace("\\n", "\n") for each in text.strip().splitlines()]


WAYS, BLOCKS, RETURNS = _lines(_WAYS), _lines(_BLOCKS), _lines(_RETURNS)
_SIZE = 6


def with_body(lines: list[str], returned: str) -> str:
    """The text of a function `function(x, y)` with these lines."""
    body = "\n    ".join([*lines, f"return {returned}"])
    return f"{_HEAD}\nTUPLE = ()\n\n\ndef function(x, y):\n    {body}\n"


def each_alone() -> Iterator[str]:
    """A function for each way, each block and each thing that is returned."""
    names = {"a": "x", "b": "y", "o": "O1", "n": "v"}
    for way in WAYS:
        yield with_body([way.format(**names)], "v")
    for block in BLOCKS:
        yield with_body(block.format(**names, way="v = x * 2", way_inner="w = u").splitlines(), "v")
    for returned in RETURNS:
        yield with_body([], returned.format(**names))


def source(chosen: random.Random, ways: int = 4) -> str:
    """The text of a function `function(x, y)` that does some of these."""
    arrays = ["x", "y"]
    lines: list[str] = []
    for number in range(chosen.randint(1, ways)):
        names = {
            "a": chosen.choice(arrays), "b": chosen.choice(arrays), "o": chosen.choice(["O1", "O2", "HOLDER.x"]),
            "n": f"v{number}",
        }  # fmt: skip
        way = chosen.choice(WAYS).format(**names)
        if chosen.random() < 0.45:
            inner = chosen.choice(WAYS).format(a="u", b="v", o=names["o"], n="w")
            # Statements of one line stay on it.
            way = chosen.choice(BLOCKS).format(**names, way=way, way_inner=inner)
        lines += way.splitlines()
        if any(each.strip().startswith(f"v{number}") or f"v{number} in" in each for each in lines):
            arrays.append(f"v{number}")
    names = {"a": chosen.choice(arrays), "b": chosen.choice(arrays), "o": "O1", "n": "v"}
    returned = chosen.choice(RETURNS if chosen.random() < 0.5 else RETURNS[:5]).format(**names)
    return with_body(lines, returned)


SAME, VIEWS, STATEMENTS, WRITES = _lines(_SAME), _lines(_VIEWS), _lines(_STATEMENTS), _lines(_WRITES)


def aliased(chosen: random.Random) -> str:
    """The text of a function that comes to an array or a container by detours, and writes to it or keeps it."""
    is_outer = chosen.random() < 0.5
    is_array = chosen.random() < 0.7
    if is_array:
        outer = ["O1", "O2", "HOLDER.x", "ARRAYS[0]", "TEXTS['a']", "Holder.table"]
        inner = ["x", "y", "(x * 2)", "np.zeros(6)", "x[::-1]", "np.where(x > 2, x, y)"]
        held, ends = chosen.choice(outer if is_outer else inner), WRITES
    else:
        name = chosen.choice(list(_KEEPS))
        own = {"LIST": "[x]", "NAMED": "{'a': x}", "HOLDER": "Holder(x)"}
        held, ends = name if is_outer else own[name], _KEEPS[name].split("|")
    lines: list[str] = []
    for number in range(chosen.randint(0, 4)):
        how = chosen.random()
        if how < 0.4:
            before, _, after = chosen.choice(STATEMENTS).partition(" -> ")
            lines += before.format(e=held, k=number).splitlines()
            held = after.format(e=held, k=number)
        else:
            held = chosen.choice(VIEWS if is_array and how < 0.65 else SAME).format(e=held)
    lines.append(f"v = {held}")
    if chosen.random() < 0.9:
        lines.append(chosen.choice(ends))
    return with_body(lines, chosen.choice(["x", "v", "(v, y)", "[v]", "x * 2", "None", "{'v': v}"]))


_texts = 0


def space_of(text: str) -> dict[str, Any] | None:
    """What the text defines, of which Python finds the source; `None` where it is not valid."""
    global _texts
    _texts += 1
    name = f"<fuzzed {_texts}>"
    space: dict[str, Any] = {"__name__": "fuzzed"}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        exec(compile(text, name, "exec"), space)
    except SyntaxError:
        return None
    return space


def _arguments() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.arange(1.0, _SIZE + 1), np.linspace(-1, 2, _SIZE)


def _shown(value: Any, depth: int = 0) -> Any:
    """A value that can be compared: arrays by their elements, objects by what is in them."""
    if isinstance(value, np.ndarray):
        return (type(value).__name__, str(value.dtype), value.shape, value.tolist())
    if isinstance(value, np.generic):
        return (type(value).__name__, repr(value))
    if isinstance(value, BaseException):
        return (type(value).__name__, _shown(value.args, depth + 1))
    if isinstance(value, tuple | list):
        return (type(value).__name__, [_shown(each, depth + 1) for each in value])
    if isinstance(value, dict):
        return {repr(key): _shown(each, depth + 1) for key, each in value.items()}
    if hasattr(value, "__dict__") and depth < 4 and not callable(value):
        return (type(value).__name__, {name: _shown(each, depth + 1) for name, each in vars(value).items()})
    return (type(value).__name__, repr(value) if isinstance(value, int | float | str | None) else None)


def _outside(space: dict[str, Any]) -> Any:
    """Everything that was there before the call."""
    names = ("O1", "O2", "LIST", "ARRAYS", "NAMED", "TEXTS", "NUMBER", "HOLDER")
    classes = [vars(space["Holder"])["shared"], vars(space["Holder"])["table"], space["default"].__defaults__]
    return _shown([[space[name] for name in names], classes, vars(space["plain"])])


def _outcome(call: Callable[..., Any]) -> tuple[Any, Any]:
    given = _arguments()
    try:
        value = call(*given)
    except Exception as error:  # noqa: BLE001 - that is what it does
        error.__traceback__ = None
        value = error
    return _shown(value), _shown(given)


def why_wrong(text: str) -> str | None:
    """What a function does that is proved not to; "" where it is not proved, `None` where all is well."""
    plain, ours = space_of(text), space_of(text)
    if plain is None or ours is None:
        return ""
    function = ours["function"]
    proof = Proof(function, kinds_of(_arguments(), {}))
    if proof.why_not is not None or not proof.holds(_arguments(), {}):
        return ""
    before = _outside(plain)
    expected = _outcome(plain["function"])
    if _outside(plain) != before:
        return "it writes to what is outside"
    gc.collect()
    run = _Run(Segments("fuzzed", function, Options()), function, trusts=True)
    found = _outcome(lambda *given, run=run: run(given, {}))
    if run.escaped is not None:
        return run.escaped
    gc.collect()
    if any(type(each) is StandIn for each in gc.get_objects()):
        return "an array that stands for NumPy's is left"
    if found != expected:
        return f"it gives {found}, not {expected}"
    return "it writes to what is outside" if _outside(ours) != before else None


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Operations of any size are recorded, and no warning is an error."""
    from anygpu.array.deferred import recorder

    small, recorder.SMALL = recorder.SMALL, -1
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        recorder.SMALL = small


def main() -> int:
    """Print what is wrong, and how many functions were proved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chosen = random.Random(given.seed)
    counts: Counter[str] = Counter()
    gc.freeze()  # what is there already is not looked through for arrays that are left
    with recorded():
        for number in range(given.count):
            text = source(chosen) if number % 2 else aliased(chosen)
            why = why_wrong(text)
            counts["not proved" if why == "" else "proved" if why is None else "wrong"] += 1
            if why:
                body = text[text.index("def function") :]
                sys.stdout.write(f"-- {number}: {why[:400]}\n{body}\n")
            linecache.clearcache()
    sys.stdout.write(f"{given.count} functions of seed {given.seed}: {dict(counts)}\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
