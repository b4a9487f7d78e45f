"""State outside of a function that changes between its calls, of every kind that Python has."""

import argparse
import array
import contextvars
import itertools
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque

import numpy as np

from tests.semantics.cases import World, case, case_of_state, matrix, turn, vector

FACTOR = 2.0
TABLE = np.ones(6, np.float32)
OPTIONS = {"gain": 1.0, "mode": "scale"}
LEVELS = [1.0, 2.0]
CALLS = 0
GENERATOR = np.random.default_rng(1)


def helper(x):
    return x * FACTOR


def _set(**values):
    globals().update(values)


def one(function, change, **more):
    return World(function, lambda n: (vector(n),), change, **more)


@case_of_state()
def global_float():
    _set(FACTOR=2.0)

    def function(x):
        return x * FACTOR

    return one(function, lambda n: _set(FACTOR=turn(n, 2.0, 3.0, 4)), undo=lambda: _set(FACTOR=2.0))


@case_of_state()
def global_of_other_types():
    def function(x):
        return x * 2 if FACTOR is None else x + len(FACTOR) if isinstance(FACTOR, str) else x * FACTOR

    return one(function, lambda n: _set(FACTOR=turn(n, None, "text", True, 3, 0.5)), undo=lambda: _set(FACTOR=2.0))


@case_of_state()
def global_through_a_helper():
    def function(x):
        return helper(x) + 1

    return one(function, lambda n: _set(FACTOR=turn(n, 2.0, 3.0)), undo=lambda: _set(FACTOR=2.0))


@case_of_state()
def global_function_replaced():
    kept = helper

    def function(x):
        return helper(x)

    def change(n):
        _set(helper=turn(n, kept, lambda x: x - 1, np.abs))

    return one(function, change, undo=lambda: _set(helper=kept))


@case_of_state()
def global_array_replaced():
    def function(x):
        return x + TABLE

    return one(function, lambda n: _set(TABLE=vector(n % 3)), undo=lambda: _set(TABLE=np.ones(6, np.float32)))


@case_of_state()
def global_array_written():
    _set(TABLE=np.ones(6, np.float32))

    def function(x):
        return x + TABLE

    def change(n):
        TABLE[n % 6] += 1

    return one(function, change, undo=lambda: _set(TABLE=np.ones(6, np.float32)))


@case_of_state()
def global_array_of_another_type_or_shape():
    def function(x):
        return (x * TABLE).sum()

    def change(n):
        _set(TABLE=turn(n, np.ones(6, np.float32), np.arange(6, dtype=np.int32), np.ones((2, 6), np.float32), 3.0))

    return one(function, change, undo=lambda: _set(TABLE=np.ones(6, np.float32)))


@case_of_state()
def global_dict():
    def function(x):
        return x * OPTIONS["gain"] if OPTIONS.get("mode") == "scale" else x + OPTIONS["gain"]

    def change(n):
        OPTIONS["gain"] = turn(n, 1.0, 2.5)
        OPTIONS["mode"] = turn(n // 2, "scale", "shift")

    return one(function, change, undo=lambda: OPTIONS.update(gain=1.0, mode="scale"))


@case_of_state()
def global_list():
    def function(x):
        return x * sum(LEVELS) + len(LEVELS)

    def change(n):
        LEVELS[:] = turn(n, [1.0], [1.0, 2.0], [4.0, 2.0])

    return one(function, change)


@case_of_state(stays_on_numpy="changes")
def global_counter_of_the_function():
    _set(CALLS=0)

    def function(x):
        global CALLS
        CALLS += 1
        return x * CALLS

    return World(function, lambda n: (vector(n),), seen=lambda: CALLS, undo=lambda: _set(CALLS=0))


@case_of_state(either=True)
def globals_by_name():
    def function(x):
        return x * globals()["FACTOR"]

    return one(function, lambda n: _set(FACTOR=turn(n, 2.0, 3.0)), undo=lambda: _set(FACTOR=2.0))


@case_of_state(either=True)
def eval_of_a_global():
    def function(x):
        return x * eval("FACTOR + 1")

    return one(function, lambda n: _set(FACTOR=turn(n, 2.0, 3.0)), undo=lambda: _set(FACTOR=2.0))


def _holding(make, use, alter):
    """An object of some kind in a closure, which the function uses and others alter."""
    held = make()

    def function(x):
        return use(x, held)

    return one(function, lambda n: alter(held, n))


@case_of_state(either=True)
def simple_namespace():
    return _holding(
        lambda: types.SimpleNamespace(gain=1.0),
        lambda x, held: x * held.gain,
        lambda held, n: setattr(held, "gain", turn(n, 1.0, 2.0)),
    )


@case_of_state(either=True)
def argparse_namespace():
    return _holding(
        lambda: argparse.Namespace(gain=1.0, fast=False),
        lambda x, held: x * held.gain if held.fast else x + held.gain,
        lambda held, n: (setattr(held, "gain", turn(n, 1.0, 2.0)), setattr(held, "fast", n % 3 == 0)),
    )


@case_of_state(either=True)
def set_of_names():
    return _holding(
        set,
        lambda x, held: x * 2 if "double" in held else x,
        lambda held, n: (held.clear(), held.add(turn(n, "double", "no"))),
    )


@case_of_state(either=True)
def frozenset_replaced():
    names = frozenset()

    def function(x):
        return x * 2 if "double" in names else x + 1

    def change(n):
        nonlocal names
        names = turn(n, frozenset(["double"]), frozenset())

    return one(function, change)


@case_of_state(either=True)
def deque_of_numbers():
    return _holding(
        lambda: deque([1.0], maxlen=3), lambda x, held: x * sum(held), lambda held, n: held.append(turn(n, 1.0, 2.0))
    )


@case_of_state(either=True)
def deque_of_arrays():
    return _holding(
        lambda: deque([np.ones(6, np.float32)], maxlen=2),
        lambda x, held: x + held[-1],
        lambda held, n: held.append(vector(n % 3)),
    )


@case_of_state()
def dict_of_a_closure():
    return _holding(
        lambda: {"a": 1.0, "b": np.ones(6, np.float32)},
        lambda x, held: x * held["a"] + held["b"],
        lambda held, n: held.update(a=turn(n, 1.0, 2.0), b=vector(n % 2)),
    )


@case_of_state()
def dict_that_is_iterated():
    def alter(held, n):
        held.clear()
        held.update(turn(n, {"a": 1.0}, {"b": 2.0, "a": 3.0}, {"a": 3.0, "b": 2.0}))

    def use(x, held):
        for name, value in held.items():
            x = x * value + len(name)
        return x, list(held)

    return _holding(dict, use, alter)


@case_of_state()
def nested_dicts_and_lists():
    return _holding(
        lambda: {"layers": [{"gain": 1.0}, {"gain": 2.0}]},
        lambda x, held: x * held["layers"][0]["gain"] + held["layers"][-1]["gain"],
        lambda held, n: held["layers"][n % 2].update(gain=turn(n, 1.0, 5.0, 2.0)),
    )


@case_of_state(either=True)
def ordered_dict():
    return _holding(
        lambda: OrderedDict(a=1.0, b=2.0),
        lambda x, held: x * next(iter(held.values())),
        lambda held, n: held.move_to_end(turn(n, "a", "b")),
    )


@case_of_state(either=True)
def default_dict():
    def use(x, held):
        return x * (held["a"] + 1)

    held = defaultdict(float)

    def function(x):
        return use(x, held)

    def change(n):
        if n % 3 == 0:
            held.clear()
        else:
            held["a"] = turn(n, 1.0, 2.0)

    return one(function, change, seen=lambda: dict(held))


@case_of_state(either=True)
def counter_of_names():
    return _holding(Counter, lambda x, held: x * (held["a"] + 1), lambda held, n: held.update(turn(n, "a", "b")))


@case_of_state(either=True)
def chain_map():
    return _holding(
        lambda: ChainMap({}, {"gain": 1.0}),
        lambda x, held: x * held["gain"],
        lambda held, n: held.maps[0].update(gain=3.0) if n % 2 else held.maps[0].clear(),
    )


@case_of_state(either=True)
def array_array():
    return _holding(
        lambda: array.array("d", [1.0, 2.0]),
        lambda x, held: x * held[0] + np.asarray(held)[1],
        lambda held, n: held.__setitem__(n % 2, turn(n, 1.0, 2.0, 3.0)),
    )


@case_of_state(either=True)
def byte_array():
    return _holding(
        lambda: bytearray(b"\x01\x02"),
        lambda x, held: x * held[0] + np.frombuffer(held, np.uint8)[1],
        lambda held, n: held.__setitem__(n % 2, n % 5),
    )


@case_of_state(either=True)
def memory_view():
    raw = bytearray(b"\x01\x02")
    held = memoryview(raw)

    def function(x):
        return x * held[0]

    return one(function, lambda n: raw.__setitem__(0, n % 3))


@case_of_state(either=True)
def context_variable():
    gain = contextvars.ContextVar("gain", default=1.0)

    def function(x):
        return x * gain.get()

    return one(function, lambda n: gain.set(turn(n, 1.0, 2.0)))


@case_of_state(either=True)
def thread_local():
    return _holding(
        threading.local,
        lambda x, held: x * getattr(held, "gain", 5.0),
        lambda held, n: setattr(held, "gain", turn(n, 1.0, 2.0)),
    )


@case_of_state(either=True)
def record_array():
    return _holding(
        lambda: np.rec.array([(1.0, 2)], dtype=[("gain", "f4"), ("count", "i4")]),
        lambda x, held: x * held.gain[0] + held["count"][0],
        lambda held, n: held.__setitem__(0, (turn(n, 1.0, 2.0), n % 3)),
    )


@case_of_state(either=True)
def structured_array():
    return _holding(
        lambda: np.zeros(6, [("gain", "f4"), ("count", "i4")]),
        lambda x, held: x * held["gain"] + held["count"],
        lambda held, n: held["gain"].__setitem__(n % 6, n % 4),
    )


@case_of_state(either=True)
def object_array():
    return _holding(
        lambda: np.array([1.0, None], object),
        lambda x, held: x * held[0],
        lambda held, n: held.__setitem__(0, turn(n, 1.0, 2.0)),
    )


@case_of_state(either=True)
def string_array():
    return _holding(
        lambda: np.array(["double", "half"]),
        lambda x, held: x * 2 if held[0] == "double" else x / 2,
        lambda held, n: held.__setitem__(0, turn(n, "double", "half")),
    )


@case_of_state(either=True)
def masked_array():
    return _holding(
        lambda: np.ma.array(np.ones(6, np.float32), mask=[0, 0, 1, 0, 0, 0]),
        lambda x, held: x + held.filled(5),
        lambda held, n: held.__setitem__(n % 6, n % 4),
    )


@case_of_state(either=True)
def numpy_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = np.asmatrix(np.ones((6, 6), np.float32))

    def function(x):
        return np.asarray(held * x[:, None]).ravel()

    return one(function, lambda n: held.__setitem__((0, n % 6), n % 3))


@case_of_state(either=True)
def module_attribute():
    module = types.ModuleType("settings_of_a_test")
    module.GAIN = 1.0
    sys.modules[module.__name__] = module

    def function(x):
        import settings_of_a_test

        return x * settings_of_a_test.GAIN

    return one(
        function,
        lambda n: setattr(module, "GAIN", turn(n, 1.0, 2.0)),
        undo=lambda: sys.modules.pop(module.__name__),
    )


@case_of_state(either=True)
def module_in_a_closure():
    module = types.ModuleType("another")
    module.GAIN = 1.0

    def function(x):
        return x * module.GAIN

    return one(function, lambda n: setattr(module, "GAIN", turn(n, 1.0, 2)))


@case_of_state(either=True)
def from_import_inside():
    module = types.ModuleType("settings_of_another_test")
    sys.modules[module.__name__] = module

    def function(x):
        from settings_of_another_test import GAIN

        return x * GAIN

    return one(
        function,
        lambda n: setattr(module, "GAIN", turn(n, 1.0, 2.0)),
        undo=lambda: sys.modules.pop(module.__name__),
    )


@case_of_state(either=True)
def environment():
    def function(x):
        return x * float(os.environ.get("ANYGPU_TEST_FACTOR", "1"))

    def change(n):
        os.environ["ANYGPU_TEST_FACTOR"] = turn(n, "1", "2.5")

    return one(function, change, undo=lambda: os.environ.pop("ANYGPU_TEST_FACTOR", None))


@case_of_state(either=True)
def environment_by_getenv():
    def function(x):
        return x * float(os.getenv("ANYGPU_TEST_FACTOR", "1"))

    def change(n):
        os.environ["ANYGPU_TEST_FACTOR"] = turn(n, "1", "2.5")

    return one(function, change, undo=lambda: os.environ.pop("ANYGPU_TEST_FACTOR", None))


@case_of_state(either=True)
def a_file():
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "factor"

    def function(x):
        return x * float(path.read_text())

    return one(function, lambda n: path.write_text(turn(n, "1", "2.5")), undo=folder.cleanup)


@case_of_state(either=True)
def an_open_file_that_is_written():
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "log"

    def function(x):
        with open(path, "a") as log:
            log.write("called\n")
        return x * 2

    return World(function, lambda n: (vector(n),), seen=lambda: path.read_text(), undo=folder.cleanup)


@case_of_state(either=True)
def global_random_of_numpy():
    def function(x):
        return x + np.random.rand()

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def random_of_numpy_seeded_inside():
    def function(x, seed):
        np.random.seed(seed)
        return x + np.random.standard_normal(6).astype(np.float32)

    return World(function, lambda n: (vector(n), n % 3))


@case_of_state(either=True)
def generator_of_numpy():
    generator = np.random.default_rng(3)

    def function(x):
        return x * generator.random(6, np.float32)

    return World(function, lambda n: (vector(n),), seen=lambda: repr(generator.bit_generator.state))


@case_of_state(either=True)
def generator_made_inside():
    def function(x, seed):
        return x + np.random.default_rng(seed).random(6, np.float32)

    return World(function, lambda n: (vector(n), n % 3))


@case_of_state(either=True)
def generator_as_argument():
    generator = np.random.default_rng(3)

    def function(x, generator):
        return x + generator.normal(size=6).astype(np.float32)

    return World(function, lambda n: (vector(n), generator), seen=lambda: repr(generator.bit_generator.state))


@case_of_state(either=True)
def random_of_python():
    def function(x):
        return x * random.random() + random.choice([1, 2, 3])

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def own_random_of_python():
    source = random.Random(5)

    def function(x):
        return x * source.randint(1, 5)

    return World(function, lambda n: (vector(n),), seen=lambda: hash(source.getstate()))


@case_of_state(either=True)
def the_time():
    clock = iter(range(10**6))
    kept = time.time

    def function(x):
        return x * (time.time() % 7)

    time.time = lambda: float(next(clock)) if threading.current_thread() is threading.main_thread() else kept()
    return World(function, lambda n: (vector(n),), undo=lambda: setattr(time, "time", kept))


@case_of_state(either=True)
def an_iterator_is_consumed():
    numbers = itertools.count(1)

    def function(x):
        return x * next(numbers)

    return World(function, lambda n: (vector(n),), seen=lambda: repr(numbers))


@case_of_state(either=True)
def an_endless_cycle():
    factors = itertools.cycle([1.0, 2.0, 3.0])

    def function(x):
        return x * next(factors)

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def a_generator_is_consumed():
    def numbers():
        value = 0
        while True:
            value += 1
            yield value

    running = numbers()

    def function(x):
        return x * next(running)

    return World(function, lambda n: (vector(n),), seen=lambda: running.gi_frame.f_locals["value"])


@case_of_state(either=True)
def an_iterator_as_argument():
    def function(x, numbers):
        return x * sum(numbers)

    return World(function, lambda n: (vector(n), iter([1, n % 3])))


@case_of_state(either=True)
def a_generator_of_arrays_as_argument():
    def function(arrays):
        total = 0
        for each in arrays:
            total = total + each
        return total

    return World(function, lambda n: ((vector(n + k) for k in range(3)),))


@case_of_state(either=True)
def a_weak_reference():
    class Node:
        factor = 2.0

    node = Node()
    reference = weakref.ref(node)

    def function(x):
        found = reference()
        return x * found.factor if found is not None else x * 100

    def change(n):
        nonlocal node
        if n == 20:
            node = None
        elif node is not None:
            node.factor = turn(n, 2.0, 3.0)

    return one(function, change)


@case_of_state(either=True)
def a_weak_dictionary():
    class Key:
        pass

    keys = [Key(), Key()]
    held = weakref.WeakKeyDictionary({keys[0]: 2.0, keys[1]: 3.0})

    def function(x):
        return x * len(held)

    def change(n):
        if n == 20:
            keys.pop()

    return one(function, change)


@case_of_state(either=True)
def the_state_of_floating_point_errors():
    def function(x):
        return x * (2 if np.geterr()["divide"] == "ignore" else 3)

    kept = np.geterr()

    def change(n):
        np.seterr(divide=turn(n, "ignore", "warn"))

    return one(function, change, undo=lambda: np.seterr(**kept))


@case_of_state(either=True)
def the_filters_of_warnings():
    def function(x):
        return x * len(warnings.filters)

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def a_warning_of_the_users():
    def function(x):
        warnings.warn("take care", UserWarning, stacklevel=1)
        return x * 2

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def warnings_caught_inside():
    def function(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("inside", DeprecationWarning, stacklevel=1)
        return x * len(caught)

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def print_options():
    kept = np.get_printoptions()

    def function(x):
        return x * np.get_printoptions()["precision"]

    def change(n):
        np.set_printoptions(precision=turn(n, 8, 3))

    return one(function, change, undo=lambda: np.set_printoptions(**kept))


@case_of_state(either=True)
def recursion_limit_and_argv():
    kept = list(sys.argv)

    def function(x):
        return x * len(sys.argv)

    def change(n):
        sys.argv[:] = ["a"] * turn(n, 1, 2)

    return one(function, change, undo=lambda: sys.argv.__setitem__(slice(None), kept))


@case_of_state(either=True)
def an_array_is_resized():
    held = np.ones(6, np.float32)

    def function(x):
        return x.sum() + held.sum()

    def change(n):
        held.resize(turn(n, 6, 4, 8), refcheck=False)

    return one(function, change)


@case_of_state()
def an_array_is_reshaped():
    held = np.arange(6, dtype=np.float32)

    def function(x):
        return x.sum() + held[0].sum() + held.ndim

    def change(n):
        nonlocal held
        held = held.reshape(turn(n, (6,), (2, 3), (3, 2)))

    return one(function, change)


@case_of_state()
def an_array_is_retyped():
    class Holder:
        pass

    holder = Holder()

    def function(x):
        return x * holder.table

    def change(n):
        holder.table = np.arange(6, dtype=turn(n, np.float32, np.int32, np.float64, np.uint8))

    return one(function, change)


@case_of_state()
def an_array_is_viewed_and_written_elsewhere():
    whole = np.zeros((4, 6), np.float32)
    held = whole[1]

    def function(x):
        return x + held

    def change(n):
        whole[:, n % 6] += 1

    return one(function, change)


@case_of_state(either=True)
def an_array_becomes_read_only():
    held = np.ones(6, np.float32)

    def function(x):
        if held.flags.writeable:
            return x + held
        return x - held

    return one(function, lambda n: held.setflags(write=n % 2 == 0))


@case_of_state(stays_on_numpy="writes to")
def an_outside_array_is_written():
    held = np.zeros(6, np.float32)

    def function(x):
        held[:] = held + x
        return held * 2

    return World(function, lambda n: (vector(n),), seen=lambda: held)


@case_of_state(stays_on_numpy="writes to")
def an_outside_array_is_added_to():
    held = np.zeros(6, np.float32)

    def function(x):
        nonlocal held
        held += x
        return x * 2

    return World(function, lambda n: (vector(n),), seen=lambda: held)


@case_of_state(either=True)
def an_outside_array_is_returned():
    held = np.ones(6, np.float32)

    def function(x):
        return held, x * 2

    return World(function, lambda n: (vector(n),), lambda n: held.__setitem__(0, n), seen=lambda: held)


@case_of_state(stays_on_numpy="changes")
def an_outside_dict_gets_an_array():
    held = {}

    def function(x):
        held["last"] = x * 2
        return x + 1

    return World(function, lambda n: (vector(n),), seen=lambda: dict(held))


@case_of_state(stays_on_numpy="changes")
def an_attribute_is_set():
    class Holder:
        last = None

    holder = Holder()

    def function(x):
        holder.last = x.sum()
        return x * 2

    return World(function, lambda n: (vector(n),), seen=lambda: holder.last)


@case_of_state(stays_on_numpy="changes")
def a_moving_average():
    class Average:
        def __init__(self):
            self.mean = np.zeros(6, np.float32)
            self.count = 0

        def update(self, x):
            self.count += 1
            self.mean = self.mean + (x - self.mean) / self.count
            return self.mean

    average = Average()
    return World(average.update, lambda n: (vector(n),), seen=lambda: (average.mean, average.count))


@case_of_state()
def the_same_argument_written_by_the_caller():
    held = vector(0)

    def function(x):
        return x * 2

    def change(n):
        held[n % 6] = n

    return World(function, lambda n: (held,), change)


@case_of_state()
def the_same_list_changed_by_the_caller():
    held = [vector(0), vector(1)]

    def function(arrays):
        return sum(arrays) * len(arrays)

    def change(n):
        if n % 4 == 0:
            held[:] = [vector(n), vector(n + 1)]
        else:
            held.append(vector(n))

    return World(function, lambda n: (held,), change)


@case_of_state()
def two_functions_share_state():
    state = {"step": 0.0}

    def advance():
        state["step"] += 1.0

    def function(x):
        return x + state["step"]

    return one(function, lambda n: advance() if n % 3 == 0 else None)


@case_of_state()
def nan_in_state():
    def function(x):
        return x * FACTOR

    return one(function, lambda n: _set(FACTOR=turn(n, float("nan"), 1.0, -0.0, 0.0)), undo=lambda: _set(FACTOR=2.0))


@case_of_state(either=True)
def counts_that_a_ufunc_adds_to():
    counts = np.zeros(4)

    def function(x):
        np.add.at(counts, [0, 0, 1], 1)
        return float(counts.sum()) + x.sum()

    return one(function, lambda n: counts.fill(n))


@case_of_state(either=True)
def counts_that_a_ufunc_adds_to_in_silence():
    counts = np.zeros(4)

    def function(x):
        np.subtract.at(counts, np.array([0, 2]), -1)
        return float(counts.sum())

    return one(function, lambda n: counts.fill(n))


@case_of_state(either=True)
def state_that_compares_equal():
    held = {"value": 1}

    def function(x):
        return x * 2 if type(held["value"]) is bool else x + held["value"]

    return one(function, lambda n: held.update(value=turn(n, 1, True, 1.0, np.float32(1))))


@case_of_state()
def a_string_that_changes():
    held = {"code": "ij,jk"}

    def function(x):
        return np.einsum(held["code"], x, x.T)

    return World(
        function, lambda n: (matrix(n),), lambda n: held.update(code=turn(n, "ij,jk", "ij,jk->ki", "ij,ji->i"))
    )


@case(lambda n: (vector(n), turn(n, {"a": 2.0}, {"a": 3.0, "b": 1.0})))
def a_dict_argument(x, options):
    return x * options["a"] + options.get("b", 0)


@case(lambda n: (vector(n), {"last": None}), either=True)
def a_dict_argument_is_written(x, box):
    box["last"] = x * 2
    return x + 1


@case(lambda n: (vector(n), []), either=True)
def a_list_argument_is_appended_to(x, log):
    log.append(x.sum())
    return x * 2


@case(lambda n: ([vector(n), vector(n + 1)],), either=True)
def a_list_argument_is_sorted(arrays):
    arrays.reverse()
    return arrays[0] * 2
