"""Changes of what a function depends on beside its arguments: each as the text of a module, and of what changes then.

`f(x)` of the module is called until it runs as native code, or is known to stay on NumPy. Then the second text is run
in the module, and the function has to do what a plain function does from then on. What is shared with other modules is
put back by the third text.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.semantics.outcomes import Outcome, outcome_of


class StateChange(NamedTuple):
    """A module with a function, and a change of its state."""

    name: str
    module: str
    change: str
    undo: str


#: Calls before the change, which train the function, and after it.
BEFORE, AFTER = 5, 3


def outcomes(case: StateChange, made: Callable[[Any], Any], called: Callable[[], None]) -> list[Outcome]:
    """What each call did, of the function that `made` makes of the module's own. `called` is called after each."""
    module = types.ModuleType("state_" + re.sub(r"\W", "_", case.name))
    around = vars(module)
    around["np"] = np
    sys.modules[module.__name__] = module  # where dataclasses look
    found = []
    try:
        exec(compile(case.module, f"<{case.name}>", "exec"), around)
        function = made(around["f"])
        for number in range(BEFORE + AFTER):
            if number == BEFORE:
                exec(compile(case.change, f"<{case.name}, changed>", "exec"), around)
            x = np.arange(1.0, 401.0)
            found.append(outcome_of(lambda: function(x), (x,), lambda: around.get("LOG")))  # noqa: B023
            called()
    finally:
        exec(case.undo, around)
        del sys.modules[module.__name__]
    return found


def _read(text: str) -> dict[str, StateChange]:
    """The cases of a text: titles begin with `## `, and a change and what puts it back with `--`."""
    found = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        module, change, *undo = re.split(r"^--$\n?", rest, flags=re.MULTILINE)
        assert title not in found, title
        found[title] = StateChange(title, module, change, undo[0] if undo else "")
    return found


CASES = _read(
    """
## a text that an object gives of itself
class Text:
    mode = "fast"
    def __str__(self): return self.mode
text = Text()
def f(x): return np.sqrt(x) * (2 if f"{text}" == "fast" else 3)
--
Text.mode = "slow"

## what repr says
class Text:
    mode = "fast"
    def __repr__(self): return self.mode
text = Text()
def f(x): return np.sqrt(x) * len(f"{text!r:>2}")
--
Text.mode = "slower"

## the format of an object
WIDTH = 3
class Text:
    def __format__(self, spec): return "x" * WIDTH
text = Text()
def f(x): return np.sqrt(x) * len(format(text, ""))
--
WIDTH = 6

## the default __str__ of a dataclass
from dataclasses import dataclass
@dataclass
class Setting:
    gain: str
setting = Setting("a")
def f(x): return np.sqrt(x) * len(str(setting))
--
setting.gain = "abcdefg"

## a static method that is called
STATE = {"v": 2.0}
class Static:
    __call__ = staticmethod(lambda x: x * STATE["v"])
static = Static()
def f(x): return static(np.sqrt(x))
--
STATE["v"] = 5.0

## a class method as a special method
STATE = {"v": 2.0}
class ByClass:
    @classmethod
    def __getitem__(cls, i): return STATE["v"]
by_class = ByClass()
def f(x): return np.sqrt(x) * by_class[0]
--
STATE["v"] = 5.0

## an element of a class
STATE = {"v": 2.0}
class Table:
    def __class_getitem__(cls, i): return STATE["v"]
def f(x): return np.sqrt(x) * Table["gain"]
--
STATE["v"] = 5.0

## a dispatched special method
import functools
STATE = {"v": 2.0}
class Dispatch:
    @functools.singledispatchmethod
    def __call__(self, x): return x * STATE["v"]
dispatch = Dispatch()
def f(x): return dispatch(np.sqrt(x))
--
STATE["v"] = 5.0

## a partial special method
import functools
STATE = {"v": 2.0}
class Partial:
    def scaled(self, k, x): return x * STATE["v"] * k
    __call__ = functools.partialmethod(scaled, 1.0)
partial = Partial()
def f(x): return partial(np.sqrt(x))
--
STATE["v"] = 5.0

## an object as a special method
STATE = {"v": 2.0}
class Length:
    def __call__(self): return int(STATE["v"])
class Sized:
    __len__ = Length()
sized = Sized()
def f(x): return np.sqrt(x) * len(sized)
--
STATE["v"] = 5.0

## a method of Python's as a special method, replaced
class Values(list): pass
class Sized:
    def __init__(self): self.v = [1, 2]
    __len__ = lambda self: len(self.v)
sized = Sized()
def f(x): return np.sqrt(x) * len(sized)
--
Sized.__len__ = property(lambda self: lambda: 7)

## a special method in place of another member
class Truth:
    unused = 1
truth = Truth()
def f(x): return np.sqrt(x) * (2 if truth else 3)
--
del Truth.unused
Truth.__bool__ = lambda self: False

## what __new__ reads
GAINS = {"fast": 2.0}
class Made:
    def __new__(cls):
        o = object.__new__(cls); o.gain = GAINS["fast"]; return o
def f(x): return np.sqrt(x) * Made().gain
--
GAINS["fast"] = 5.0

## what __post_init__ reads
from dataclasses import dataclass
GAINS = {"fast": 2.0}
@dataclass
class Post:
    name: str = "fast"
    def __post_init__(self): self.gain = GAINS[self.name]
def f(x): return np.sqrt(x) * Post().gain
--
GAINS["fast"] = 5.0

## what __init_subclass__ reads
LOG, GAIN = [], 2.0
class Base:
    def __init_subclass__(cls): cls.gain = GAIN; LOG.append(1)
def f(x):
    class Local(Base): pass
    return np.sqrt(x) * Local.gain
--
GAIN = 5.0

## a class whose subclasses are counted
LOG = []
class Base:
    gain = [2.0]
    def __init_subclass__(cls): LOG.append(1)
    @classmethod
    def read(cls): return cls.gain[0]
def f(x): return np.sqrt(x) * Base.read()
--
Base.gain[0] = 5.0

## __init_subclass__ of a metaclass's class
LOG = []
class Meta(type):
    def __call__(cls): LOG.append(1); return LEVEL
LEVEL = 2.0
class Level(metaclass=Meta): pass
def f(x): return np.sqrt(x) * Level()
--
LEVEL = 5.0

## what a finaliser does
LOG = []
class Ends:
    def __init__(self): self.gain = 2.0
    def __del__(self): LOG.append(1)
def f(x): return np.sqrt(x) * Ends().gain
--
Ends.__del__ = lambda self: LOG.append(2)

## a method of an enumeration's member
import enum
GAINS = {"fast": 2.0}
class Mode(enum.Enum):
    FAST = "fast"
    def gain(self): return GAINS[self.value]
def f(x): return np.sqrt(x) * Mode.FAST.gain()
--
GAINS["fast"] = 5.0

## an attribute of a member
import enum
class Mode(enum.Enum):
    FAST = "fast"
Mode.FAST.weight = 2.0
def f(x): return np.sqrt(x) * Mode.FAST.weight
--
Mode.FAST.weight = 5.0

## a value of a member that can change
import enum
class Levels(enum.Enum):
    A = [2.0]
def f(x): return np.sqrt(x) * Levels.A.value[0]
--
Levels.A.value[0] = 5.0

## a log that a member keeps
import enum
LOG = []
class Mode(enum.Enum):
    FAST = "fast"
    def logged(self): LOG.append(1); return 2.0
def f(x): return np.sqrt(x) * Mode.FAST.logged()
--
pass

## members that are found by going through them
import enum
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2
for each in Mode: each.weight = 2.0
def f(x): return np.sqrt(x) * sum(each.weight for each in Mode)
--
Mode.SLOW.weight = 5.0

## a member that is found by its value
import enum
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2
Mode.SLOW.weight = 2.0
def f(x): return np.sqrt(x) * Mode(2).weight
--
Mode.SLOW.weight = 5.0

## what an enumeration gives for values that it lacks
import enum
KNOWN = [1]
class Mode(enum.Enum):
    FAST = 1
    SLOW = 2
    @classmethod
    def _missing_(cls, value): return cls(KNOWN[0])
def f(x): return np.sqrt(x) * Mode("?").value
--
KNOWN[0] = 2

## a property of a number of an enumeration
import enum
SCALE = 2.0
class Level(enum.IntEnum):
    LOW = 1
    @property
    def scaled(self): return SCALE * self
def f(x): return np.sqrt(x) * Level.LOW.scaled
--
SCALE = 5.0

## a new value of a member
import enum
class Mode(enum.Enum):
    FAST = 2.0
def f(x): return np.sqrt(x) * Mode.FAST.value
--
Mode.FAST._value_ = 5.0

## a method of an enumeration that is replaced
import enum
class Mode(enum.Flag):
    A = 1
    B = 2
    def count(self): return 2
mode = Mode.A | Mode.B
def f(x): return np.sqrt(x) * mode.count()
--
Mode.count = lambda self: 5

## a property of a named tuple
import typing
GAINS = {"fast": 2.0}
class Row(typing.NamedTuple):
    name: str = "fast"
    @property
    def gain(self): return GAINS[self.name]
row = Row()
def f(x): return np.sqrt(x) * row.gain
--
GAINS["fast"] = 5.0

## a named tuple's operator
import typing
class Pair(typing.NamedTuple):
    a: float
    def __mul__(self, other): return SCALE * other
SCALE = 2.0
pair = Pair(1.0)
def f(x): return pair * np.sqrt(x)
--
SCALE = 5.0

## the defaults of a named tuple
import collections
Point = collections.namedtuple("Point", "a b", defaults=(2.0,))
def f(x): return np.sqrt(x) * Point(1.0).b
--
Point.__new__.__defaults__ = (5.0,)

## a field of a named tuple's class
import collections
Point = collections.namedtuple("Point", "a b")
point = Point(2.0, 3.0)
def f(x): return np.sqrt(x) * point.a
--
Point.a = Point.b

## an attribute of an error
class Wrong(Exception): pass
wrong = Wrong("a")
wrong.code = 2.0
def f(x): return np.sqrt(x) * wrong.code
--
wrong.code = 5.0

## the arguments of an error
class Wrong(Exception): pass
wrong = Wrong(2.0)
def f(x): return np.sqrt(x) * wrong.args[0]
--
wrong.args = (5.0,)

## an attribute of an error's class
class Wrong(Exception): code = 2.0
def f(x):
    try: raise Wrong("a")
    except Wrong as error: return np.sqrt(x) * error.code
--
Wrong.code = 5.0

## what an error reads when it is made
CODES = {"a": 2.0}
class Wrong(Exception):
    def __init__(self, name): self.code = CODES[name]
def f(x):
    try: raise Wrong("a")
    except Wrong as error: return np.sqrt(x) * error.code
--
CODES["a"] = 5.0

## the text of an error
WORDS = ["ab"]
class Wrong(Exception):
    def __str__(self): return WORDS[0]
def f(x):
    try: raise Wrong("a")
    except Wrong as error: return np.sqrt(x) * len(str(error))
--
WORDS[0] = "abcde"

## a module's attribute, by another name of the module
import sys, types
sys.modules["state_config"] = types.ModuleType("state_config")
import state_config as config
config.gain = 2.0
def f(x): return np.sqrt(x) * config.gain
--
sys.modules["state_config"].gain = 5.0
--
del sys.modules["state_config"]

## another module under the same name
import sys, types
sys.modules["state_config"] = types.SimpleNamespace(gain=2.0)
def f(x):
    import state_config
    return np.sqrt(x) * state_config.gain
--
sys.modules["state_config"] = types.SimpleNamespace(gain=5.0)
--
del sys.modules["state_config"]

## another module in place of one of Python's, imported inside
import sys, types, math as real
def f(x):
    import math
    return np.sqrt(x) * math.sqrt(4.0)
--
sys.modules["math"] = types.SimpleNamespace(sqrt=lambda x: 5.0)
--
sys.modules["math"] = real

## a function of Python's, imported inside
import math as real
before = real.sqrt
def f(x):
    from math import sqrt
    return np.sqrt(x) * sqrt(4.0)
--
real.sqrt = lambda x: 5.0
--
real.sqrt = before

## a module's attribute that was not there
import types
config = types.ModuleType("config")
def f(x): return np.sqrt(x) * getattr(config, "gain", 2.0)
--
config.gain = 5.0

## a module's attribute that was not there, tried
import types
config = types.ModuleType("config")
def f(x):
    try: return np.sqrt(x) * config.gain
    except AttributeError: return np.sqrt(x) * 2
--
config.gain = 5.0

## attributes that a module makes
import types
config = types.ModuleType("config")
LEVEL = 2.0
config.__getattr__ = lambda name: LEVEL
def f(x): return np.sqrt(x) * config.gain
--
LEVEL = 5.0

## a module that begins to make attributes
import types
config = types.ModuleType("config")
def f(x): return np.sqrt(x) * (5 if hasattr(config, "gain") else 2)
--
config.__getattr__ = lambda name: 1.0

## a module of another class
import types
config = types.ModuleType("config")
config.gain = 2.0
class Other(types.ModuleType):
    gain = property(lambda self: 5.0)
def f(x): return np.sqrt(x) * config.gain
--
config.__class__ = Other

## NumPy's modes
def f(x): return np.sqrt(x) / np.floor(x / 1000)
--
np.seterr(all="raise")
--
np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")

## how NumPy prints
def f(x): return np.sqrt(x) * len(str(np.array([1 / 3])))
--
np.set_printoptions(precision=2)
--
np.set_printoptions(precision=8)

## how NumPy prints numbers
ONE = np.float64(1 / 3)
def f(x): return np.sqrt(x) * len(repr(ONE))
--
np.set_printoptions(legacy="1.25")
--
np.set_printoptions(legacy=False)

## an attribute of a class that its metaclass gives
class Meta(type):
    @property
    def gain(cls): return GAIN
GAIN = 2.0
class Setting(metaclass=Meta): pass
def f(x): return np.sqrt(x) * Setting.gain
--
GAIN = 5.0

## an attribute of a metaclass
class Meta(type): gain = 2.0
class Setting(metaclass=Meta): pass
def f(x): return np.sqrt(x) * Setting.gain
--
Meta.gain = 5.0

## a descriptor
STATE = [2.0]
class Reads:
    def __get__(self, thing, owner=None): return STATE[0]
class Setting: gain = Reads()
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain
--
STATE[0] = 5.0

## a descriptor's own state
class Reads:
    def __init__(self): self.value = 2.0
    def __get__(self, thing, owner=None): return self.value
class Setting: gain = Reads()
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain
--
vars(Setting)["gain"].value = 5.0

## a class that begins to be a descriptor
class Holds: value = 2.0
class Setting: gain = Holds()
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain.value
--
class Five: value = 5.0
Holds.__get__ = lambda self, thing, owner=None: Five()

## a property that hides an attribute
class Setting:
    def __init__(self): self.gain = 2.0
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain
--
Setting.gain = property(lambda self: 5.0)

## a property of a base class, replaced
class Base:
    @property
    def gain(self): return 2.0
class Setting(Base): pass
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain
--
Base.gain = property(lambda self: 5.0)

## a kind of property of the user's own
class Own(property): pass
LEVEL = 2.0
class Setting:
    gain = Own(lambda self: LEVEL)
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain
--
LEVEL = 5.0

## a cached property, forgotten
import functools
LEVEL = [2.0]
class Setting:
    @functools.cached_property
    def gain(self): return LEVEL[0]
setting = Setting()
setting.gain
def f(x): return np.sqrt(x) * setting.gain
--
LEVEL[0] = 5.0
del setting.gain

## a context variable
import contextvars
GAIN = contextvars.ContextVar("GAIN", default=2.0)
def f(x): return np.sqrt(x) * GAIN.get()
--
GAIN.set(5.0)

## a cached function, whose cache is cleared
import functools
LEVEL = 2.0
@functools.cache
def gain(): return LEVEL
def f(x): return np.sqrt(x) * gain()
--
LEVEL = 5.0
gain.cache_clear()

## a dispatched function that learns another type
import functools
@functools.singledispatch
def gain(value): return 2.0
def f(x): return np.sqrt(x) * gain(1)
--
gain.register(int, lambda value: 5.0)

## an operator of a helper
SCALE = 2.0
class Gain:
    def __mul__(self, other): return other * SCALE
    def __rmul__(self, other): return other * SCALE
    __array_ufunc__ = None
gain = Gain()
def f(x): return np.sqrt(x) * gain + gain * x
--
SCALE = 5.0

## an operator that a base class gets
class Base: pass
class Gain(Base):
    def __radd__(self, other): return other + 2
    __array_ufunc__ = None
gain = Gain()
def f(x): return np.sqrt(x) + gain
--
Gain.__radd__ = lambda self, other: other + 5

## how NumPy sees an object
class Gain:
    value = 2.0
    def __array__(self, dtype=None, copy=None): return np.full(400, self.value)
gain = Gain()
def f(x): return np.sqrt(x) * gain
--
Gain.value = 5.0

## an object that becomes an index
class Index:
    at = 2
    def __index__(self): return self.at
index = Index()
def f(x): return np.sqrt(x) * x[index]
--
Index.at = 5

## an object that becomes a number
import math
class Number:
    at = 2.0
    def __float__(self): return self.at
number = Number()
def f(x): return np.sqrt(x) * math.sqrt(number) * float(number)
--
Number.at = 5.0

## an object that is entered
class Scope:
    gain = 2.0
    def __enter__(self): return self.gain
    def __exit__(self, *error): return None
scope = Scope()
def f(x):
    with scope as gain: return np.sqrt(x) * gain
--
Scope.gain = 5.0

## an object that is gone through
class Values:
    values = [1.0, 2.0]
    def __iter__(self): return iter(self.values)
    def __contains__(self, value): return value in self.values
values = Values()
def f(x): return np.sqrt(x) * sum(values) * (1.0 in values)
--
Values.values = [1.0, 5.0]

## an object that is compared
class Level:
    at = 2
    def __eq__(self, other): return self.at == other
    def __lt__(self, other): return self.at < other
level = Level()
def f(x): return np.sqrt(x) * (2 if level == 2 else 5) * (2 if level < 3 else 5)
--
Level.at = 4

## an object that becomes another kind
class Slow: gain = 2.0
class Fast: gain = 5.0
setting = Slow()
def f(x): return np.sqrt(x) * setting.gain
--
setting.__class__ = Fast

## a class with other bases
class Slow: gain = 2.0
class Fast: gain = 5.0
class Setting(Slow): pass
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain
--
Setting.__bases__ = (Fast,)

## a class with one more base
class Slow: gain = 2.0
class Begins:
    def __bool__(self): return False
class Setting(Slow): pass
setting = Setting()
def f(x): return np.sqrt(x) * (2 if setting else 5)
--
Setting.__bases__ = (Slow, Begins)

## an attribute that a class begins to make
class Setting: pass
setting = Setting()
def f(x): return np.sqrt(x) * (5 if hasattr(setting, "gain") else 2)
--
Setting.__getattr__ = lambda self, name: 1.0

## a class that is registered
import abc
class Fast(abc.ABC): pass
class Setting: pass
setting = Setting()
def f(x): return np.sqrt(x) * (5 if isinstance(setting, Fast) else 2)
--
Fast.register(Setting)

## a class that is registered with one of Python's
import collections.abc
class Setting: pass
setting = Setting()
def f(x): return np.sqrt(x) * (5 if isinstance(setting, collections.abc.Sequence) else 2)
--
collections.abc.Sequence.register(Setting)

## what a class says of its subclasses
import abc
LOG, IS_FAST = [], False
class Fast(abc.ABC):
    @classmethod
    def __subclasshook__(cls, kind): LOG.append(1); return IS_FAST
class Setting: pass
setting = Setting()
def f(x): return np.sqrt(x) * (5 if isinstance(setting, Fast) else 2)
--
IS_FAST = True

## what a metaclass says of instances
IS_FAST = False
class Meta(type):
    def __instancecheck__(cls, thing): return IS_FAST
class Fast(metaclass=Meta): pass
def f(x): return np.sqrt(x) * (5 if isinstance(1, Fast) else 2)
--
IS_FAST = True

## a match of a class's attributes
class Point:
    __match_args__ = ("a", "b")
    def __init__(self): self.a, self.b = 2.0, 5.0
point = Point()
def f(x):
    match point:
        case Point(a): return np.sqrt(x) * a
--
Point.__match_args__ = ("b", "a")

## a view of a dictionary
TABLE = {"a": 2.0}
VALUES = TABLE.values()
def f(x): return np.sqrt(x) * sum(VALUES)
--
TABLE["b"] = 3.0

## a dictionary that is only read elsewhere
import types
TABLE = {"a": 2.0}
SHOWN = types.MappingProxyType(TABLE)
def f(x): return np.sqrt(x) * SHOWN["a"]
--
TABLE["a"] = 5.0

## a dictionary whose keys are in another order
TABLE = {"a": 1.0, "b": 2.0}
def f(x):
    total = 0.0
    for place, value in enumerate(TABLE.values()): total = total * 10 + place * value
    return np.sqrt(x) * total
--
TABLE["a"] = TABLE.pop("a")

## keys that compare in their own way
class Key:
    same = True
    def __hash__(self): return 1
    def __eq__(self, other): return self.same
TABLE = {Key(): 2.0}
def f(x): return np.sqrt(x) * TABLE.get(1, 5.0)
--
Key.same = False

## members of an enumeration as keys
import enum
class Mode(enum.Enum):
    FAST = "fast"
TABLE = {Mode.FAST: "ab"}
def f(x): return np.sqrt(x) * len(TABLE[Mode.FAST])
--
TABLE[Mode.FAST] = "abcde"

## what a dictionary gives for what it lacks
class Table(dict):
    gain = 2.0
    def __missing__(self, key): return self.gain
TABLE = Table()
def f(x): return np.sqrt(x) * TABLE["a"]
--
Table.gain = 5.0

## what a default dictionary makes
import collections
LEVEL = 2.0
TABLE = collections.defaultdict(lambda: LEVEL)
def f(x): return np.sqrt(x) * TABLE["a"]
--
TABLE.default_factory = lambda: 5.0
TABLE.clear()

## dictionaries in a chain
import collections
FIRST, SECOND = {}, {"a": 2.0}
CHAIN = collections.ChainMap(FIRST, SECOND)
def f(x): return np.sqrt(x) * CHAIN["a"]
--
FIRST["a"] = 5.0

## counts
import collections
COUNTS = collections.Counter("ab")
def f(x): return np.sqrt(x) * COUNTS["a"]
--
COUNTS.update("aaa")

## a set
NAMES = {"a"}
def f(x): return np.sqrt(x) * (5 if "b" in NAMES else 2)
--
NAMES.add("b")

## a deque
import collections
LAST = collections.deque([2.0], maxlen=1)
def f(x): return np.sqrt(x) * LAST[0]
--
LAST.append(5.0)

## an array of Python's
import array
VALUES = array.array("d", [2.0])
def f(x): return np.sqrt(x) * VALUES[0]
--
VALUES[0] = 5.0

## a list, by another name of it
VALUES = [[2.0], [3.0]]
inner = VALUES[0]
def f(x): return np.sqrt(x) * VALUES[0][0]
--
inner[:] = [5.0]

## an array, by its memory
MEMORY = bytearray(np.full(400, 2.0).tobytes())
W = np.frombuffer(MEMORY)
def f(x): return np.sqrt(x) * W
--
MEMORY[:] = np.full(400, 5.0).tobytes()

## memory that an array shows as a memoryview
W = np.full(400, 2.0)
VIEW = memoryview(W)
def f(x): return np.sqrt(x) * VIEW[0]
--
W[:] = 5.0

## bytes that can change
LEVELS = bytearray(b"ab")
def f(x): return np.sqrt(x) * LEVELS[0]
--
LEVELS[0] = 5

## an array that a branch asks, changed by a view
W = np.zeros(400)
VIEW = W[:3]
def f(x): return np.sqrt(x) * (2 if W[0] < 1 else 5)
--
VIEW[:] = 7

## an array with another shape
W = np.full((20, 20), 2.0)
def f(x): return np.sqrt(x) * len(W)
--
W = W.reshape(400)

## an array that cannot be written to
W = np.full(400, 2.0)
def f(x): return np.sqrt(x) * (2 if W.flags.writeable else 5)
--
W.flags.writeable = False

## an attribute of an array of the user's class
class Tagged(np.ndarray): pass
W = np.full(400, 2.0).view(Tagged)
W.gain = 2.0
def f(x): return np.sqrt(x) * W.gain
--
W.gain = 5.0

## a number of the user's class
class Metres(np.float64):
    scale = 2.0
    def in_feet(self): return float(self) * self.scale
metres = Metres(1.0)
def f(x): return np.sqrt(x) * metres.in_feet()
--
Metres.scale = 5.0

## an integer of the user's class
class Count(int):
    scale = 2.0
    def __mul__(self, other): return other * self.scale
count = Count(1)
def f(x): return count * 3.0 * np.sqrt(x)
--
Count.scale = 5.0

## a text of the user's class
class Name(str):
    def __len__(self): return SIZE
SIZE = 2
name = Name("a")
def f(x): return np.sqrt(x) * len(name)
--
SIZE = 5

## the environment
import os
os.environ["STATE_GAIN"] = "2"
def f(x): return np.sqrt(x) * float(os.environ["STATE_GAIN"])
--
os.environ["STATE_GAIN"] = "5"
--
del os.environ["STATE_GAIN"]

## random numbers of Python's
import random
random.seed(1)
def f(x): return np.sqrt(x) * random.random()
--
random.seed(5)

## random numbers of a generator
GENERATOR = np.random.default_rng(1)
def f(x): return np.sqrt(x) * GENERATOR.normal()
--
GENERATOR.bit_generator.state = np.random.default_rng(5).bit_generator.state

## a weak reference to what is gone
import weakref
class Setting: gain = 2.0
setting = Setting()
REFERENCE = weakref.ref(setting)
def f(x): return np.sqrt(x) * (5 if REFERENCE() is None else 2)
--
del setting

## what a weak proxy leads to
import weakref
class Setting: gain = 2.0
setting = Setting()
PROXY = weakref.proxy(setting)
def f(x): return np.sqrt(x) * PROXY.gain
--
setting.gain = 5.0

## a default that is changed
def gain(values=[2.0]): return values[0]
def f(x): return np.sqrt(x) * gain()
--
gain.__defaults__[0][0] = 5.0

## other defaults
def gain(value=2.0, *, more=1.0): return value * more
def f(x): return np.sqrt(x) * gain()
--
gain.__defaults__, gain.__kwdefaults__ = (5.0,), {"more": 2.0}

## defaults that are gone
def gain(value=2.0): return value
def f(x):
    try: return np.sqrt(x) * gain()
    except TypeError: return np.sqrt(x) * 5
--
gain.__defaults__ = None

## a keyword default, in place
def gain(*, value=2.0): return value
def f(x): return np.sqrt(x) * gain()
--
gain.__kwdefaults__["value"] = 5.0

## a cell that holds something else
def made():
    gain = 2.0
    def f(x): return np.sqrt(x) * gain
    return f
f = made()
--
f.__closure__[0].cell_contents = 5.0

## a cell of a helper that was empty
def made():
    def helper(): return gain
    def f(x):
        try: return np.sqrt(x) * helper()
        except NameError: return np.sqrt(x) * 2
    cell = helper.__closure__[0]
    if False: gain = 1
    return f, cell
f, cell = made()
--
cell.cell_contents = 5.0

## other code in a helper
def gain(): return 2.0
def f(x): return np.sqrt(x) * gain()
--
gain.__code__ = (lambda: 5.0).__code__

## other code in a method
class Setting:
    def gain(self): return 2.0
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain()
--
Setting.gain.__code__ = (lambda self: 5.0).__code__

## what a wrapper says that it wraps
import functools
def inner(): return 2.0
@functools.wraps(inner)
def gain(): return gain.__wrapped__()
def f(x): return np.sqrt(x) * gain()
--
gain.__wrapped__ = lambda: 5.0

## an attribute of a function
def gain(): return gain.value
gain.value = 2.0
def f(x): return np.sqrt(x) * gain()
--
gain.value = 5.0

## an attribute of a function that was not there
def gain(): return getattr(gain, "value", 2.0)
def f(x): return np.sqrt(x) * gain()
--
gain.value = 5.0

## a builtin, replaced for all modules
import builtins
before = builtins.abs
def f(x): return np.sqrt(x) * abs(-2.0)
--
builtins.abs = lambda value: 5.0
--
builtins.abs = before

## a builtin, hidden by a global name
def f(x): return np.sqrt(x) * abs(-2.0)
--
abs = lambda value: 5.0

## a global name that uncovers a builtin
abs = lambda value: 5.0
def f(x): return np.sqrt(x) * abs(-2.0)
--
del abs

## a function of NumPy's, replaced
before = np.sqrt
def f(x): return np.sqrt(x) * 2
--
np.sqrt = np.cbrt
--
np.sqrt = before

## a function of NumPy's, replaced in a part of NumPy
before = np.linalg.norm
def f(x): return np.sqrt(x) * np.linalg.norm(x)
--
np.linalg.norm = lambda x: 5.0
--
np.linalg.norm = before

## a function that NumPy begins to have
def f(x): return np.sqrt(x) * (5 if hasattr(np, "state_gain") else 2)
--
np.state_gain = 1
--
del np.state_gain

## a ufunc that is made of a function
LEVEL = 2.0
def _gain(value): return value * LEVEL
_gain_of = np.frompyfunc(_gain, 1, 1)
def f(x): return np.sqrt(x) * float(_gain_of(1.0))
--
LEVEL = 5.0

## a function that NumPy has made one of arrays
LEVEL = 2.0
gain = np.vectorize(lambda value: value * LEVEL)
def f(x): return np.sqrt(x) * gain([1.0])
--
LEVEL = 5.0

## the names in a dtype
KIND = np.dtype([("a", float), ("b", float)])
def f(x): return np.sqrt(x) * len(KIND.names[0])
--
KIND.names = ("abcde", "b")

## what a dtype carries
INFO = {"gain": 2.0}
KIND = np.dtype("f8", metadata=INFO)
def f(x): return np.sqrt(x) * KIND.metadata["gain"]
--
KIND.metadata; INFO["gain"] = 5.0
KIND = np.dtype("f8", metadata=INFO)

## a slot
class Setting: __slots__ = ("gain",)
setting = Setting()
setting.gain = "ab"
def f(x): return np.sqrt(x) * len(setting.gain)
--
setting.gain = "abcde"

## a slot that is emptied
class Setting: __slots__ = ("gain",)
setting = Setting()
setting.gain = 2.0
def f(x): return np.sqrt(x) * getattr(setting, "gain", 5.0)
--
del setting.gain

## the keywords of a partial function
import functools
gain = functools.partial(lambda *, value: value, value=2.0)
def f(x): return np.sqrt(x) * gain()
--
gain.keywords["value"] = 5.0

## an attribute of a partial function
import functools
gain = functools.partial(float)
gain.value = 2.0
def f(x): return np.sqrt(x) * getattr(gain, "value", 5.0)
--
gain.value = 7.0

## the parts of a partial function
import functools
gain = functools.partial(float, "2")
def f(x): return np.sqrt(x) * gain()
--
gain.__setstate__((float, ("5",), {}, None))

## a partial function of the user's class
import functools
class Own(functools.partial):
    def __call__(self): return LEVEL
LEVEL = 2.0
gain = Own(float, "1")
def f(x): return np.sqrt(x) * gain()
--
LEVEL = 5.0

## a generator
def numbers():
    value = 1.0
    while True:
        value += 1
        yield value
NUMBERS = numbers()
def f(x): return np.sqrt(x) * next(NUMBERS)
--
next(NUMBERS)

## an iterator that goes on
COUNT = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
def f(x): return np.sqrt(x) * next(COUNT, 0.0)
--
next(COUNT)

## a file
import pathlib, tempfile
path = pathlib.Path(tempfile.mkdtemp()) / "gain"
path.write_text("2")
def f(x): return np.sqrt(x) * float(path.read_text())
--
path.write_text("5")

## a file that is opened
import os, tempfile
handle, name = tempfile.mkstemp()
os.write(handle, b"2")
def f(x):
    with open(name) as file: return np.sqrt(x) * float(file.read())
--
os.pwrite(handle, b"5", 0)
--
os.close(handle)

## the precision of decimal numbers
import decimal
before = decimal.getcontext().prec
THREE = decimal.Decimal(3)
def f(x): return np.sqrt(x) * len(str(1 / THREE))
--
decimal.getcontext().prec = 4
--
decimal.getcontext().prec = before

## a getter that is kept
import operator
GET = operator.attrgetter("gain")
LEVEL = 2.0
class Setting:
    @property
    def gain(self): return LEVEL
setting = Setting()
def f(x): return np.sqrt(x) * GET(setting)
--
LEVEL = 5.0

## a caller of methods that is kept
import operator
CALL = operator.methodcaller("gain")
LEVEL = [2.0]
class Setting:
    def gain(self): return LEVEL[0]
setting = Setting()
def f(x): return np.sqrt(x) * CALL(setting)
--
LEVEL[0] = 5.0

## a name that is computed
class Setting: gain = "ab"
setting = Setting()
NAME = "ga"
def f(x): return np.sqrt(x) * len(getattr(setting, NAME + "in"))
--
Setting.gain = "abcde"

## a function in a list
STEPS = [lambda x: x * 2]
def f(x):
    for step in STEPS: x = step(x)
    return np.sqrt(x)
--
STEPS.append(lambda x: x * 5)

## what a base class's method does
class Base:
    def gain(self): return 2.0
class Setting(Base):
    def gain(self): return super().gain() * 2
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain()
--
Base.gain = lambda self: 5.0

## an ordering that functools has made
import functools
@functools.total_ordering
class Level:
    def __init__(self, at): self.at = at
    def __eq__(self, other): return self.at == other.at
    def __lt__(self, other): return ORDER * self.at < ORDER * other.at
ORDER = 1
low, high = Level(1), Level(2)
def f(x): return np.sqrt(x) * (2 if low >= high else 5)
--
ORDER = -1

## a field's default in a dataclass
import dataclasses
@dataclasses.dataclass
class Setting:
    values: list = dataclasses.field(default_factory=lambda: [LEVEL])
LEVEL = 2.0
def f(x): return np.sqrt(x) * Setting().values[0]
--
LEVEL = 5.0

## a dataclass that compares in another way
import dataclasses
@dataclasses.dataclass
class Setting:
    gain: float = 2.0
one, other = Setting(), Setting()
def f(x): return np.sqrt(x) * (2 if one == other else 5)
--
Setting.__eq__ = lambda self, other: False

## an object of each thread
import threading
LOCAL = threading.local()
LOCAL.gain = 2.0
def f(x): return np.sqrt(x) * LOCAL.gain
--
LOCAL.gain = 5.0

## the level of a log
import logging
logger = logging.getLogger("state")
def f(x): return np.sqrt(x) * (2 if logger.isEnabledFor(logging.DEBUG) else 5)
--
logger.setLevel(logging.DEBUG)
--
logger.setLevel(logging.NOTSET)

## a time with the user's own zone
import datetime
OFFSET = 2
class Zone(datetime.tzinfo):
    def utcoffset(self, time): return datetime.timedelta(hours=OFFSET)
    def dst(self, time): return None
NOON = datetime.datetime(2000, 1, 1, 12, tzinfo=Zone())
def f(x): return np.sqrt(x) * NOON.utcoffset().total_seconds()
--
OFFSET = 5

## a slice of objects
class At:
    at = 2
    def __index__(self): return self.at
PART = slice(0, At())
def f(x): return np.sqrt(x) * x[PART].sum()
--
At.at = 5

## a function that was undefined
def f(x):
    try: return np.sqrt(x) * gain()
    except NameError: return np.sqrt(x) * 2
--
def gain(): return 5.0

## a decorated function that is called, with other code
import anygpu
@anygpu.offload
def gain(x): return x * 2
def f(x): return gain(np.sqrt(x))
--
gain.function.__code__ = (lambda x: x * 5).__code__

## a decorated function that is called, with other defaults
import anygpu
@anygpu.offload
def gain(x, by=2.0): return x * by
def f(x): return gain(np.sqrt(x))
--
gain.function.__defaults__ = (5.0,)

## a decorated function that is called, with other code set in it
import anygpu
@anygpu.offload
def gain(x, by=2.0): return x * by
def f(x): return gain(np.sqrt(x))
--
gain.__defaults__ = (5.0,)

## what a decorated function says that it wraps
import anygpu
@anygpu.offload
def gain(x): return x * STATE[0]
STATE = [2.0]
def f(x): return gain(np.sqrt(x))
--
gain.__wrapped__ = lambda x: x * 7
STATE[0] = 5.0

## other code of the function itself
def f(x): return np.sqrt(x) * 2
g = f
--
g.__code__ = (lambda x: np.sqrt(x) * 5).__code__

## other defaults of the function itself
def f(x, by=2.0): return np.sqrt(x) * by
g = f
--
g.__defaults__ = (5.0,)

## a function of NumPy's, by a name that is kept
NAME = "sqrt"
def f(x): return getattr(np, NAME)(x) * 2
before = np.sqrt
--
np.sqrt = np.cbrt
--
np.sqrt = before

## a function of NumPy's, by a name that is made
def f(x): return getattr(np, "sq" + "rtx"[:2])(x) * 2
before = np.sqrt
--
np.sqrt = np.cbrt
--
np.sqrt = before

## the name of a function
def gain(): return 2.0
def f(x): return np.sqrt(x) * len(gain.__name__)
--
gain.__name__ = "another"

## the name of a class
class Slow: pass
slow = Slow()
def f(x): return np.sqrt(x) * len(type(slow).__name__)
--
Slow.__name__ = "another"

## the words of a function
def gain():
    'ab'
def f(x): return np.sqrt(x) * len(gain.__doc__)
--
gain.__doc__ = "abcde"

## the words of a class
class Setting:
    'ab'
    values = [2.0]
    def gain(self): return self.values[0]
setting = Setting()
def f(x): return np.sqrt(x) * len(Setting.__doc__) * setting.gain()
--
Setting.__doc__ = "abcde"

## the annotations of a function
def gain(a: int): return 2.0
def f(x): return np.sqrt(x) * len(gain.__annotations__)
--
gain.__annotations__["b"] = int

## what a caller of methods passes
import operator
GAINS = {"fast": 2.0}
CALL = operator.methodcaller("read", GAINS)
class Reads:
    def read(self, gains): return gains["fast"]
reads = Reads()
def f(x): return np.sqrt(x) * CALL(reads)
--
GAINS["fast"] = 5.0

## an index that a getter keeps
import operator
class At:
    at = 2
    def __index__(self): return self.at
GET = operator.itemgetter(At())
def f(x): return np.sqrt(x) * GET([2.0, 3.0, 4.0, 5.0])
--
At.at = 3

## a dictionary whose keys are tuples
TABLE = {(2, 3): "a"}
def f(x): return np.sqrt(x) * sum(key[0] for key in TABLE)
--
import gc
for number in range(1000, 1100):
    TABLE.clear()
    TABLE[(number, number + 1)] = "a"

## a dictionary whose keys are equal numbers of other types
TABLE = {1: "a"}
def f(x): return np.sqrt(x) * len([key for key in TABLE if isinstance(key, bool)])
--
TABLE.clear()
TABLE[True] = "a"

## an object that a class method makes
GAINS, LOG = {"fast": 2.0}, []
class Setting:
    def __init__(self): self.gain = GAINS["fast"]; LOG.append(1)
    @classmethod
    def made(cls): return cls()
setting = Setting()
def f(x): return np.sqrt(x) * setting.made().gain
--
GAINS["fast"] = 5.0

## an object of the class in which a method stands
GAINS = {"fast": 2.0}
class Setting:
    def __init__(self): self.gain = GAINS["fast"]
    def made(self): return __class__()
setting = Setting()
def f(x): return np.sqrt(x) * setting.made().gain
--
GAINS["fast"] = 5.0

## an attribute of the class in which a method stands
class Setting:
    gains = [2.0]
    def gain(self): return __class__.gains[0]
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain()
--
Setting.gains[0] = 5.0

## a dataclass with a field replaced
import dataclasses
GAINS = {"fast": 2.0}
@dataclasses.dataclass
class Setting:
    name: str
    def __post_init__(self): self.gain = GAINS["fast"]
setting = Setting("a")
def f(x): return np.sqrt(x) * dataclasses.replace(setting, name="b").gain
--
GAINS["fast"] = 5.0

## what the fields of a dataclass carry
import dataclasses
INFO = {"gain": 2.0}
@dataclasses.dataclass
class Setting:
    name: str = dataclasses.field(default="a", metadata=INFO)
setting = Setting()
def f(x): return np.sqrt(x) * dataclasses.fields(setting)[0].metadata["gain"]
--
INFO["gain"] = 5.0

## a dataclass as a dictionary
import dataclasses
@dataclasses.dataclass
class Setting:
    gain: str = "ab"
setting = Setting()
def f(x): return np.sqrt(x) * len(dataclasses.asdict(setting)["gain"])
--
setting.gain = "abcde"

## a class made of another in the function
GAINS = [2.0]
class Base:
    def gain(self): return GAINS[0]
def f(x):
    class Local(Base): pass
    return np.sqrt(x) * Local().gain()
--
GAINS[0] = 5.0

## a descriptor that learns its name
LOG = []
class Reads:
    def __set_name__(self, owner, name): LOG.append(name)
    def __get__(self, thing, owner=None): return LEVEL
LEVEL = 2.0
def f(x):
    class Local: gain = Reads()
    return np.sqrt(x) * Local().gain
--
LEVEL = 5.0

## a decorator that is a class
class Times:
    def __init__(self, function): self.function = function
    def __call__(self, x): return self.function(x) * LEVEL
    def __get__(self, thing, owner=None): return self
LEVEL = 2.0
@Times
def gain(x): return x + 1
def f(x): return gain(np.sqrt(x))
--
gain.function = lambda x: x + 9

## a context that is made by a generator
import contextlib
LEVEL = [2.0]
@contextlib.contextmanager
def scope():
    yield LEVEL[0]
def f(x):
    with scope() as gain: return np.sqrt(x) * gain
--
LEVEL[0] = 5.0

## what is done when a context ends
import contextlib
LOG = []
@contextlib.contextmanager
def scope():
    try: yield 2.0
    finally: LOG.append(1)
def f(x):
    with scope() as gain: return np.sqrt(x) * gain
--
def scope(): return contextlib.nullcontext(5.0)

## a string that names a method
class Setting:
    how = "slow"
    def slow(self): return 2.0
    def fast(self): return 5.0
setting = Setting()
def f(x): return np.sqrt(x) * getattr(setting, setting.how)()
--
setting.how = "fast"

## an instance's attribute in place of a method
class Setting:
    def gain(self): return 2.0
setting = Setting()
def f(x): return np.sqrt(x) * setting.gain()
--
setting.gain = lambda: 5.0

## a dictionary of functions
STEPS = {"a": lambda x: x * 2}
def f(x): return STEPS["a"](np.sqrt(x))
--
STEPS["a"] = lambda x: x * 5

## a nested default of a lambda
def made(by):
    return lambda x, by=by: x * by[0]
BY = [2.0]
step = made(BY)
def f(x): return step(np.sqrt(x))
--
BY[0] = 5.0

## a nan of another sign
import math
def gain(value=math.nan): return math.copysign(2.0, value)
def f(x): return np.sqrt(x) * gain()
--
gain.__defaults__ = (-math.nan,)

## a truth that is a number
FLAG = True
def f(x): return np.sqrt(x) * (2 if FLAG is True else 5)
--
FLAG = 1

## a base class that is not the user's
import collections
class Table(collections.UserDict): pass
TABLE = Table(a=2.0)
def f(x): return np.sqrt(x) * TABLE["a"]
--
TABLE["a"] = 5.0

## a list of the user's class
class Values(list):
    def total(self): return sum(self)
VALUES = Values([2.0])
def f(x): return np.sqrt(x) * VALUES.total()
--
VALUES.append(3.0)

## a namespace
import types
SETTING = types.SimpleNamespace(gain="ab")
def f(x): return np.sqrt(x) * len(SETTING.gain)
--
SETTING.gain = "abcde"

## a typed dictionary and a union
import typing
class Setting(typing.TypedDict):
    gain: float
SETTING = Setting(gain=2.0)
def f(x): return np.sqrt(x) * SETTING["gain"]
--
SETTING["gain"] = 5.0

## a protocol that is checked
import typing
@typing.runtime_checkable
class HasGain(typing.Protocol):
    def gain(self): ...
class Setting: pass
setting = Setting()
def f(x): return np.sqrt(x) * (5 if isinstance(setting, HasGain) else 2)
--
Setting.gain = lambda self: 1

## a bound method that is kept
class Setting:
    level = 2.0
    def gain(self): return self.level
setting = Setting()
GAIN = setting.gain
def f(x): return np.sqrt(x) * GAIN()
--
setting.level = 5.0

## a bound method of a list
VALUES = [2.0, 3.0]
COUNT = VALUES.count
def f(x): return np.sqrt(x) * COUNT(2.0)
--
VALUES += [2.0, 2.0]

## a file that is an array
import tempfile
path = tempfile.mkdtemp() + "/values"
np.full(400, 2.0).tofile(path)
def f(x): return np.sqrt(x) * np.memmap(path, float, "r")
--
np.full(400, 5.0).tofile(path)

## a file that is an array from outside
import tempfile
path = tempfile.mkdtemp() + "/values"
np.full(400, 2.0).tofile(path)
VALUES = np.memmap(path, float, "r")
def f(x): return np.sqrt(x) * VALUES
--
np.full(400, 5.0).tofile(path)
"""
)
