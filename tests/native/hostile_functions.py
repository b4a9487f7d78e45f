"""Functions that are hard on what is recorded of a function: late writes, names that change, values that are kept.

Each case is the text of a module with `function(x, y)`; cases are separated by lines that begin with `# -- ` and name
them. `between(n)`, where there is one, runs before the call of that number. `what_came` runs a case in two worlds of
its own, plain and decorated, and compares everything that can be seen of them after each call.

`python -m tests.native.hostile_functions` runs all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import linecache
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import anygpu as ag
from tests.support.native_placement import native_at_once, settle, wrong_functions

WORLD = """
import collections, contextlib, functools, itertools, math, operator, typing, types, warnings
import numpy as np

O1, O2 = np.linspace(-1.0, 2.0, SIZE), np.linspace(0.5, 3.0, SIZE)
LIST, NUMBERS, ARRAYS, NAMED = [], [1, 2], [np.ones(SIZE)], {"a": 1}
HOME = {"list": LIST}


class Plain:
    factor = 2.0

    def __init__(self, x=None):
        self.x = x


def keep(x):
    LIST.append(x)
    return x


def same(x):
    return x


INSTANCE = Plain(3.0)
"""

CASES = """
# -- a conditional expression whose other branch raises
def function(x, y):
    try:
        n = None.real if x.ndim == 7 else 1
        LIST.append(x * n)
    except AttributeError:
        pass
    return x * 2
# -- and, of which the second raises
def function(x, y):
    try:
        n = x.ndim == 7 and None.real
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a chain of comparisons that ends early
def function(x, y):
    try:
        n = 5 < x.ndim < None.real
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- the message of an assertion that holds
def function(x, y):
    try:
        assert x.ndim == 1, None.real
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a comprehension over nothing
def function(x, y):
    try:
        n = [None.real for each in range(x.ndim - 1)]
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a generator that nobody asks
def function(x, y):
    try:
        n = (None.real for each in range(3))
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a function that raises and is mapped over nothing
def function(x, y):
    try:
        n = list(map(lambda v: None.real, []))
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a key that raises for nothing
def function(x, y):
    try:
        n = sorted([], key=lambda v: None.real)
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a reduction of one element
def function(x, y):
    try:
        n = functools.reduce(lambda v, w: None.real, [1])
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a filter of nothing
def function(x, y):
    try:
        n = list(filter(lambda v: None.real, []))
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a target of a loop over nothing
def function(x, y):
    try:
        for None.real[0] in []:
            pass
        LIST.append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- a slice with a part that is not evaluated
def function(x, y):
    try:
        n = x[: (None.real if x.ndim == 7 else 3)]
        LIST.append(x * 2)
    except AttributeError:
        pass
    return n
# -- a break through finally
def function(x, y):
    v = x * 1
    for _ in range(1):
        try:
            break
        finally:
            v = O1
    w = x * 2 + v
    v[:] = 3.0
    return w
# -- continue through finally
def function(x, y):
    v = x * 1
    for _ in range(2):
        try:
            continue
        finally:
            v = O1
    w = x * 2 + v
    v[:] = 3.0
    return w
# -- a handler that raises before finally
def function(x, y):
    v = x * 1
    w = x * 2
    try:
        try:
            raise ValueError
        except ValueError:
            v = O1
            raise KeyError
        finally:
            v[:] = 3.0
    except KeyError:
        pass
    return w
# -- else that raises before finally
def function(x, y):
    v = x * 1
    w = x * 2
    try:
        try:
            pass
        except ValueError:
            pass
        else:
            v = O1
            raise KeyError
        finally:
            v[:] = 3.0
    except KeyError:
        pass
    return w
# -- a handler that returns before finally
def function(x, y):
    v = x * 1
    w = x * 2
    try:
        raise ValueError
    except ValueError:
        v = O1
        return w
    finally:
        v[:] = 3.0
# -- an assignment in a test
def nxt(v):
    return 1 if v is None else None
def function(x, y):
    v = None if x.ndim == 5 else 1
    if (v := nxt(v)) is None:
        if v is None:
            LIST.append(x * 2)
    return x * 2
# -- an assignment in a test of a loop
def nxt(v):
    return 1 if v is None else None
def function(x, y):
    v = None if x.ndim == 5 else 1
    while (v := nxt(v)) is None:
        if v is None:
            LIST.append(x * 2)
        v = None
    return x * 2
# -- two functions of one definition
def factory(target):
    def outer(x):
        def inner():
            return target
        return inner()
    return outer
one, other = factory(()), factory(LIST)
def function(x, y):
    one(x)
    try:
        other(x).append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- two functions inside of one definition
def factory(target):
    def outer(x):
        return lambda: target
    return outer
one, other = factory(3), factory(O1)
def function(x, y):
    w = x * 2
    for each in (one(x), other(x)):
        v = each()
        if not isinstance(v, int):
            v[:] = 4.0
    return w
# -- the type asked for by a function that tells it otherwise
def tag(x, box):
    if type(x) is np.ndarray:
        box.append(1)
    else:
        box.append(2)
def function(x, y):
    box = []
    tag(x, box)
    return x * box[0]
# -- the type asked for, and written into an array
def tag(x, into):
    into[0] = 1.0 if type(x) is np.ndarray else 2.0
def function(x, y):
    into = np.zeros(3)
    tag(x, into)
    return x * into[0]
# -- the type of a type
def function(x, y):
    kind = type(type(x.shape[0]))
    return kind(x) is np.ndarray, x * 2
# -- the class of an array
def function(x, y):
    return x.__class__, x * 2
# -- the class of a number
def function(x, y):
    return x.sum().__class__.__name__, x * 2
# -- a value sent to a generator
def gives():
    v = yield
    v[:] = 4.0
    yield
def function(x, y):
    w = x * 2 + O1
    g = gives()
    next(g)
    g.send(O1)
    return w
# -- an error thrown into a generator
def gives():
    try:
        yield 1
    except ValueError as error:
        yield error.args[0]
def function(x, y):
    g = gives()
    next(g)
    v = g.throw(ValueError(O1))
    w = x * 2 + O1
    v[:] = 5.0
    return w
# -- a list set by its own method
def function(x, y):
    held = [x]
    held.__setitem__(0, O1)
    w = x * 2
    held[0][:] = 3.0
    return w
# -- a list that is initialised again
def function(x, y):
    held = [1]
    held.__init__([2])
    if held[0] == 2:
        LIST.append(x * 2)
    return x * 2
# -- a list added to by its method
def function(x, y):
    held = [1]
    held.__iadd__([2])
    for each in held:
        if each == 2:
            LIST.append(x * 2)
    return x * 2
# -- a set that is updated
def function(x, y):
    held = {1}
    held.update([2])
    for each in held:
        if each == 2:
            LIST.append(x * 2)
    return x * 2
# -- a set that is updated by a difference
def function(x, y):
    held = {1}
    held.symmetric_difference_update([2])
    for each in held:
        if each == 2:
            LIST.append(x * 2)
    return x * 2
# -- a dict set by its own method
def function(x, y):
    held = {"k": 1}
    held.__setitem__("k", 2)
    if held["k"] == 2:
        LIST.append(x * 2)
    return x * 2
# -- a dict made of keys
def function(x, y):
    held = {"k": 1}
    other = held.fromkeys(["k"], O1)
    w = x * 2
    other["k"][:] = 3.0
    return w
# -- a dict whose values are looked at later
def function(x, y):
    options = dict(a=1)
    later = options.values()
    options["b"] = LIST
    for each in later:
        if each != 1:
            each.append(x * 2)
    return x * 2
# -- keywords whose items are looked at later
def inner(x, **options):
    later = options.items()
    options["b"] = O1
    w = x * 2
    for name, each in later:
        if name == "b":
            each[:] = 3.0
    return w
def function(x, y):
    return inner(x, a=1)
# -- in place on one of two
def function(x, y):
    v = [] if x.ndim == 5 else O1
    w = x * 2 + O1
    v += [1.0]
    return w
# -- in place on one of two lists
def function(x, y):
    v = [] if x.ndim == 5 else LIST
    v += [x * 2]
    return x * 2
# -- a descriptor that has what the dict has
class Described:
    def __get__(self, instance, owner):
        O1[:] = 7.0
        return instance.__dict__["v"]
    def __set__(self, instance, value):
        instance.__dict__["v"] = value
class Has:
    v = Described()
HAS = Has()
HAS.v = 2.0
def function(x, y):
    w = x * 2
    return w * HAS.v
# -- a property of another class
class Odd(property):
    def __get__(self, instance, owner=None):
        O1[:] = 7.0
        return 3.0
class Has:
    @Odd
    def v(self):
        return 2.0
HAS = Has()
def function(x, y):
    w = x * 2
    return w * HAS.v
# -- a static method of another class
class Odd(staticmethod):
    def __get__(self, instance, owner=None):
        return keep
class Has:
    @Odd
    def v(x):
        return x
HAS = Has()
def function(x, y):
    return HAS.v(x * 2)
# -- a class method of another class
class Odd(classmethod):
    def __get__(self, instance, owner=None):
        return keep
class Has:
    @Odd
    def v(cls, x):
        return x
HAS = Has()
def function(x, y):
    return HAS.v(x * 2)
# -- a module that is none
class Module(types.ModuleType):
    def __getattribute__(self, name):
        return keep if name == "plain" else super().__getattribute__(name)
module = Module("module")
module.plain = same
def function(x, y):
    return module.plain(x * 2)
# -- a property of a module
class Module(types.ModuleType):
    @property
    def plain(self):
        O1[:] = 3.0
        return 2.0
module = Module("module")
vars(module)["plain"] = 2.0
def function(x, y):
    w = x * 2
    return w * module.plain
# -- a number that can be iterated over
class Odd(int):
    def __iter__(self):
        return iter([1])
    def __getitem__(self, index):
        return 2
ODD = Odd(3)
def function(x, y):
    try:
        for each in ODD:
            LIST.append(x * 2)
    except TypeError:
        pass
    return x * 2
# -- a number with elements
class Odd(int):
    def __getitem__(self, index):
        return 2
ODD = Odd(3)
def function(x, y):
    try:
        n = ODD[0]
        LIST.append(x * n)
    except TypeError:
        pass
    return x * 2
# -- a text that is iterated over by code
class Odd(str):
    def __iter__(self):
        O1[:] = 3.0
        return iter("ab")
    def __getitem__(self, index):
        O1[:] = 3.0
        return "a"
ODD = Odd("ab")
def function(x, y):
    w = x * 2
    for each in ODD:
        w = w + len(each)
    return w
# -- a text whose elements are code
class Odd(str):
    def __getitem__(self, index):
        O1[:] = 3.0
        return "a"
ODD = Odd("ab")
def function(x, y):
    w = x * 2
    n = ODD[0]
    return w * len(n)
# -- keywords of a dict with code
class Odd(dict):
    def __iter__(self):
        O1[:] = 3.0
        return super().__iter__()
    def keys(self):
        return list(dict.keys(self))
    def __getitem__(self, name):
        O1[:] = 4.0
        return 2.0
ODD = Odd(by=1.0)
def scaled(x, by):
    return x * by
def function(x, y):
    w = x * 2
    return scaled(w, **ODD)
# -- an error that was there before
ERROR = ValueError("always this one")
def function(x, y):
    w = x * 2
    try:
        raise ERROR
    except ValueError:
        pass
    return w
# -- an error that was there before and is raised
ERROR = ValueError("always this one")
def function(x, y):
    w = x * 2
    if w.sum() > -1e300:
        raise ERROR
    return w
# -- an error that is the cause of another
ERROR = ValueError("always this one")
def function(x, y):
    w = x * 2
    try:
        raise KeyError(w) from ERROR
    except KeyError:
        pass
    return w
# -- an error with an array as context
def function(x, y):
    w = x * 2
    try:
        raise ValueError(w)
    except ValueError:
        raise KeyError("second")
# -- an error with an array as cause
def function(x, y):
    w = x * 2
    raise KeyError("second") from ValueError(w, [w + 1])
# -- an error in a list in an error
def function(x, y):
    raise ValueError([x * 2, (y, {"k": x})])
# -- an error of exit
def function(x, y):
    if x.sum() > -1e300:
        raise SystemExit(x * 2)
    return x
# -- what an error says of a call
def function(x, y):
    try:
        return x()
    except TypeError as error:
        return str(error)
# -- what an error says that nobody catches
def function(x, y):
    w = x * 2
    return w()
# -- what an error says of an attribute
def function(x, y):
    try:
        return (x * 2).nothing
    except AttributeError as error:
        return str(error), error.args
# -- what an error says of an attribute that nobody catches
def function(x, y):
    return (x * 2).nothing
# -- a length of a number
def function(x, y):
    return len(x.sum())
# -- elements of a number
def function(x, y):
    return [each for each in x.sum()]
# -- an item of a number
def function(x, y):
    return x.sum()[0]
# -- a hash of an array
def function(x, y):
    return hash(x * 2)
# -- an array as a key
def function(x, y):
    return {x * 2: 1}
# -- an array in a set
def function(x, y):
    return {1, x}
# -- rounding an array
def function(x, y):
    return round(x * 2)
# -- rounding a number
def function(x, y):
    return round(x.sum(), 2), round(x.sum()), type(round(x.mean())).__name__
# -- the next of an array
def function(x, y):
    return next(x)
# -- an element deleted
def function(x, y):
    del (x * 2)[0]
    return x
# -- an element deleted of an argument
def function(x, y):
    del x[0]
    return x
# -- entering an array
def function(x, y):
    with x * 2 as v:
        return v
# -- formats of arrays
def function(x, y):
    return f"{x.sum():.3f} {x[:2]} {x.mean()!r} {x[0]!s:>30}", "%s %r" % (x[:2], y.sum()), "{0:.2f}".format(x.sum())
# -- a format that no array has
def function(x, y):
    return f"{x:.2f}"
# -- an array as an index
def function(x, y):
    return [1, 2, 3][(x * 0).astype(int)[0]], "abc"[np.argmin(np.abs(x)) * 0], (1, 2)[x.astype(int).sum() * 0]
# -- an array as an index that it cannot be
def function(x, y):
    return [1, 2, 3][x]
# -- a range of an array
def function(x, y):
    return list(range(x.astype(int)[0] * 0 + 2)), range(np.argmax(x * 0) + 1)
# -- a range of what is none
def function(x, y):
    return range(x.sum())
# -- texts of arrays
def function(x, y):
    return ",".join([x])
# -- joined texts
def function(x, y):
    return "a" + x
# -- unpacking an array as keywords
def function(x, y):
    return dict(**x)
# -- an array as a class
def function(x, y):
    return isinstance(3, x)
# -- arrays sorted by themselves
def function(x, y):
    return sorted([x, y])
# -- numbers sorted
def function(x, y):
    return sorted([x.sum(), y.sum(), 3.0]), max(x.sum(), y.sum()), min([x.mean(), y.mean()])
# -- a product of Python's
def function(x, y):
    return Plain(math.prod([x, y]))
# -- a product that is kept in an object
def function(x, y):
    held = Plain()
    held.x = math.prod([x, x], start=2.0)
    return held
# -- a comparison with an array from outside
def function(x, y):
    v = O1 > 3
    if isinstance(v, np.ndarray):
        LIST.append(x * 2)
    return x * 2
# -- a comparison of an array that is made
def function(x, y):
    v = np.zeros(3) == 0
    if not isinstance(v, bool):
        LIST.append(x * 2)
    return x * 2
# -- a comparison of what may be one
def function(x, y):
    v = np.where(True, 1, 2) < 3
    if hasattr(v, "sum"):
        LIST.append(x * 2)
    return x * 2
# -- a named tuple of NumPy's
def function(x, y):
    found = np.linalg.eigh(np.outer(x[:4], x[:4]))
    vectors = getattr(found, "eigenvectors", None)
    if vectors is not None:
        LIST.append(x * 2)
    return x * 2
# -- a named tuple of NumPy's by its class
Result = type(np.linalg.eigh(np.eye(2)))
def function(x, y):
    found = np.linalg.eigh(np.outer(x[:4], x[:4]))
    if isinstance(found, Result):
        LIST.append(x * 2)
    return x * 2
# -- steps of linspace
def function(x, y):
    v = np.linspace(0, 1, 5, retstep=True)
    if isinstance(v, tuple):
        LIST.append(x * 2)
    return x * 2
# -- a bin of a number
def function(x, y):
    v = np.digitize(0.5, [0.0, 1.0])
    if not isinstance(v, np.ndarray):
        LIST.append(x * 2)
    return x * 2
# -- no difference
def function(x, y):
    held = [1]
    v = np.diff(held, n=0)
    v.append(LIST)
    try:
        held[1].append(x * 2)
    except AttributeError:
        pass
    return x * 2
# -- flags of an array by their class
Flags = type(O1.flags)
def function(x, y):
    if isinstance(x.flags, Flags):
        LIST.append(x * 2)
    return x * 2
# -- an array of objects by their type
def function(x, y):
    held = np.empty(3, np.object_)
    held[0] = x * 2
    return held[1:]
# -- an array of objects by a text
def function(x, y):
    held = np.empty(3, "|O")
    held[0] = x * 2
    return held[1:]
# -- an array of objects by a dtype
OBJECT = np.dtype(object)
def function(x, y):
    held = np.empty(3, OBJECT)
    held[0] = x * 2
    return held[1:], held.T[:1]
# -- an array of objects by a conversion
def function(x, y):
    held = np.zeros(3).astype("O")
    held[0] = x * 2
    return held.reshape(3, 1)[1:]
# -- an array of objects like another
def function(x, y):
    held = np.zeros_like([1, None, 2])
    held[0] = x * 2
    return held[1:]
# -- an array of objects of numbers too large
def function(x, y):
    held = np.array([1, 2, 10**30])
    held[0] = x * 2
    return held[1:]
# -- an array of None
def function(x, y):
    held = np.array([None, None])
    held[0] = x * 2
    return held[1:]
# -- an array of numbers among which one waits
def function(x, y):
    held = np.array([None, x.sum()])
    return held, type(held[1]).__name__
# -- a full array of None
def function(x, y):
    held = np.full(3, None)
    held[0] = x * 2
    return held[1:]
# -- a named tuple that is none
class Odd(tuple):
    __slots__ = ()
    _fields = ("a",)
    def __new__(cls, a):
        LIST.append(a)
        return tuple.__new__(cls, (a,))
def function(x, y):
    return Odd(x * 2)[0]
# -- a named tuple with another way to be shown
Pair = collections.namedtuple("Pair", "a b")
def shown(self):
    LIST.append(self.a)
    return "pair"
Pair.__repr__ = shown
def function(x, y):
    n = f"{Pair(x * 2, y)}"
    return x * 2
# -- a named tuple whose field is code
Pair = collections.namedtuple("Pair", "a b")
Pair.a = property(lambda self: keep(self[1]))
def function(x, y):
    return Pair(x * 2, y * 3).a
# -- a named tuple that is returned
Pair = collections.namedtuple("Pair", "a b")
def function(x, y):
    return Pair(x * 2, [y]), Pair(x, x)._replace(a=3)
# -- builtins of its own
space = {"__builtins__": {"len": lambda v: LIST.append(v) or 3}, "__name__": "odd"}
same_len = eval("lambda v: len(v)", space)
def function(x, y):
    return x * same_len(x)
# -- code with other arguments
def swapped(a, b):
    return a
swapped.__code__ = swapped.__code__.replace(co_argcount=1, co_kwonlyargcount=1)
swapped.__kwdefaults__ = {"b": 3}
def function(x, y):
    try:
        swapped(x, y)
    except TypeError:
        LIST.append(x * 2)
    return x * 2
# -- filters that are changed by a function
def hides():
    warnings.simplefilter("ignore")
def function(x, y):
    with warnings.catch_warnings():
        hides()
    hides()
    with np.errstate(all="warn"):
        return np.log(x - 10)
# -- a class with a finalizer
class Final:
    def __init__(self, x):
        self.x = x
    def __del__(self):
        LIST.append(float(self.x.sum()))
        O1[:] = 2.0
def function(x, y):
    held = Final(x * 2)
    return x + O1
# -- a class that gets a finalizer later
class Final:
    def __init__(self, x):
        self.x = x
def finish(self):
    LIST.append(self.x)
def between(n):
    if n == 2:
        Final.__del__ = finish
def function(x, y):
    held = Final(x * 2)
    return x + 1
# -- a class that sets attributes by code later
def sets(self, name, value):
    LIST.append(value)
def between(n):
    if n == 2:
        Plain.__setattr__ = sets
def function(x, y):
    held = Plain(x * 2)
    return x + 1
# -- an object that gets an attribute of its own later
class Has:
    def scaled(self, x):
        return x * 2
HAS = Has()
def between(n):
    if n == 2:
        HAS.scaled = keep
def function(x, y):
    return HAS.scaled(x + 1)
# -- an object of another class later
class Has:
    def scaled(self, x):
        return x * 2
class Other:
    def scaled(self, x):
        return keep(x)
HAS = Has()
def between(n):
    if n == 2:
        HAS.__class__ = Other
def function(x, y):
    return HAS.scaled(x + 1)
# -- an attribute of a class that is another later
def between(n):
    if n == 2:
        Plain.factor = LIST
def function(x, y):
    f = INSTANCE.factor
    if isinstance(f, list):
        f.append(x * 2)
        return x
    return x * f
# -- defaults that are others later
def scaled(x, *, into=None):
    if into is not None:
        into.append(x * 2)
    return x
def between(n):
    if n == 2:
        scaled.__kwdefaults__["into"] = LIST
def function(x, y):
    return scaled(x * 2)
scaled.__kwdefaults__ = {"into": None}
# -- a global that is another later
SCALE = 2.0
def between(n):
    global SCALE
    SCALE = [2.0, np.full(SIZE, 3.0), 4, LIST, keep][n % 5] if n < 5 else 2.0
def function(x, y):
    if isinstance(SCALE, list):
        SCALE.append(x * 2)
        return x
    return SCALE(x) if callable(SCALE) else x * SCALE
# -- a list that is another later
def between(n):
    if n == 3:
        NUMBERS.append(keep)
def function(x, y):
    for each in NUMBERS:
        x = each(x) if callable(each) else x * each
    return x
# -- a dict that is another later
def between(n):
    NAMED["f"] = keep if n == 3 else same
def function(x, y):
    return NAMED["f"](x * 2)
# -- a closure that is another later
def outer():
    v = same
    def change(n):
        nonlocal v
        if n == 3:
            v = keep
    def function(x, y):
        return v(x * 2)
    return change, function
between, function = outer()
# -- a function of NumPy that is another later
FMAX = np.fmax
def between(n):
    np.fmax = (lambda a, b: keep(a * b)) if n == 2 else FMAX
def function(x, y):
    return np.fmax(x, y) if x.sum() > -1e300 else x
# -- a function inside that is another later
def helper(x):
    return x * 2
def between(n):
    if n == 3:
        helper.__code__ = keep.__code__
def function(x, y):
    return helper(x + 1)
# -- an argument that is an array from outside
def function(x, y):
    return (x is O1, y is O2, x * 2)
# -- an argument in a list from outside
def function(x, y):
    try:
        return any(each is x for each in ARRAYS), x in ARRAYS
    except ValueError:
        return "no"
# -- a write to what may be an argument
def function(x, y):
    w = x * 2
    v = y
    v[:] = 1.0
    return w, x + O1
# -- writes to arguments that may be one
def function(x, y):
    w = x * 2 + y
    x += 1
    u = y * 3
    y[::2] = 5.0
    return w, u, x - y
# -- a view of an argument that is written to
def function(x, y):
    w = x * 2
    v = x[::2]
    v *= 3
    u = x + 1
    v[:1] = 9.0
    return w, u, x * 1, v
# -- views by other ways that are written to
def function(x, y):
    w = x * 2
    for v in (x.reshape(-1), np.ravel(x), x.T, np.asarray(x), x.view(), np.atleast_1d(x), np.split(x, 1)[0]):
        u = x + 1
        v[1] = u[2] + 1
        w = w + u + x
    return w
# -- a callback that writes to a view
def function(x, y):
    held = []
    def back(v):
        held.append(x * 2)
        v[:] = 0.0
        return 0.0
    np.apply_along_axis(back, 0, x)
    return held[0], x + 1
# -- a callback that gets elements by a C function
def function(x, y):
    held = []
    def back(v, w):
        held.append(x * 2 + w)
        x[1] = 4.0
        return w
    functools.reduce(back, [x, y, x])
    return held
# -- a flat iterator that is written to
def function(x, y):
    w = x * 2
    f = x.flat
    f[1:3] = 7.0
    u = x + 1
    f[0] = 3.0
    return w, u, x * 1
# -- a transposed view of an argument that is sorted
def function(x, y):
    w = x * 2
    v = x[::-1]
    v.sort()
    return w, x + 0
# -- out of a call into an argument
def function(x, y):
    w = y * 2
    np.add(x, 1, out=y)
    np.multiply(y, 2, y)
    np.cumsum(x, out=y)
    return w + y
# -- out of a call into a view
def function(x, y):
    w = x * 2
    np.add(x[1:], 1, out=x[:-1])
    return w, x + 0
# -- at of a ufunc
def function(x, y):
    w = x * 2
    np.add.at(x, [0, 0, 1], 1.0)
    return w, x * 1
# -- at of a ufunc into an array from outside
def function(x, y):
    w = x * 2 + O1
    np.add.at(O1, [0, 0, 1], 1.0)
    return w
# -- a ufunc with several results into arrays from outside
def function(x, y):
    w = x * 2 + O1
    np.divmod(x, 2.0, O1, O2)
    return w
# -- where of a ufunc with out
def function(x, y):
    w = np.zeros_like(x)
    np.add(x, 1, out=w, where=x > 0)
    u = w * 2
    np.multiply(w, 3, out=w, where=w > 1)
    return u, w
# -- a frame
import sys
def function(x, y):
    LIST.append(sys._getframe())
    return x * 2
# -- locals
def function(x, y):
    w = x * 2
    return locals()
# -- variables of an object
def function(x, y):
    held = Plain(x * 2)
    vars(held)["x"] = x
    return vars(held)
# -- a weak reference
import weakref
def function(x, y):
    w = x * 2
    LIST.append(weakref.ref(w))
    return w
# -- a memory view
def function(x, y):
    w = x * 2
    memoryview(x)[0] = 3.0
    return w, x * 1
# -- the buffer of an array
def function(x, y):
    w = x * 2
    x.data[0] = 3.0
    return w, x * 1
# -- an array of a buffer
def function(x, y):
    w = x * 2
    v = np.frombuffer(x)
    return w, v
# -- the interface of an array
def function(x, y):
    w = x * 2
    return x.__array_interface__["shape"], w
# -- an array by dlpack
def function(x, y):
    w = x * 2
    v = np.from_dlpack(x)
    return w, v
# -- an iterator of NumPy
def function(x, y):
    w = x * 2
    for each in np.nditer(x, op_flags=[["readwrite"]]):
        each[...] = 3.0
    return w, x * 1
# -- vectorized
def function(x, y):
    return np.vectorize(lambda v: LIST.append(v) or 3.0)(x)
# -- a class inside
def function(x, y):
    class Inner:
        held = x * 2
    LIST.append(Inner)
    return x * 2
# -- an asynchronous function
async def later(x):
    LIST.append(x)
def function(x, y):
    LIST.append(later(x))
    return x * 2
LIST.clear()
# -- a coroutine that is run
async def later(x):
    return keep(x * 2)
def function(x, y):
    try:
        later(x).send(None)
    except StopIteration as done:
        return done.value
# -- a generator that is left open
def gives(x):
    try:
        yield x * 2
    finally:
        LIST.append(x)
def function(x, y):
    return next(gives(x))
# -- a generator with an array from outside
def gives():
    yield O1
def function(x, y):
    w = x * 2 + O1
    for each in gives():
        each += 1
    return w
# -- a generator of what is set later
def function(x, y):
    def gives():
        into.append(x * 2)
        yield 1
    g = gives()
    into = LIST
    for each in g:
        pass
    return x
# -- a context manager that keeps
@contextlib.contextmanager
def keeping(x):
    yield x
    LIST.append(x)
def function(x, y):
    with keeping(x * 2) as v:
        return v
# -- a context manager that writes when it is left
@contextlib.contextmanager
def writing(x):
    before = x[:2].copy()
    x[:2] = 0.0
    try:
        yield x * 3
    finally:
        x[:2] = before
def function(x, y):
    with writing(x) as v:
        w = x * 2
    return v, w, x * 1
# -- a class of contexts
class Context:
    def __init__(self, x):
        self.x = x
    def __enter__(self):
        return self.x
    def __exit__(self, *error):
        LIST.append(self.x)
        return True
def function(x, y):
    with Context(x * 2) as v:
        return v
# -- closing
class Closing:
    def close(self):
        O1[:] = 3.0
CLOSING = Closing()
def function(x, y):
    w = x * 2 + O1
    with contextlib.closing(CLOSING):
        return w
# -- a stack of contexts
def function(x, y):
    with contextlib.ExitStack() as stack:
        stack.callback(LIST.append, x * 2)
        return x * 3
# -- a function with an attribute
def counted(x):
    counted.last = x * 2
    return x
def function(x, y):
    return counted(x) * 2
# -- a default that is a list
def remembered(x, seen=[]):
    seen.append(x)
    return len(seen)
def function(x, y):
    return x * remembered(x)
# -- a decorator that remembers
def remembering(f):
    def inner(*given, **named):
        LIST.append((given, named))
        return f(*given, **named)
    return inner
@remembering
def scaled(x, by=2):
    return x * by
def function(x, y):
    return scaled(x, by=3)
# -- a cache inside
def function(x, y):
    @functools.lru_cache
    def cached(n):
        return x * n
    return cached(2) + cached(2)
# -- a cached function that gives an array
@functools.lru_cache
def table(n):
    return np.arange(float(n))
def function(x, y):
    w = table(SIZE)
    return w, x * w
# -- a cached function whose array is written to
@functools.lru_cache
def table(n):
    return np.arange(float(n))
def function(x, y):
    w = table(SIZE)
    u = x + w
    w += 1
    return u
# -- a cached function that wraps another
@functools.lru_cache
def table(n):
    return keep(n)
table.__wrapped__ = same
def function(x, y):
    table(3)
    return x * 2
# -- a property that is cached
class Has:
    def __init__(self, x):
        self.x = x
    @functools.cached_property
    def twice(self):
        return self.x * 2
def function(x, y):
    held = Has(x)
    return held.twice + held.twice
# -- a dispatch by type
@functools.singledispatch
def shown(x):
    return "object"
@shown.register(np.ndarray)
def _(x):
    return "array"
def function(x, y):
    return shown(x * 2), x * 2
# -- a partial of an array from outside
into = functools.partial(np.add, out=O1)
def function(x, y):
    w = x * 2 + O1
    into(x, 1)
    return w
# -- star arguments into an array from outside
def function(x, y):
    given = [x, 1, O1]
    w = x * 2 + O1
    np.add(*given)
    return w
# -- keywords into an array from outside
def function(x, y):
    options = {}
    options["out"] = O1
    w = x * 2 + O1
    np.add(x, 1, **options)
    return w
# -- an operand with operators of its own
class Odd:
    __array_ufunc__ = None
    def __radd__(self, other):
        LIST.append(other)
        return 3.0
    __add__ = __radd__
ODD = Odd()
def function(x, y):
    return x * 2 + ODD
# -- an operand that NumPy asks
class Odd:
    def __array_ufunc__(self, ufunc, method, *given, **named):
        LIST.append(given)
        return 3.0
    def __array_function__(self, function, kinds, given, named):
        LIST.append(given)
        return 4.0
ODD = Odd()
def function(x, y):
    return np.add(x * 2, ODD), np.concatenate([x, ODD])
# -- an operand that is converted by code
class Odd:
    def __array__(self, dtype=None, copy=None):
        O1[:] = 3.0
        return np.ones(SIZE)
ODD = Odd()
def function(x, y):
    w = x * 2 + O1
    return w + np.asarray(ODD)
# -- an index with code
class Odd:
    def __index__(self):
        O1[:] = 3.0
        return 1
ODD = Odd()
def function(x, y):
    w = x * 2
    return w[ODD], w
# -- a float with code
class Odd(float):
    def __rmul__(self, other):
        LIST.append(other)
        return other
    def __float__(self):
        O1[:] = 3.0
        return 2.0
ODD = Odd(2.0)
def function(x, y):
    return x * 2 * ODD
# -- a float of another class as an argument of a call
class Odd(float):
    def __array__(self, dtype=None, copy=None):
        O1[:] = 3.0
        return np.ones(SIZE)
ODD = Odd(2.0)
def function(x, y):
    w = x * 2
    return np.add(w, ODD), w
# -- a class that is compared
class Odd:
    def __eq__(self, other):
        O1[:] = 3.0
        return True
    def __hash__(self):
        return 3
ODD = Odd()
def function(x, y):
    w = x * 2 + O1
    return w if ODD == 3 else x
# -- a class in a tuple that is compared
class Odd:
    def __eq__(self, other):
        O1[:] = 3.0
        return True
ODD = (Odd(), 3)
def function(x, y):
    w = x * 2 + O1
    return w if 3 in ODD else x
# -- a metaclass that answers
class Meta(type):
    def __instancecheck__(cls, instance):
        LIST.append(instance)
        return True
class Odd(metaclass=Meta):
    pass
def function(x, y):
    return isinstance(x * 2, Odd), x
# -- an abstract class that answers
import abc
class Odd(abc.ABC):
    @classmethod
    def __subclasshook__(cls, kind):
        return kind is np.ndarray
def function(x, y):
    return isinstance(x * 2, Odd), x
# -- a protocol
@typing.runtime_checkable
class Odd(typing.Protocol):
    def __iter__(self): ...
def function(x, y):
    return isinstance(x.sum(), Odd), x * 2
# -- a class that is called
class Odd:
    def __call__(self, x):
        return keep(x)
ODD = Odd()
def function(x, y):
    return ODD(x * 2)
# -- a class whose objects are made by code
class Odd:
    def __new__(cls, x):
        LIST.append(x)
        return object.__new__(cls)
def function(x, y):
    Odd(x * 2)
    return x * 2
# -- a class with slots
class Slots:
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
def function(x, y):
    held = Slots(x * 2)
    return held.x + 1
# -- a class with slots that is returned
class Slots:
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
def function(x, y):
    return Slots(x * 2)
# -- a data class
import dataclasses, sys
sys.modules.setdefault("hostile", types.ModuleType("hostile"))
@dataclasses.dataclass
class Data:
    x: object
def function(x, y):
    return Data(x * 2)
# -- an object with arrays that is returned
def function(x, y):
    return Plain([x * 2])
# -- an object in a list that is returned
def function(x, y):
    return [Plain(x), {"k": (Plain(1),)}]
# -- a comparison of objects that are made
class Ordered(Plain):
    def __lt__(self, other):
        LIST.append(self.x)
        return True
def function(x, y):
    return sorted([Ordered(1), Ordered(2)])[0].x * x
# -- a truth of an object that is made
class Truth(Plain):
    def __len__(self):
        LIST.append(self.x)
        return 3
def function(x, y):
    return x * 2 if Truth(x) else x
# -- a method that is replaced in an object
def function(x, y):
    held = Plain(x)
    held.total = keep
    return held.total(x * 2)
# -- a method that is taken
def function(x, y):
    f = LIST.append
    for each in (x, y):
        f(each * 2)
    return x * 2
# -- a method by map
def function(x, y):
    list(map(LIST.append, [x * 2, y]))
    return x * 2
# -- a method as a key
def function(x, y):
    sorted([1, 2], key=LIST.append)
    return x * 2
# -- a method of a type
def function(x, y):
    list.append(LIST, x * 2)
    return x * 2
# -- a method of a type of NumPy's
def function(x, y):
    w = x * 2 + O1
    np.ndarray.fill(O1, 3.0)
    np.ndarray.__setitem__(O1, 0, 3.0)
    return w
# -- a method of an array by getattr
def function(x, y):
    w = x * 2 + O1
    for name in ("fill", "sort"):
        getattr(O1, name)(*([3.0] if name == "fill" else []))
    return w
# -- a method caller
def function(x, y):
    w = x * 2 + O1
    operator.methodcaller("fill", 3.0)(O1)
    return w
# -- an item setter
def function(x, y):
    w = x * 2 + O1
    operator.setitem(O1, 0, 3.0)
    operator.iadd(O1, 1)
    return w
# -- in place by a name of an element
def function(x, y):
    w = x * 2 + ARRAYS[0]
    ARRAYS[0] += 1
    return w
# -- in place by a loop
def function(x, y):
    w = x * 2 + ARRAYS[0]
    for each in ARRAYS:
        each *= 2
    return w
# -- in place by an attribute
def function(x, y):
    INSTANCE.x += 1
    return x * INSTANCE.x
# -- unpacked into a list from outside
def function(x, y):
    NUMBERS[0], NUMBERS[1] = x[0], 3
    return x * 2
# -- a loop variable in a list from outside
def function(x, y):
    for NUMBERS[0] in (1, 2, 3):
        pass
    return x * 2
# -- an import of what is not there yet
def function(x, y):
    import this_module_is_not_there
    return x
# -- an import by name
def function(x, y):
    m = __import__("gc")
    LIST.append(len(m.get_objects()) > 0)
    return x * 2
# -- an evaluation
def function(x, y):
    return eval("keep(x * 2)")
# -- an execution
def function(x, y):
    exec("LIST.append(x)")
    return x * 2
# -- globals
def function(x, y):
    globals()["LIST"].append(x * 2)
    return x * 2
# -- a thread
import threading
def function(x, y):
    t = threading.Thread(target=LIST.append, args=(x * 2,))
    t.start()
    t.join()
    return x * 2
# -- a variable of a context
import contextvars
VAR = contextvars.ContextVar("var")
def function(x, y):
    VAR.set(x * 2)
    return x * 2
def between(n):
    LIST.append(VAR.get(None))
# -- a copy of an array by copy
import copy
def function(x, y):
    return copy.copy(x * 2), copy.deepcopy([x, y])
# -- pickled
import pickle
def function(x, y):
    return pickle.dumps((x[:3] * 2, x.sum())), x * 2
# -- text in memory
import io
OUT = io.StringIO()
def function(x, y):
    OUT.write(str((x * 2)[:2]))
    return x * 2
def between(n):
    LIST.append(OUT.getvalue())
# -- printed
def function(x, y):
    w = np.log(x - 100)
    print("between", w[:2])
    return w
# -- warned with a text of an array
def function(x, y):
    w = np.log(x - 100)
    warnings.warn(f"sum {x.sum():.3f}")
    return w + np.sqrt(x - 100)
# -- warned by what is recorded
def function(x, y):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        w = np.log(x - 100)
    return len(heard), [str(each.message) for each in heard], w
# -- warned where errors are raised
def function(x, y):
    with np.errstate(all="raise"):
        try:
            w = np.log(x - 100)
        except FloatingPointError as error:
            return "raised", x * 2
    return w
# -- modes that are left set
def function(x, y):
    before = np.seterr(all="ignore")
    w = np.log(x - 100)
    np.seterr(**before)
    return w, np.sqrt(x - 100)
# -- a function that errors call
def function(x, y):
    with np.errstate(all="call", call=lambda *given: LIST.append(given)):
        return np.log(x - 100)
# -- random numbers
def function(x, y):
    np.random.seed(3)
    w = x + np.random.rand(SIZE)
    np.random.shuffle(w)
    return w, np.random.permutation(x), np.random.choice(x)
# -- random numbers that shuffle an argument
def function(x, y):
    np.random.seed(3)
    w = x * 2
    np.random.shuffle(x)
    return w, x + 0
# -- the same object in two places
def function(x, y):
    w = x * 2
    return [w, w], (w, {"k": w}), x, [x]
# -- what is shared by results
def function(x, y):
    w = x * 2
    return w, w[::2], w.reshape(-1, 1).T, x[1:], np.broadcast_to(x, (2, SIZE))
# -- a list within itself
def function(x, y):
    held = [x * 2]
    held.append(held)
    return held[0], len(held)
# -- an array that is read only
def function(x, y):
    w = x * 2
    w.setflags(write=False)
    try:
        w[0] = 3.0
    except ValueError as error:
        return "read only", w
    return w
# -- a view that is read only
def function(x, y):
    v = np.broadcast_to(x, (2, SIZE))
    try:
        v[0] = 3.0
    except ValueError:
        return "read only", v
    return v
# -- a shape that is set
def function(x, y):
    w = x * 2
    w.shape = (SIZE, 1)
    return w
# -- an array that is resized
def function(x, y):
    w = x * 2
    w.resize((3,), refcheck=False)
    return w
# -- structured
RECORDS = np.zeros(3, [("a", float), ("b", int)])
def function(x, y):
    w = x[:3] * 2 + RECORDS["a"]
    RECORDS["a"][0] = 4.0
    return w
# -- structured in the call
def function(x, y):
    held = np.zeros(3, [("a", float), ("b", int)])
    held["a"] = x[:3] * 2
    v = held["a"]
    held["a"][0] = 3.0
    return held, v * 2
# -- a masked array
def function(x, y):
    return np.ma.masked_array(x * 2, x > 0).sum()
# -- a matrix
def function(x, y):
    return np.matrix(x[:4].reshape(2, 2)) * 2
# -- a view as another class
class Sub(np.ndarray):
    def __array_finalize__(self, other):
        LIST.append(1)
def function(x, y):
    return (x * 2).view(Sub), x * 2
# -- an array of another class from outside
class Sub(np.ndarray):
    def __array_wrap__(self, *given):
        LIST.append(given)
        return given[0]
SUB = np.ones(SIZE).view(Sub)
def function(x, y):
    return x * 2 + SUB
# -- a test of numbers for identity
def function(x, y):
    n = x.sum()
    return n is x.sum(), n is n, (n,) == (n,), [x] == [x], x.T is x, np.asarray(x) is x
# -- nan that is compared by identity
def function(x, y):
    n = x.sum() * np.nan
    return [n] == [n], n in [n], (n, 1) == (n, 1), [n].count(n), {n: 1}.get(n), n == n
# -- numbers as keys
def function(x, y):
    held = {x.sum(): 1, float(y.sum()): 2}
    held[x.sum()] = 3
    return held[x.sum()], sorted(held.values()), x.sum() in held
# -- truth of numbers and arrays
def function(x, y):
    return bool(x.sum()), not x[0], x.any() and 1, 3 if x.max() else 4, (x > 0).all() or "none"
# -- truth of an array
def function(x, y):
    return 1 if x > 0 else 2
# -- integers that overflow
def function(x, y):
    n = x.astype(np.int8)
    return n * 100 + 27, np.add(n, 1, dtype=np.int32), n ** 2
# -- a class variable that is changed through an object
class Has:
    held = []
    def __init__(self, x):
        self.held.append(x * 2)
def function(x, y):
    Has(x)
    return x * 2
# -- an object that is known by its attribute
class Has:
    def __init__(self):
        self.into = LIST
def function(x, y):
    Has().into.append(x * 2)
    return x * 2
# -- an object in a dict from outside
def function(x, y):
    HOME["list"].append(x * 2)
    return x * 2
# -- an element of a tuple that is chosen
TUPLE = (LIST, [])
def function(x, y):
    TUPLE[x.ndim - 1].append(x * 2)
    return x * 2
# -- an iterator from outside
ITERATOR = iter([LIST] * 100)
def function(x, y):
    next(ITERATOR).append(x * 2)
    return x * 2
# -- a deque from outside
DEQUE = collections.deque(maxlen=3)
def function(x, y):
    DEQUE.append(x * 2)
    return x * 2
# -- a dict with defaults
DEFAULTS = collections.defaultdict(list)
def function(x, y):
    DEFAULTS["a"].append(x * 2)
    return x * 2
# -- a default of a dict in the call
def function(x, y):
    held = collections.defaultdict(list)
    held["a"].append(x * 2)
    return held["a"][0]
# -- a counter
def function(x, y):
    held = collections.Counter([x.sum(), y.sum()])
    return sorted(held.values()), x * 2
# -- a match
def function(x, y):
    match x.sum():
        case float():
            LIST.append(x * 2)
        case _:
            pass
    return x * 2
# -- a group of errors
def function(x, y):
    try:
        raise ExceptionGroup("g", [ValueError(x * 2)])
    except* ValueError as group:
        LIST.append(group)
    return x * 2
# -- deep recursion that keeps at its end
def down(x, n):
    if n == 0:
        LIST.append(x)
        return x
    return down(x * 1.5, n - 1)
def function(x, y):
    return down(x, 3)
# -- two functions that call each other
def even(x, n):
    return x if n == 0 else odd(x * 2, n - 1)
def odd(x, n):
    if n == 0:
        O1[:] = 3.0
    return x if n == 0 else even(x + O1, n - 1)
def function(x, y):
    return even(x, 3)
# -- a function in a variable of a loop
def function(x, y):
    held = []
    for n in (1, 2, 3):
        held.append(lambda v: v * n + x)
    return [each(y) for each in held]
# -- a function that sets a variable around
def function(x, y):
    last = None
    def scaled(v):
        nonlocal last
        last = v * 2
        return last
    w = scaled(x)
    u = last + 1
    scaled(y)
    return w, u, last
# -- a function that sets a variable that is an array from outside
def function(x, y):
    v = x * 1
    def change():
        nonlocal v
        v = O1
    w = x * 2 + O1
    change()
    v += 1
    return w
# -- a variable that is deleted and found outside
def function(x, y):
    w = x * 2
    del w
    try:
        return w
    except NameError:
        return x * 3
# -- a variable of a comprehension of the same name
def function(x, y):
    v = O1
    w = x * 2 + v
    n = [v * 2 for v in (x, y)]
    v[:] = 3.0
    return w, n
# -- a variable of a handler of the same name
def function(x, y):
    v = O1
    w = x * 2 + v
    try:
        raise KeyError(1)
    except KeyError as n:
        v[:] = 3.0
    return w
# -- a ufunc by starmap into an array from outside
def function(x, y):
    w = x * 2 + O1
    list(itertools.starmap(np.add, [(x, 1, O1)]))
    return w
# -- a ufunc along an axis into an array from outside
def function(x, y):
    w = x * 2 + O1
    np.apply_along_axis(np.negative, 0, x, O1)
    return w
# -- a metaclass with a property
class Meta(type):
    @property
    def factor(cls):
        O1[:] = 3.0
        return 2.0
class Odd(metaclass=Meta):
    pass
def function(x, y):
    w = x * 2 + O1
    return w * Odd.factor
# -- a property that hasattr asks
class Odd(Plain):
    @property
    def leaking(self):
        LIST.append(self.x)
        return 3
def function(x, y):
    held = Odd(x * 2)
    return x if hasattr(held, "leaking") else y
# -- a property from outside that hasattr asks
class Odd:
    @property
    def writing(self):
        O1[:] = 3.0
        return 3
ODD = Odd()
def function(x, y):
    w = x * 2 + O1
    return w if hasattr(ODD, "writing") else y
# -- a metaclass that answers issubclass
class Meta(type):
    def __subclasscheck__(cls, kind):
        O1[:] = 3.0
        return True
class Odd(metaclass=Meta):
    pass
def function(x, y):
    w = x * 2 + O1
    return w if issubclass(Plain, Odd) else y
# -- errors that are suppressed by code
class Meta(type):
    def __subclasscheck__(cls, kind):
        O1[:] = 3.0
        return True
class Odd(ValueError, metaclass=Meta):
    pass
def function(x, y):
    w = x * 2 + O1
    with contextlib.suppress(Odd):
        raise KeyError(1)
    return w
# -- an error of a second context that the first suppresses
def function(x, y):
    with contextlib.suppress(AttributeError), None.real:
        pass
    LIST.append(x * 2)
    return x * 2
# -- star arguments are a tuple
def inner(*given):
    if isinstance(given, tuple):
        LIST.append(given[0])
    return given[0]
def function(x, y):
    given = [x * 2, y]
    return inner(*given)
# -- a tuple of what is no data
def function(x, y):
    held = tuple([same, np.sin])
    if isinstance(held, tuple):
        LIST.append(x * 2)
    return held[1](x)
# -- a map by its class
def function(x, y):
    held = map(float, [1, 2])
    if isinstance(held, map):
        LIST.append(x * 2)
    return x * 2
# -- views of a dict by their class
def function(x, y):
    held = {"k": x}
    if isinstance(held.keys(), collections.abc.KeysView):
        LIST.append(x * 2)
    return x * 2
# -- the name of a type in a library
import textwrap, sys
def function(x, y):
    return shown(x * 2), x * 2
def shown(x):
    return type(x).__name__
# -- flags that are set
def function(x, y):
    w = x * 2
    v = w[1:]
    w.flags["WRITEABLE"] = False
    u = w + 1
    try:
        v[0] = 3.0
    except ValueError:
        return "no", w, u
    return w, v, u
# -- flags of an argument that are set
def function(x, y):
    w = x * 2
    before = x.flags.writeable
    x.flags.writeable = False
    try:
        x[0] = 3.0
    except ValueError:
        pass
    x.flags.writeable = before
    return w, x + 1
# -- a comparison of lists of arrays
def function(x, y):
    w = x * 2
    held = [w, y]
    return held == [w, y], held.index(w), held.count(w)
# -- an argument twice
def function(x, y):
    held = [x]
    try:
        return y in held, held.index(y)
    except ValueError:
        return "no"
# -- a write while a mask waits
def function(x, y):
    mask = x > 0.2
    v = x[mask]
    mask[:] = True
    x[mask] = 1.0
    w = v * 2
    return w, x + 0, mask
# -- a loop that writes to what waits
def function(x, y):
    w = np.zeros_like(x)
    for n in range(3):
        w[n] = x[n] * y[n]
        x[n] = w[n] + 1
        y = y + w
    return w, y, x * 1
# -- a swap of views
def function(x, y):
    w = x.copy()
    w[::2], w[1::2] = w[1::2], w[::2]
    a, b = x[:5], y[:5]
    a[:], b[:] = b, a
    return w, x + y
# -- an iteration with an early return
def function(x, y):
    v = x
    for n in range(50):
        new = (v + y / (np.abs(v) + 1)) / 2
        if np.abs(new - v).max() < 1e-3:
            return new, n
        v = new
    return v, None
# -- an error in the middle of an iteration
def function(x, y):
    v = np.zeros(3)
    try:
        for n in range(5):
            v = v + x[:3]
            x[n] = 5.0
            if n == 3:
                raise KeyError(n)
    except KeyError as error:
        return v, x + 1
    return v
# -- scipy that writes
import scipy.ndimage
def function(x, y):
    w = x * 2 + O1
    scipy.ndimage.gaussian_filter(x, 1.0, output=O1)
    return w
# -- scipy with a callback
import scipy.ndimage
def function(x, y):
    return scipy.ndimage.generic_filter(x, lambda v: keep(v).sum(), 3)
# -- scipy that writes over
import scipy.fft
def function(x, y):
    w = x * 2 + O1
    scipy.fft.fft(O1.astype(complex), overwrite_x=True)
    scipy.fft.dct(O1, overwrite_x=True)
    return w
# -- an optimiser that calls back
import scipy.optimize
def function(x, y):
    w = x * 2
    found = scipy.optimize.brentq(lambda v: float(v - 0.5 + 0 * x.sum()), -2.0, 2.0)
    return w * found
# -- an optimiser that keeps what it is given
import scipy.optimize
def function(x, y):
    return scipy.optimize.minimize(lambda v: float((v ** 2).sum()), x[:3]).x
# -- interpolation that keeps
import scipy.interpolate
def function(x, y):
    return scipy.interpolate.CubicSpline(np.arange(SIZE), x)
"""


def cases() -> dict[str, str]:
    """The text of each function, with its world, by name."""
    found: dict[str, str] = {}
    for each in CASES.split("\n# -- ")[1:]:
        name, _, text = each.partition("\n")
        assert name not in found, name
        found[name] = f"{text}\n"
    return found


_texts = 0


def _world(text: str, size: int) -> dict[str, Any]:
    """What the text defines, of which Python finds the source."""
    global _texts
    _texts += 1
    name = f"<hostile {_texts}>"
    whole = WORLD + text
    linecache.cache[name] = (len(whole), None, whole.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "hostile", "SIZE": size}
    exec(compile(whole, name, "exec"), space)
    return space


def _calls(space: dict[str, Any], size: int) -> Iterator[tuple[Any, Any]]:
    """Arguments of some calls: others each time, the same array twice, parts of one, and arrays from outside."""
    rows = np.random.default_rng(7)
    yield np.linspace(-2.0, 3.0, size), np.linspace(1.0, 2.0, size)
    yield rows.random(size), rows.random(size) - 0.5
    same = rows.random(size)
    yield same, same
    whole = rows.random(size + 3)
    yield whole[:size], whole[3:]
    yield whole[:size], whole[size - 1 :: -1]
    yield space["O1"], space["O2"]
    yield space["O2"], space["ARRAYS"][0]
    yield rows.random(size), rows.random(size)


class _Objects:
    """Values as what can be compared: arrays by elements, types, layout and which of them share memory."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._arrays: list[Any] = list(named.values())
        self._ids = {id(each): name for name, each in named.items()}
        self._keep: list[Any] = []

    def shown(self, value: Any, depth: int = 0) -> Any:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, bool | int | float | complex | str | bytes | np.generic | None):
            return (kind, repr(value))
        if id(value) in self._ids:
            return self._ids[id(value)]
        self._keep.append(value)
        self._ids[id(value)] = f"object {len(self._ids)}"
        if isinstance(value, np.ma.MaskedArray):
            return (kind, str(value.dtype), value.shape, value.data.tobytes(), np.ma.getmaskarray(value).tobytes())
        if isinstance(value, np.ndarray):
            shares = [np.shares_memory(value, each) for each in self._arrays if each.dtype == value.dtype]
            self._arrays.append(value)
            flags = (value.flags.writeable, value.flags.owndata, value.flags.c_contiguous, value.flags.f_contiguous)
            held = value.tobytes() if value.dtype != object else [self.shown(each, depth + 1) for each in value.flat]
            base = None if value.base is None else self.shown(value.base, depth + 1) if depth < 4 else ...
            return (kind, str(value.dtype), value.shape, value.strides, flags, held, shares, base)
        if depth > 6:
            return kind
        if isinstance(value, tuple | list | set | frozenset) or kind == "collections.deque":
            return (kind, [self.shown(each, depth + 1) for each in value])
        if isinstance(value, dict):
            return (kind, [(self.shown(key, depth + 1), self.shown(each, depth + 1)) for key, each in value.items()])
        if isinstance(value, BaseException):
            return self._error(value, depth)
        if isinstance(value, types.FrameType):
            return (kind, self.shown(dict(value.f_locals), depth + 1) if value.f_code.co_name != "<module>" else None)
        if isinstance(value, types.FunctionType):
            cells = [each.cell_contents for each in value.__closure__ or ()]
            seen = [value.__defaults__, value.__kwdefaults__, cells, {**vars(value), "__wrapped__": None}]
            return (kind, value.__qualname__, self.shown(seen, depth + 1))
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            return (kind, value.__name__, self.shown(getattr(value, "__self__", None), depth + 1))
        if isinstance(value, types.ModuleType):
            return kind
        if isinstance(value, type):
            if value.__module__ != "hostile":
                return (kind, value.__qualname__)
            names = {name: each for name, each in vars(value).items() if not name.startswith("__")}
            return (kind, value.__qualname__, self.shown(names, depth + 1))
        slots = {each: getattr(value, each, None) for each in getattr(type(value), "__slots__", ())}
        inside = {**getattr(value, "__dict__", {}), **slots}
        return (kind, self.shown(inside, depth + 1) if type(value).__module__ == "hostile" else None)

    def _error(self, error: BaseException, depth: int) -> Any:
        shown = [
            type(error).__qualname__, str(error), self.shown(error.args, depth + 1), getattr(error, "__notes__", None),
            None if error.__cause__ is None else self.shown(error.__cause__, depth + 1),
            None if error.__context__ is None else self.shown(error.__context__, depth + 1),
            self.shown(vars(error), depth + 1),
        ]  # fmt: skip
        frames = [
            (frame.f_code.co_name, line, {name: self.shown(each, depth + 1) for name, each in frame.f_locals.items()})
            for frame, line in traceback.walk_tb(error.__traceback__)
            # A script's calls of NumPy's functions have frames of their own, with the user's lines.
            if frame.f_code.co_filename.startswith("<hostile") and [*frame.f_locals] != ["function", "arguments"]
        ]
        return (shown, frames)


def _seen(space: dict[str, Any], call: Callable[..., Any], given: tuple[Any, Any]) -> Any:
    """All that can be seen of a call: what it returns or raises, prints, warns of, and leaves in its world."""
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as heard, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            value = call(*given)
        except BaseException as error:  # noqa: BLE001 - that is what it does
            value = error
    objects = _Objects({"x": given[0], **({"y": given[1]} if given[1] is not given[0] else {})})
    names = {name: each for name, each in space.items() if not name.startswith("__")}
    shown = (
        objects.shown(value),
        [(type(each).__qualname__, each.tobytes(), each.flags.writeable) for each in given],
        printed.getvalue(),
        [(str(each.message), each.category.__qualname__, each.lineno) for each in heard],
        objects.shown(names),
        np.geterr(),
    )
    if isinstance(value, BaseException):
        value.__traceback__ = None
    return shown


class Came(NamedTuple):
    """What came of a case."""

    #: What its decorated calls do otherwise than its plain ones; `None` where all is well.
    wrong: str | None
    #: How many calls were native code.
    natively: int


def what_came(
    text: str, size: int = 24, rounds: int = 2, *, chosen: Callable[[int], bool] = lambda number: True
) -> Came:
    """What a function does otherwise where it is native code as soon as there is any, and how often that is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # coroutines of other cases, which were never awaited
    plain, ours = _world(text, size), _world(text, size)
    natively = number = 0
    decorated = ag.offload(ours["function"])
    state = np.random.get_state()

    def called(*given: Any) -> Any:
        nonlocal natively
        with ag.collect_receipts() as receipts:
            try:
                return decorated(*given)
            finally:
                natively += any(each.device == "cpu" for each in receipts)

    for _ in range(rounds):
        for theirs, mine in zip(_calls(plain, size), _calls(ours, size), strict=True):
            number += 1
            if not chosen(number - 1):
                continue
            seen = []
            for space, call, given in ((plain, plain["function"], theirs), (ours, called, mine)):
                if "between" in space:
                    space["between"](number - 1)
                np.random.set_state(state)
                seen.append(_seen(space, call, given))
            expected, found = seen
            if found != expected:
                wrong_functions()
                return Came(f"call {number - 1}: {_difference(found, expected)}", natively)
            settle()
    wrong = wrong_functions()
    return Came(wrong[0] if wrong else None, natively)


def _difference(found: Any, expected: Any) -> str:
    """The first part that differs."""
    if isinstance(found, tuple | list) and isinstance(expected, tuple | list) and len(found) == len(expected):
        for mine, theirs in zip(found, expected, strict=True):
            if mine != theirs:
                return _difference(mine, theirs)
    return f"{str(found)[:300]} instead of {str(expected)[:300]}"


@contextlib.contextmanager
def natively() -> Iterator[None]:
    """Calls are native code as soon as there is any, and no warning is an error."""
    with native_at_once(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def main() -> int:
    """Print what is wrong, and how many are native code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    counts = {"native": 0, "on NumPy": 0, "wrong": 0}
    with natively():
        for name, text in cases().items():
            if given.only not in name:
                continue
            try:
                came = what_came(text)
            except Exception as error:  # noqa: BLE001 - it is told
                came = Came("".join(traceback.format_exception(error)), 0)
            counts["wrong" if came.wrong else "native" if came.natively else "on NumPy"] += 1
            if came.wrong or given.only:
                sys.stdout.write(f"-- {name}: {came}\n")
            linecache.clearcache()
    sys.stdout.write(f"{counts}\n")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
