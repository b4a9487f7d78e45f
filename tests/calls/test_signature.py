"""Keys of calls: equal only for arguments of the same types and bits, and without anything of the user's in them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import gc
import threading
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anygpu as ag
from anygpu.calls.signature import INPUT_NUMBER_TYPES, function_key, signature, without
from anygpu.placement.values import bytes_of


def key(*arguments: Any, **keywords: Any) -> Any:
    """With the values of all numbers."""
    made = signature(arguments, keywords, frozenset())
    hash(made)
    return made


class Colour(enum.Enum):
    RED = 1
    ROUGE = 2


class Shade(enum.IntFlag):
    DARK = 1
    LIGHT = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any


F4, F8 = np.zeros(3, "f4"), np.zeros(3)
#: No two of these are the same call.
DIFFERENT: list[tuple[Any, ...]] = [
    (),
    (F4,),
    (F8,),
    (F8, F8),
    ((F8, F8),),
    ([F8, F8],),
    (F8.reshape(1, 3),),
    (F8.astype(">f8"),),
    (np.ma.masked_array(F8),),
    (np.zeros(3, "M8[s]"),),
    (np.zeros(3, [("a", "f8")]),),
    (ag.asarray(F8),),
    (1,),
    (True,),
    (1.0,),
    (1 + 0j,),
    (complex(1, -0.0),),
    (complex(-0.0, 0.0),),
    (complex(0.0, 0.0),),
    (complex("nan"),),
    ("1",),
    (b"1",),
    (np.int64(1),),
    (np.int32(1),),
    (np.bool_(True),),
    (np.float64(1),),
    (np.float32(1),),
    (np.complex64(1),),
    (np.complex64(complex(1, -0.0)),),
    (np.str_("1"),),
    (np.datetime64("2024-01-01"),),
    (np.datetime64("2024-01-01", "s"),),
    (np.longdouble(1),),
    (None,),
    (...,),
    (NotImplemented,),
    (slice(1),),
    (slice(1, None),),
    (slice(None, True),),
    (range(3),),
    (range(0, 3, 2),),
    (range(0, 4, 2),),
    (2**400,),
    (2**400 + 1,),
    ("a" * 1000,),
    ("a" * 999 + "b",),
    (np.dtype("f4"),),
    (np.dtype(">f4"),),
    (np.float32,),
    (np.float64,),
    (float,),
    (int,),
    (Colour.RED,),
    (Colour.ROUGE,),
    (Shade.DARK,),
    (Shade.DARK | Shade.LIGHT,),
    (Shade(0),),
    ({},),
    ([],),
    ((),),
    ({"a": 1},),
    ({"a": True},),
    ({"a": 1, "b": 2},),
    ({"b": 2, "a": 1},),
    ({1: "a"},),
    ({1.0: "a"},),
    ({True: "a"},),
    (OrderedDict(a=1),),
    (defaultdict(int, a=1),),
    (defaultdict(list, a=1),),
    (Pair(1, 2),),
    ((1, 2),),
    ([1, 2],),
    (Point(1, 2),),
    (Point(1, 3),),
    (Slotted(1),),
    (Slotted("1"),),
    (np.add,),
    (np.subtract,),
    (np.dot,),
    (len,),
    (abs,),
    (np,),
    (gc,),
    ("a", "b"),
    (("a",), "b"),
    (("a", "b"),),
]


def test_calls_that_differ_have_different_keys() -> None:
    seen: dict[Any, Any] = {}
    for arguments in DIFFERENT:
        assert key(*arguments) not in seen, (arguments, seen[key(*arguments)])
        seen[key(*arguments)] = arguments
    assert key(a=1) != key("a", 1) != key({"a": 1})
    assert key(a=1, b=2) != key(a=1, c=2)
    assert key(F8, a=F8) != key(F8, F8)


def test_the_same_call_has_the_same_key() -> None:
    for arguments in DIFFERENT:
        assert key(*arguments) == key(*arguments), arguments
    assert key(Point(F8, [1])) == key(Point(F8 + 1, [1]))
    assert key({"a": F8, "b": (1, "x")}) == key({"a": F8 * 2, "b": (1, "x")})


def test_the_values_of_lifted_numbers_do_not_count_until_they_decide() -> None:
    assert len({signature((each, [each, {"a": each}]), {}) for each in (1.0, -0.0, float("nan"))}) == 1
    deciding = without(INPUT_NUMBER_TYPES, {float})
    assert not {float, np.float64, np.float32} & deciding
    values = [0.0, -0.0, 1.0, float("inf"), float("nan"), 5e-324]
    assert len({signature((each,), {}, deciding) for each in values}) == len(values)
    assert len({signature((np.float64(each),), {}, deciding) for each in values}) == len(values)
    assert signature((float("nan"),), {}, deciding) == signature((float("nan"),), {}, deciding)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(plain, max_size=3), st.lists(plain, max_size=3))
def test_equal_keys_mean_the_same_types_and_values(one: list[Any], other: list[Any]) -> None:
    assert (key(*one) == key(*other)) == (repr(one) == repr(other))


def test_two_moments_in_two_time_zones_are_not_recorded_as_one() -> None:
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
    later = noon.astimezone(datetime.timezone(datetime.timedelta(hours=1)))
    assert noon == later
    x = np.ones(3, np.float32)

    def function(x: Any, when: Any) -> Any:
        return x * when.hour

    for on in ("numpy", "opencl"):
        assert ag.run(function, x, noon, on=on, fallback="allow").value[0] == 12
        assert ag.run(function, x, later, on=on, fallback="allow").value[0] == 13


@dataclasses.dataclass(frozen=True)
class Scale:
    factor: float
    offset: float = dataclasses.field(default=0.0, compare=False)

    def __call__(self, x: Any) -> Any:
        return x * self.factor + self.offset


@pytest.mark.parametrize("call", [lambda f, x: ag.run(f, x).value, lambda f, x: ag.submit(f, x).result(60)])
def test_callables_that_compare_equal_are_two(call: Any) -> None:
    x = np.arange(4)
    assert Scale(2) == Scale(2, offset=100)
    for each in (Scale(2), Scale(2, offset=100), Scale(True), Scale(2.5)):
        np.testing.assert_array_equal(call(each, x), each(x))
        assert call(each, x).dtype == each(x).dtype


def test_functions_have_keys_by_identity() -> None:
    def made(factor: float) -> Any:
        return lambda x: x * factor

    instance = Scale(2)
    functions = [made(1), made, len, abs, np.add, np.subtract, np.dot, np.float32, Scale(1), instance.__call__]
    keys = [function_key(each) for each in functions]
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert function_key(functions[0]) == function_key(functions[0])
    assert function_key(instance.__call__) == function_key(instance.__call__)


def test_closures_of_one_code_share_what_is_known_and_wrappers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:

    def scaled(factor: float) -> Any:
        return lambda x: x * factor

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(x: Any) -> Any:
            return function(x)

        return wrapper

    def one(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x - 1

    def calls_itself(x: Any) -> Any:
        return calls_itself(x - 1) if x else x

    assert function_key(scaled(1)) == function_key(scaled(2))
    assert function_key(logged(one)) == function_key(logged(one)) != function_key(logged(other))
    assert function_key(logged(logged(one))) != function_key(logged(logged(other)))
    assert function_key(lambda x, f=one: f(x)) != function_key(lambda x, f=other: f(x))
    assert function_key(calls_itself) == function_key(calls_itself)
    assert function_key(Model(1).scale) == function_key(Model(2).scale) != function_key(Other(1).scale)
    assert function_key(Model(1)) == function_key(Model(2)) != function_key(Other(1))


class Model:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scale(self, x: Any) -> Any:
        return x * self.factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor


class Other(Model):
    pass


# -- what no key may do


class Raises:
    """Whatever is asked of it, it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


@dataclasses.dataclass
class RaisesInField:
    x: Any

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise KeyError(name)
        return object.__getattribute__(self, name)


class Keyed(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("items")

    def __iter__(self) -> Any:
        raise RuntimeError("iter")


class Hidden(np.ndarray[Any, Any]):
    @property  # type: ignore[misc]
    def shape(self) -> Any:
        raise RuntimeError("shape")


class Lying:
    __class__ = np.ndarray  # type: ignore[assignment]


def unset() -> Slotted:
    made = Slotted(1)
    del made.x
    return made


@pytest.mark.parametrize(
    "make", [Raises, lambda: RaisesInField(1), lambda: Keyed(a=1), lambda: Hidden(3), Lying, unset, object]
)
def test_objects_that_raise_or_lie_do_not_disturb_a_call(make: Any) -> None:
    thing = make()
    seen: list[Any] = []

    @ag.offload
    def function(x: Any, thing: Any, **keywords: Any) -> Any:
        seen.append(thing)
        return x + 1

    x = np.ones(3)
    for each in (thing, [thing], {"a": (thing,)}, Point(thing)):
        for _ in range(3):
            np.testing.assert_array_equal(function(x, each, other=each), x + 1)
            np.testing.assert_array_equal(ag.run(function, x, each).value, x + 1)
            np.testing.assert_array_equal(ag.submit(function, x, each).result(60), x + 1)
    assert all(each is thing for each in seen[:9])
    bytes_of((thing, [thing]), {})


def test_containers_that_hold_themselves_or_a_great_deal() -> None:
    itself: list[Any] = [1]
    itself.append(itself)
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    point = Point(1)
    point.y = point
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    for each in (itself, loop, point, deep, list(range(10**6)), {str(n): n for n in range(10**5)}):
        assert len(key(each)) < 1000
        bytes_of((each,), {})
        assert ag.offload(lambda given: 1)(each) == 1


@pytest.mark.parametrize("dtype", [np.dtypes.StringDType(), np.dtypes.StringDType(na_object=[]), "O", "S3", "U3", "V4"])
def test_arrays_of_every_dtype(dtype: Any) -> None:
    array = np.zeros(2, dtype)
    function = ag.offload(lambda x, n: x)
    for _ in range(3):
        assert function(array, array.dtype) is array
        assert function([array], n=array[0])[0] is array


def test_a_dict_that_another_thread_changes() -> None:
    shared: dict[str, Any] = {str(number): number for number in range(50)}
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            shared["new"] = number
            shared.pop("new", None)

    function = ag.offload(lambda given: 1)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3000):
            assert function(shared) == 1
    finally:
        stop.set()
        thread.join()
