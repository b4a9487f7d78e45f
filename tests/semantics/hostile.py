"""Functions that are hard to record: arrays of every kind, memory under many names, everything that is asked.

As the corpus; these are only run as native code in turn with NumPy.
"""

import collections
import collections.abc
import contextlib
import copy
import functools
import io
import itertools
import numbers
import pickle
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.semantics.cases import Case, World, vector

HOSTILE = {}


def floats(n, size=6):
    return vector(n, size, np.float64)


def one(n):
    return (floats(n),)


def world(arguments=one):
    """A case whose function is made anew for each run."""

    def enter(make):
        HOSTILE[make.__name__] = Case(f"hostile.{make.__name__}", lambda: World(make(), arguments), either=True)
        return make

    return enter


def tried(*ways):
    """What each way gives or raises."""
    found = []
    for way in ways:
        try:
            found.append(way())
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


# -- arrays of every kind


class Sub(np.ndarray):
    def __array_finalize__(self, other):
        self.tag = getattr(other, "tag", None)


@world(lambda n: (floats(n).view(Sub), floats(n)))
def subclasses():
    return lambda x, y: (x + y, y + x, y.sum() * x, np.add(y, x), np.where(y > 0, y, x), y @ x, np.concatenate([y, x]))


@world(lambda n: (np.ma.masked_less(floats(n), 0), floats(n)))
def masked_arrays():
    return lambda x, y: (x + y, y + x, y * 2 + x, (y * 2).sum() + x)


@world(lambda n: (np.array(n / 4), floats(n)))
def without_axes():
    def function(x, y):
        x += 1
        z, q = x * 2, y + x
        y[0], y[1:2] = x, x * 2
        return x, z, q, y, x[()], x[...], x.sum(), np.asarray(x), y * x

    return function


@world(lambda n: (np.array([(1, 2.0), (n, 4.0)], dtype=[("a", int), ("b", float)]), floats(n, 2)))
def structured_arrays():
    def function(s, y):
        z = y * 2
        s["b"] = z
        s["a"][0] = z[0]
        return s, z + s["b"], s[1]

    return function


@world(lambda n: (np.array([1, n, None], dtype=object), floats(n, 3)))
def arrays_of_objects():
    def function(o, y):
        z = y * 2
        o[2] = 3
        r = o + z
        o[0] = z
        return o, r, z + o[1:2]

    return function


@world(lambda n: (vector(n, 6, ">f8"), floats(n)))
def other_order_of_bytes():
    def function(b, y):
        z = y * 2
        r = b + z
        b += z
        z += b
        return b, r, z, b.dtype.isnative

    return function


def _read_only(n):
    x = floats(n)
    x.flags.writeable = False
    return (x,)


@world(_read_only)
def read_only_arguments():
    def function(a):
        z, v = a * 2, a[1:]
        found = tried(
            lambda: a.__setitem__(0, 1), lambda: a.__iadd__(1), lambda: v.__iadd__(1), lambda: np.add(a, 1, out=a),
            lambda: a.sort(), lambda: a[::2].fill(0), lambda: a.reshape(2, 3).__setitem__(0, 0),
        )  # fmt: skip
        made = a[...], a.view(), np.asarray(a), a.ravel(), a.copy(), +a, a.reshape(2, 3)
        return z, found, v, made, [each.flags.writeable for each in made]

    return function


@world()
def made_read_only():
    def function(x):
        y = x * 2
        y.flags.writeable = False
        v = y[1:]
        z = y + 1
        w = x * 3
        w.setflags(write=False)
        x.setflags(write=False)
        return y, z, v, tried(lambda: y.__setitem__(0, 1), lambda: v.__iadd__(1), lambda: w.fill(0), lambda: x.sort())

    return function


def _overlapping(n):
    x = floats(n, 12)
    return x[:6], x[::2], x[3:9]


@world(_overlapping)
def overlapping_arguments():
    def function(a, b, c):
        p = a * 2
        b += 1
        q = a * 2
        c[:] = b
        r = a + b + c
        a[1:] = a[:-1]
        b -= a
        np.add(a, b, out=c)
        return p, q, r, a, b, c, a + b

    return function


# -- memory under many names


@world()
def views_of_views():
    def function(x):
        y = x * 2
        v, m = y[1:4], y.reshape(2, 3)
        w, t, r = v[::-1], m.T, m.ravel()
        s = t.ravel()
        y[0] = 1
        v += 1
        w *= 2
        m[0, 0], t[2, 1], r[3], s[4] = 5, 6, 7, 8
        b = np.broadcast_to(y, (2, 6))
        y[5] = 11
        z, q = y[None], y.real
        z -= 1
        q += 1
        facts = v.base is None, np.shares_memory(y, v), np.may_share_memory(y, s), y.flags.owndata, v.flags.owndata
        return y, v, w, m, t, r, s, b, z, q, np.diagonal(m), m.diagonal(), facts, m.flags.num

    return function


@world()
def assignments():
    def function(x):
        y = x * 2
        m = y.reshape(2, 3).copy()
        m[0] = [1, 2, 3]
        m[:, 1] = x[:2]
        m[1, 2] = y.sum()
        m[m > 1] = 0
        m[[0, 1], [1, 2]] = x[:2]
        m[np.array([True, False])] = 5
        m[..., 0] += 1
        m.T[0] = 9
        m.flat[3] = 4
        y[y.argmax()] = 100
        y[[0, 1]] += 1
        y[y < 0] *= -1
        y[2:4], y[4:6] = y[4:6].copy(), y[2:4].copy()
        y[:] = y[::-1]
        y[1:] = y[:-1]
        y[0:2] = True
        y[4] = "2.5"
        return m, y

    return function


@world()
def operators_in_place():
    def function(x):
        m = x.reshape(2, 3).copy()
        k = m @ m.T
        before = k
        k @= k
        m @= np.eye(3)
        y, i = x * 2, x.astype(int)
        found = []
        for text in ("i/=2", "i+=0.5", "i<<=1", "i|=1", "i&=7", "i^=1", "i>>=1", "i**=2", "y//=2", "y<<=1", "y@=y"):
            space = {"i": i, "y": y}
            try:
                exec(text, space)
            except Exception as error:
                found.append((type(error).__name__, str(error)))
            space.clear()
        return k, before, m, y, i, found

    return function


@world()
def arguments_in_place():
    def function(x):
        y = x * 2
        x += 1
        z = x * 2
        x[::2] -= y[::2]
        x[x > 2] = 0
        x.sort()
        w = x[::-1]
        w *= 2
        return y, z, x, w

    return function


@world(lambda n: ([floats(n)], {"a": floats(n + 1)}))
def containers_as_arguments():
    def function(some, named):
        y = some[0] * 2
        some.append(y)
        named["b"] = named["a"] + y
        some[0] += 1
        return y, some, named

    return function


Pair = collections.namedtuple("Pair", "one other")


@world()
def containers_as_operands():
    def function(x):
        y = x * 2
        some = (
            Pair(y, x),
            collections.deque([y, x]),
            {"a": y, "b": x}.values(),
            collections.UserList([y, x]),
            ([y], (x,)),
        )
        found = [
            tried(lambda: f(each)) for each in some for f in (np.stack, np.concatenate, np.array, np.sum, np.hstack)
        ]
        return found, y + Pair(1, 2)[0], np.add(Pair(y, x), 1), tried(lambda: np.where([y > 0, x > 0], Pair(y, x), 0))

    return function


# -- what is left behind


@world()
def kept_in_closures_and_iterators():
    kept = []

    def function(x):
        y = x * 2
        kept[:] = [lambda: y + 1, functools.partial(np.add, y), (y, (x[1:],)), itertools.chain([y]), iter((y, 1))]
        kept.append({"k": (y.sum(),)})
        return kept[2], kept[5], [type(each).__name__ for each in kept]

    return function


@world()
def keys_and_sets():
    def function(x):
        y = np.round(x)
        table = {y[0]: 1, y.sum(): 2, y.max(): [y]}
        some = {y[0], y[1], y.sum()}
        return table, some, frozenset([y.max()]), sorted(some), y.sum() in table, table[y.sum()], list(table)

    return function


@world()
def generators_that_go_on():
    def function(x):
        y = x * 2

        def items(v):
            w = v + 1
            for number in range(3):
                yield w * number
                w[0] = number

        made = items(y)
        first = next(made)
        return first, made, collections.deque([y]), (v for v in (y, x))

    return lambda x: [list(each) if hasattr(each, "send") else each for each in function(x)]


@world()
def errors_with_arrays():
    class Failed(Exception):
        pass

    def function(x):
        error = Failed(x * 2, [x.sum()])
        error.extra = {"a": x * 3}
        raise error from KeyError(x.max())

    return function


@world()
def pickled_and_copied():
    def function(x):
        y = x * 2
        p = pickle.loads(pickle.dumps(y))
        y += 1
        c = copy.copy(y)
        y[0] = 9
        d = copy.deepcopy([y, y])
        y[1] = 7
        return p, c, d, y, pickle.loads(pickle.dumps(y.sum()))

    return function


# -- what is asked


@world()
def numbers_of_numpys():
    def function(x):
        s, m, i = x.sum(), x.max(), x.argmax()
        t = s
        s += 1
        s *= m
        asked = [isinstance(each, k) for each in (s, i) for k in (float, int, np.generic, numbers.Real, np.integer)]
        return (
            s, m, t, bool(s > 0), int(s), [10, 20, 30][i % 3], range(i), divmod(s, 2), s**2, 2**m, -s, abs(s), s // 1,
            s % 2, round(s, 1), round(s), s == s, float(s), complex(s), s.dtype, s.shape, s.item(), i << 1, i | 1, ~i,
            s and t, s or t, not s, max(s, t), min([s, t, 1]), sum([s, t]), [0] * i, i * [0], (1,) * x.argmin(), asked,
            f"{s:.3f} {s!r} {s} {[s]}", "%.2f %s" % (s, s), s.hex(), s.is_integer(), np.isscalar(s), np.iterable(s),
        )  # fmt: skip

    return function


@world()
def iterated():
    def function(x):
        first, *rest = x * 3
        items = iter(x * 2)
        return (
            next(items), list(items), list(zip(x * 2, x)), max(x * 2), sum(x * 2), list(reversed(x * 2)), first, rest,
            sorted(x * 2), [row.sum() for row in (x * 2).reshape(2, 3)], random.choice(list(x)), 1 in x * 8,
        )  # fmt: skip

    return function


@world()
def errors_of_every_kind():
    def function(x):
        y = x * 2
        return tried(
            lambda: y.nothing, lambda: y.sum().nothing, lambda: y[1.5], lambda: y["a"], lambda: y[0, 0],
            lambda: y + "a", lambda: y + None, lambda: y < "a", lambda: y == "a", lambda: y == None, lambda: "a" + y,  # noqa: E711
            lambda: [1] * 6 + y, lambda: y + (1,) * 6, lambda: y + object(), lambda: y.sum() + "a",
            lambda: iter(y.sum()), lambda: float(y), lambda: bool(y), lambda: hash(y), lambda: [1, 2][y],
            lambda: y.reshape(5), lambda: y.astype("nope"), lambda: y.sum(axis=5), lambda: y.sum(foo=1),
            lambda: np.sum(y, foo=1), lambda: y.dot(), lambda: y.clip(), lambda: np.concatenate(y),
            lambda: np.stack([y, y[1:]]), lambda: np.where(y), lambda: np.where(y, 1), lambda: np.clip(y),
            lambda: np.add(y), lambda: np.add(y, 1, 2, 3), lambda: np.add(y, 1, dtype=int), lambda: np.sin(y, foo=1),
            lambda: np.add(y, 1, out=np.zeros(3)), lambda: y.transpose(1, 0), lambda: y.repeat(-1), lambda: np.zeros(y),
            lambda: y**"a", lambda: y << 1, lambda: ~y, lambda: not y, lambda: y in [1, 2], lambda: [1, y].index(y),
        )  # fmt: skip

    return function


@world()
def small_and_large_integers():
    def function(x):
        i = x.astype(np.int8)
        found = [i * i, i + np.int8(100), i**2, i // 0, i % 0, i.sum(), i + 1, i * 2.5, -i]
        for v in (127, 128, -129, 300, 2**40, 2**70):
            found += tried(lambda: i + v, lambda: i < v, lambda: i == v, lambda: x + v, lambda: np.where(i > 0, i, v))
        return found

    return function


@world()
def random_numbers_inside():
    def function(x):
        y = x + np.random.standard_normal(6)
        rng = np.random.default_rng(3)
        return y * np.random.rand(), np.random.permutation(x * 2), rng.permutation(y), rng.choice(y, 2), rng.normal(y)

    return function


@world()
def shuffled():
    def function(x):
        m = (x * 2).reshape(3, 2)
        np.random.default_rng(1).shuffle(m)
        return m

    return function


# -- threads, modes and warnings


@world()
def other_threads():
    def function(x):
        y, found = x * 2, []

        def writes():
            found.append((y + 1).sum())
            y[0] = 3

        thread = threading.Thread(target=writes)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(3) as pool:
            found += pool.map(lambda i: y[i:] * 2 + x[i:], range(4))
        return y * 2, found, y

    return function


@world()
def modes_inside_of_modes():
    def function(x):
        seen = []
        with np.errstate(divide="call", call=lambda *what: seen.append(what)):
            y = 1 / (x - x)
        with np.errstate(all="ignore"):
            z = np.sqrt(np.log(x - 10))
            with np.errstate(invalid="warn"):
                r = np.sqrt(x - 10)
            s = np.log(x * 0)
        old = np.seterr(all="ignore")
        t = np.log(x * 0 - 1)
        np.seterr(**old)
        return y, z, r, s, t, np.log(x * 0 - 1), seen

    return function


@world()
def filters_inside_of_filters():
    def function(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = np.log(x * 0 - 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            z = np.log(x * 0 - 1) + np.log(x * 0 - 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = tried(lambda: np.log(x * 0 - 1))
        with warnings.catch_warnings():
            warnings.simplefilter("once")
            for _ in range(3):
                y = np.sqrt(x * 0 - 1)
        return y, z, len(caught), found

    return function


@world()
def discarded_parts():
    def function(x):
        z = x * 1j
        w, q = np.empty(6), x.copy()
        w[:] = z
        q[:2] = z[:2]
        return z.astype(float), w, q, x[:0].mean()

    return function


@world()
def printed_in_between():
    def function(x):
        print("a")
        y = np.log(x - x)
        print("b", y[0], y, [y[1]])
        z = 1 / (x - x)
        print("c")
        return y, z

    return function


@world()
def lines_of_a_traceback():
    def inner(y):
        y = y * 2
        return y + np.ones(5)

    def function(x):
        y = x * 2
        try:
            inner(y)
        except ValueError as error:
            lines, last = [], error.__traceback__
            while last:
                lines.append((last.tb_lineno, last.tb_frame.f_code.co_name))
                last = last.tb_next
        return list(dict.fromkeys(each for each in lines if each[1] in ("function", "inner"))), y

    return function


@world()
def interrupted():
    def function(x):
        y = x * 2
        try:
            raise KeyboardInterrupt(y.sum())
        except KeyboardInterrupt as error:
            return error.args[0], y

    return function


@world()
def calls_of_itself():
    def function(x, n=4):
        if n == 0 or x.sum() > 100:
            return x
        y = x * 1.5
        y[n] = 0
        return function(y, n - 1) + x

    return function


@world()
def many_functions():
    def function(x):
        y = x * 2
        m = y.reshape(2, 3)
        with contextlib.redirect_stdout(io.StringIO()):
            print(y)
        return (
            np.linalg.norm(y), np.linalg.inv(m @ m.T + np.eye(2)), np.fft.fft(y), np.histogram(y, 3), np.nonzero(y > 0),
            np.percentile(y, [10, 50]), np.unique(y, return_counts=True), np.searchsorted(np.sort(y), x),
            np.interp(x, np.sort(y), y), np.einsum("ij,kj->ik", m, m), np.split(y, 3), np.pad(y, 2), np.gradient(y),
            np.bincount(np.abs(y).astype(int)), np.take(y, [1, 2]), np.select([y > 0], [y]), np.array([y, x]),
            np.vectorize(lambda v: v * 2)(y), m[np.ix_([0, 1], [1])], np.allclose(y, x * 2), np.isin(y, x),
            np.array([y.sum(), 1]), np.modf(y), np.divmod(y, 2), np.add.accumulate(y), np.add.outer(y, y),
            np.delete(y, 1), np.append(y, x), np.linspace(y[0], y[1], 4), np.full(3, y.sum()), y.view(np.int64),
            y.astype(">f8"), y.astype(np.float16), y.astype(object), y.astype(str), y.round(1), y.var(ddof=1),
            y.std(keepdims=True), m.sum((0, 1)), m.T.sum(1), m.ravel("F"), m.T.ravel(), m.T.copy("K"), m.flatten("F"),
            m.repeat(2, 0), m.trace(), m.diagonal(), m[:, None].squeeze(1), m.clip(0), m.clip(max=1), m.imag,
            np.average(y, weights=np.abs(x) + 1), np.lexsort((y, x)), np.maximum(y, x, out=y.copy()),
        )  # fmt: skip

    return function


class Point(tuple):
    """A tuple with attributes."""


class Watched(list):
    """A list that counts what is done to it."""

    count = 0

    def __setitem__(self, index, value):
        self.count += 1
        list.__setitem__(self, index, value)

    def __iter__(self):
        self.count += 10
        return list.__iter__(self)


@world()
def containers_of_its_own():
    def function(x):
        point, watched, once = Point((x * 2, (x + 1,))), Watched([x * 3, 1]), (x * 4, 1)
        point.tag = "a"
        order = collections.OrderedDict([(x.max() * 1, x), ("a", once), ("b", x * 5)])
        order.move_to_end("a", last=False)
        return point, watched, once, [once, once, {"point": point}], order, list(order)

    return function


@world()
def given_back():
    def function(x):
        y, z = np.require(x), np.require(x * 2, float, "W")
        y[0] = 5
        f = np.asfortranarray(np.asarray_chkfinite(x))
        f[1] = 4
        g = np.array(x, copy=None)
        g[2], np.array(z, copy=False)[3] = 3, 2
        return y, z, f, g, x, np.require(x, np.float32), np.asfortranarray(z.reshape(2, 3))

    return function


# -- what values, options and filters decide


@world()
def written_by_an_option():
    def function(x):
        y, z = np.where(x > 0, np.nan, x) + 1, x * 2
        np.nan_to_num(y, copy=False)
        np.nan_to_num(z[1:] / 0, False)
        return y, np.median(z, overwrite_input=True), np.median(z, None, None, True), z

    return function


@world(lambda n: (floats(n) + (1j if n % 2 else 0j),))
def type_by_values():
    def function(z):
        w = np.real_if_close(z * 2)
        return w.dtype.str, w + 1

    return function


@world(lambda n: (np.arange(6), (1.0, np.nan, 1e300, np.inf)[n % 4]))
def numbers_that_do_not_fit():
    def function(x, v):
        y = x * 2
        tried(lambda: y.__setitem__(slice(1, 3), v), lambda: y.__setitem__(y > 3, v), lambda: y.__setitem__(0, v))
        try:
            y[1:3] = v
        except (ValueError, OverflowError) as error:
            y = y + 1
            print(error)
        return y, np.full_like(y, 2), y**2

    return function


@world(lambda n: (np.arange(6) - n, 2 - n % 4))
def powers_that_may_raise():
    def function(x, k):
        y = x * 2
        return tried(lambda: y**k + 1, lambda: y ** np.int64(k), lambda: k**y, lambda: np.power(y, k))

    return function


@world()
def warnings_that_are_not_of_numbers():
    def function(x):
        y = x * np.nan
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quiet = np.nanmean(y), np.nanmax(y), np.nanstd(y[None], axis=0), (x * 1j).astype(float)
        with np.errstate(all="ignore"):
            loud = tried(lambda: np.nanmean(y), lambda: (x * 1j).astype(float), lambda: y[:2].var(ddof=3))
        return quiet, loud

    return function


@world()
def warnings_as_errors():
    def function(x):
        y, z = x * 0, x * 1j
        with warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            found = tried(lambda: z.astype(float), lambda: y.__setitem__(slice(2), z[:2]), lambda: (y / y).sum())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found += tried(lambda: 1 / y, lambda: np.nanmean(y / 0), lambda: np.log(y))
            with np.errstate(all="ignore"):
                found += tried(lambda: np.nanmean(y * np.nan), lambda: np.sqrt(y - 1), lambda: z.astype(float))
        warnings.simplefilter("error")
        return *found, *tried(lambda: 1 / y, lambda: np.nanmean(y * np.nan))

    return function


@world()
def lines_of_warnings():
    def function(x):
        y = x * 1000
        y **= 200
        z = x * 1j
        y[[0, 1]] = z[:2]
        y.real = z
        y.flat = z
        y[:] = z
        first = float(y[:1])
        return y, first, int(x[:1]), np.add(y, 1, out=y), x[:1].item()

    return function


@world()
def warnings_that_are_shown_once():
    def function(x):
        found = []
        for _ in range(3):
            with np.errstate(invalid="warn"):
                found.append(np.sqrt(x - 9) + 1)
            with np.errstate(divide="ignore"):
                found.append(1 / (x - x))
        return found

    return function


@world()
def buffers_that_are_refused():
    def function(x):
        y = x * 2
        z = y[::-1]
        w = y + 1
        w.flags.writeable = False
        return tried(
            lambda: bytes(memoryview(z)), lambda: np.ndarray(1, float, buffer=z), lambda: np.frombuffer(z),
            lambda: np.frombuffer(w).flags.writeable,
        )  # fmt: skip

    return function
