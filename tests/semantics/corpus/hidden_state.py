"""State that hides: behind methods that Python calls by itself, in helpers, in builtins, in modules of others."""

import builtins
import collections
import functools
import json
import logging
import math
import operator
import re
import string
import types
import typing

import numpy as np

from tests.semantics.cases import World, case, case_of_state, turn, vector


def of(function, change=lambda n: None, **more):
    return World(function, lambda n: (vector(n),), change, **more)


def _with(methods):
    """An object of a class with these methods, and a count that others change."""
    made = type("Hidden", (), methods)()
    made.count = 1
    return made


def _changing(held):
    return lambda n: setattr(held, "count", turn(n, 1, 2, 5))


@case_of_state(either=True)
def length():
    held = _with({"__len__": lambda self: self.count})

    def function(x):
        return x * len(held)

    return of(function, _changing(held))


@case_of_state(either=True)
def truth():
    held = _with({"__bool__": lambda self: self.count > 1})

    def function(x):
        return x * 2 if held else x * 3

    return of(function, _changing(held))


@case_of_state(either=True)
def iteration():
    held = _with({"__iter__": lambda self: iter([self.count, 2])})

    def function(x):
        return x * sum(held), [x + each for each in held]

    return of(function, _changing(held))


@case_of_state(either=True)
def membership():
    held = _with({"__contains__": lambda self, item: item < self.count})

    def function(x):
        return x * 2 if 1 in held else x * 3

    return of(function, _changing(held))


@case_of_state(either=True)
def as_an_index():
    held = _with({"__index__": lambda self: self.count})

    def function(x):
        return x[held:] * 2, x[held]

    return of(function, _changing(held))


@case_of_state(either=True)
def as_a_float():
    held = _with({"__float__": lambda self: self.count / 2, "__int__": lambda self: self.count})

    def function(x):
        return x * float(held) + int(held)

    return of(function, _changing(held))


@case_of_state(either=True)
def as_text():
    held = _with({"__str__": lambda self: "a" * self.count, "__format__": lambda self, how: "b" * self.count})

    def function(x):
        return x * len(str(held)) + len(f"{held}")

    return of(function, _changing(held))


@case_of_state(either=True)
def as_an_array():
    held = _with({"__array__": lambda self, dtype=None, copy=None: np.full(6, self.count, np.float32)})

    def function(x):
        return x + np.asarray(held), x * held

    return of(function, _changing(held))


@case_of_state(either=True)
def comparison():
    held = _with({"__eq__": lambda self, other: self.count == other, "__lt__": lambda self, other: self.count < other})

    def function(x):
        return x * 2 if held == 2 else x * 3 if held < 2 else x * 4

    return of(function, _changing(held))


@case_of_state(either=True)
def arithmetic():
    held = _with({"__rmul__": lambda self, other: other * self.count, "__array_ufunc__": None})

    def function(x):
        return x * held

    return of(function, _changing(held))


@case_of_state(either=True)
def a_call():
    held = _with({"__call__": lambda self, x: x * self.count})

    def function(x):
        return held(x)

    return of(function, _changing(held))


@case_of_state(either=True)
def a_context():
    held = _with({"__enter__": lambda self: self.count, "__exit__": lambda self, *error: None})

    def function(x):
        with held as count:
            return x * count

    return of(function, _changing(held))


@case_of_state(either=True)
def an_attribute_by_getattribute():
    held = _with({"__getattribute__": lambda self, name: object.__getattribute__(self, "count") * 2})

    def function(x):
        return x * held.anything

    def change(n):
        object.__setattr__(held, "count", turn(n, 1, 2))

    return of(function, change)


@case_of_state(either=True)
def an_attribute_of_a_metaclass():
    class Meta(type):
        factor = 1.0

        def __getattr__(cls, name):
            return cls.factor * 2

    class Held(metaclass=Meta):
        pass

    def function(x):
        return x * Held.missing + Held.factor

    return of(function, lambda n: setattr(Meta, "factor", turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def a_dict_with_missing():
    class Held(dict):
        default = 1

        def __missing__(self, key):
            return self.default

    held = Held()

    def function(x):
        return x * held["a"]

    return of(function, lambda n: setattr(Held, "default", turn(n, 1, 2)))


@case_of_state(either=True)
def a_list_with_another_getitem():
    class Held(list):
        def __getitem__(self, position):
            return super().__getitem__(position) * len(self)

    held = Held([2.0])

    def function(x):
        return x * held[0]

    return of(function, lambda n: held.append(1.0) if n % 3 == 0 else None)


@case_of_state(either=True)
def a_cached_property():
    class Held:
        asked = 0

        @functools.cached_property
        def table(self):
            Held.asked += 1
            return np.full(6, 2, np.float32)

    held = Held()

    def function(x):
        return x * held.table

    def change(n):
        if n % 5 == 0:
            held.__dict__.pop("table", None)

    return of(function, change, seen=lambda: Held.asked)


@case_of_state(either=True)
def a_slot_is_deleted():
    class Held:
        __slots__ = ("factor",)

    held = Held()

    def function(x):
        try:
            return x * held.factor
        except AttributeError:
            return x * 100

    def change(n):
        if n % 3 == 0:
            held.factor = 2.0
        elif n % 3 == 1:
            held.factor = 3
        else:
            del held.factor

    return of(function, change)


@case_of_state(either=True)
def an_attribute_comes_and_goes():
    class Held:
        pass

    held = Held()

    def function(x):
        return x * getattr(held, "factor", 7), x * (2 if hasattr(held, "factor") else 3)

    def change(n):
        if n % 2:
            held.factor = turn(n // 2, 2.0, 3)
        else:
            held.__dict__.pop("factor", None)

    return of(function, change)


@case_of_state(either=True)
def a_class_attribute_comes_and_goes():
    class Base:
        factor = 2.0

    class Held(Base):
        pass

    held = Held()

    def function(x):
        return x * held.factor

    def change(n):
        if n % 2:
            Held.factor = 5.0
        elif "factor" in vars(Held):
            del Held.factor

    return of(function, change)


@case_of_state(either=True)
def the_bases_of_a_class_change():
    class One:
        factor = 2.0

    class Two:
        factor = 3.0

    class Held(One):
        pass

    def function(x):
        return x * Held().factor

    return of(function, lambda n: setattr(Held, "__bases__", (turn(n, One, Two),)))


@case_of_state(either=True)
def a_property_is_replaced():
    class Held:
        factor = 1.0

    held = Held()

    def function(x):
        return x * held.factor

    def change(n):
        Held.factor = turn(n, 2.0, property(lambda self: 3.0), property(lambda self: 4.0))

    return of(function, change)


@case_of_state(either=True)
def the_code_of_a_function_is_replaced():
    def helper(x):
        return x * 2

    def other(x):
        return x * 3

    codes = helper.__code__, other.__code__

    def function(x):
        return helper(x)

    return of(function, lambda n: setattr(helper, "__code__", turn(n, *codes)))


@case_of_state(either=True)
def the_code_of_the_function_itself_is_replaced():
    def function(x):
        return x * 2

    def other(x):
        return x * 3

    codes = function.__code__, other.__code__
    return of(function, lambda n: setattr(function, "__code__", turn(n, *codes)))


@case_of_state(either=True)
def a_default_of_a_helper():
    def helper(x, by=[1.0]):
        return x * by[0]

    def function(x):
        return helper(x)

    return of(function, lambda n: helper.__defaults__[0].__setitem__(0, turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def a_helper_that_counts():
    calls = []

    def helper(x):
        calls.append(1)
        return x * len(calls)

    def function(x):
        return helper(x)

    return of(function, seen=lambda: len(calls))


@case_of_state(either=True)
def a_decorator_that_counts():
    count = 0

    def counting(function):
        @functools.wraps(function)
        def inside(*arguments):
            nonlocal count
            count += 1
            return function(*arguments) + count

        return inside

    @counting
    def function(x):
        return x * 2

    return of(function, seen=lambda: count)


@case_of_state(either=True)
def a_memo_of_a_recursion():
    memo = {}

    def power(k):
        if k not in memo:
            memo[k] = 1 if k == 0 else 2 * power(k - 1)
        return memo[k]

    def function(x):
        return x * power(4)

    return of(function, seen=lambda: dict(memo))


@case_of_state(either=True)
def a_builtin_is_shadowed():
    module = {"__name__": "shadowed", "np": np}
    exec("def function(x):\n    return x * len(x)", module)

    def change(n):
        if n % 2:
            module["len"] = lambda v: 10
        else:
            module.pop("len", None)

    return of(module["function"], change)


@case_of_state(either=True)
def a_builtin_is_replaced():
    kept = builtins.abs

    def function(x):
        return x * abs(-2)

    def change(n):
        builtins.abs = turn(n, kept, lambda v: kept(v) + 1)

    return of(function, change, undo=lambda: setattr(builtins, "abs", kept))


@case_of_state(either=True)
def numpy_gets_an_attribute():
    def function(x):
        return x * np.a_setting_of_a_test

    return of(
        function,
        lambda n: setattr(np, "a_setting_of_a_test", turn(n, 1.0, 2.0)),
        undo=lambda: delattr(np, "a_setting_of_a_test"),
    )


@case_of_state(either=True)
def a_function_of_numpy_is_replaced():
    kept = np.sinc

    def function(x):
        return np.sinc(x)

    return of(function, lambda n: setattr(np, "sinc", turn(n, kept, np.tanh)), undo=lambda: setattr(np, "sinc", kept))


@case_of_state(either=True)
def a_constant_of_math_is_replaced():
    kept = math.pi

    def function(x):
        return x * math.pi

    return of(function, lambda n: setattr(math, "pi", turn(n, kept, 3.0)), undo=lambda: setattr(math, "pi", kept))


@case_of_state(either=True)
def a_global_is_deleted():
    module = {"__name__": "deleting", "FACTOR": 2.0}
    exec("def function(x):\n    return x * FACTOR", module)

    def change(n):
        if n % 3 == 2:
            module.pop("FACTOR", None)
        else:
            module["FACTOR"] = turn(n, 2.0, 3)

    return of(module["function"], change)


@case_of_state(either=True)
def a_closure_cell_is_empty():
    def make():
        def function(x):
            return x * factor

        def change(n):
            nonlocal factor
            if n % 3 == 2:
                factor = None
                del factor
            else:
                factor = 2.0

        factor = 1.0
        return function, change

    return of(*make())


@case_of_state(either=True)
def a_logger():
    lines = []
    logger = logging.Logger("of a test")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)

    def function(x):
        logger.warning("called with %s", x.shape)
        return x * 2

    return of(function, lambda n: logger.setLevel(turn(n, 10, 50)), seen=lambda: list(lines))


@case_of_state(either=True)
def other_modules():
    def function(x):
        found = re.match(r"a(\d+)", "a12")
        return x * int(found.group(1)) + json.loads("[1, 2]")[1] + len(string.digits)

    return of(function)


@case_of_state(either=True)
def getters_of_operator():
    held = types.SimpleNamespace(inner=types.SimpleNamespace(factor=1.0))
    get = operator.attrgetter("inner.factor")

    def function(x):
        return x * get(held)

    return of(function, lambda n: setattr(held.inner, "factor", turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def a_partial_of_a_partial():
    table = {"by": 1.0}

    def scaled(x, table, offset):
        return x * table["by"] + offset

    inner = functools.partial(functools.partial(scaled, table=table), offset=1)

    def function(x):
        return inner(x)

    return of(function, lambda n: table.update(by=turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def single_dispatch():
    @functools.singledispatch
    def kind(value):
        return 1

    @kind.register
    def _(value: np.ndarray):
        return 2

    def function(x):
        return x * kind(x)

    return of(function)


@case_of_state(either=True)
def a_protocol():
    @typing.runtime_checkable
    class Sized(typing.Protocol):
        def __len__(self): ...

        def tolist(self): ...

    def function(x):
        return x * 2 if isinstance(x, Sized) else x * 3

    return of(function)


@case_of_state(either=True)
def an_instance_check_of_a_class():
    class Meta(type):
        answer = True

        def __instancecheck__(cls, instance):
            return cls.answer

    class Held(metaclass=Meta):
        pass

    def function(x):
        return x * 2 if isinstance(x, Held) else x * 3

    return of(function, lambda n: setattr(Meta, "answer", n % 2 == 0))


@case_of_state(either=True)
def a_user_list():
    held = collections.UserList([1.0])

    def function(x):
        return x * sum(held)

    return of(function, lambda n: held.append(1.0) if n % 4 == 0 else None)


@case_of_state(either=True)
def a_mapping_proxy():
    inner = {"a": 1.0}
    held = types.MappingProxyType(inner)

    def function(x):
        return x * held["a"]

    return of(function, lambda n: inner.update(a=turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def a_view_of_a_dict():
    inner = {"a": 1.0}
    values = inner.values()

    def function(x):
        return x * sum(values)

    return of(function, lambda n: inner.update({"ab"[n % 2]: turn(n, 1.0, 2.0)}))


@case_of_state(either=True)
def a_zip_that_is_used_up():
    pairs = zip([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])

    def function(x):
        total = 0.0
        for one, other in pairs:
            total += one * other
        return x * total

    return of(function)


@case_of_state(either=True)
def a_flat_iterator_of_an_array():
    held = np.arange(200, dtype=np.float32).flat

    def function(x):
        return x * next(held)

    return of(function)


@case_of_state(either=True)
def a_view_of_an_outside_array_is_kept():
    whole = np.zeros(6, np.float32)
    held = {"part": whole[2:4]}

    def function(x):
        return x[2:4] + held["part"], x * whole

    return of(function, lambda n: whole.__setitem__(n % 6, n))


@case_of_state(either=True)
def an_array_in_an_object_array():
    held = np.empty(1, object)
    held[0] = np.ones(6, np.float32)

    def function(x):
        return x + held[0]

    return of(function, lambda n: held[0].__setitem__(n % 6, n))


@case_of_state(either=True)
def an_array_with_attributes():
    class Held(np.ndarray):
        factor = 1.0

    held = np.ones(6, np.float32).view(Held)

    def function(x):
        return x * held.factor

    return of(function, lambda n: setattr(held, "factor", turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def a_scalar_and_an_array_change_places():
    held = {"value": 1.0}

    def function(x):
        return x + held["value"]

    def change(n):
        held["value"] = turn(n, 1.0, vector(n), np.float32(2), np.array(3.0, np.float32), [1.0] * 6, True)

    return of(function, change)


def _namespace(n):
    return types.SimpleNamespace(a=turn(n, 1.0, 2.0), inner=types.SimpleNamespace(b=n % 3))


@case(lambda n: (vector(n), _namespace(n)), either=True)
def namespaces_as_arguments(x, options):
    return x * options.a + options.inner.b


@case(
    lambda n: (vector(n), collections.OrderedDict([turn(n + k, ("a", 1.0), ("b", 2.0)) for k in (0, 1)])), either=True
)
def ordered_dicts_as_arguments(x, options):
    return x * next(iter(options.values()))


@case(lambda n: (vector(n), turn(n, {"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0})), either=True)
def dicts_in_another_order(x, options):
    for name in options:
        x = x * 2 + (1 if name == "a" else 3)
    return x


@case(lambda n: (vector(n), turn(n, [1.0, 2.0], (1.0, 2.0))), either=True)
def lists_and_tuples_that_hold_the_same(x, values):
    return x * 2 if isinstance(values, list) else x * 3
