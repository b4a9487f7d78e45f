"""Small arrays of anygpu's own on the host: calls without planning, beside calls with it and beside NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import anygpu as ag
from anygpu.array.core.array import Array
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement.call_site import CallSite
from anygpu.placement.planner import Planner
from anygpu.receipts.receipt import Receipt

Floats = npt.NDArray[Any]

#: More than it takes to record a function of anygpu's own arrays.
CALLS = 4
FEW = ["float32", "float64", "int32", "uint8", "float16", "complex64"]


class Small:
    """An offloaded function whose calls skip planning, or do not, as a test wants it."""

    def __init__(self, function: Callable[..., Any], **given: Any) -> None:
        self.planner = planner = Planner()
        self.offloaded: Offloaded[..., Any] = Offloaded(function, options(**given), lambda: planner)

    def begin(self, *arguments: Any, **keywords: Any) -> CallSite:
        for _ in range(CALLS):
            self.offloaded(*arguments, **keywords)
        return self.site

    @property
    def site(self) -> CallSite:
        (found,) = self.offloaded._table.sites.values()
        return found

    def without_planning(self, *arguments: Any, **keywords: Any) -> tuple[Any, Receipt]:
        self.site.host.skip_planning_for(8, "it is small.")
        left = self.site.host.skip_planning
        assert left == 8
        value = self.offloaded(*arguments, **keywords)
        assert self.site.host.skip_planning == left - 1, "it was planned"
        return value, _last()

    def with_planning(self, *arguments: Any, **keywords: Any) -> tuple[Any, Receipt]:
        self.site.host.skip_planning_for(0, "")
        return self.offloaded(*arguments, **keywords), _last()


def _last() -> Receipt:
    receipt = ag.last_receipt()
    assert receipt is not None
    return receipt


def array(values: Any) -> Array:
    made = ag.asarray(values)
    assert isinstance(made, Array)
    return made


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same, to the type and the bit."""
    if isinstance(one, tuple | list):
        return type(one) is type(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if type(one) is not type(other):
        return False
    if isinstance(one, Array):
        left, right = np.asarray(one), np.asarray(other)
        facts = [(each.shape, each.dtype, each.tobytes()) for each in (left, right)]
        return facts[0] == facts[1] and one.device == other.device
    return repr(one) == repr(other)


def unwrapped(value: Any) -> Any:
    """What a function returned, with NumPy's arrays for anygpu's."""
    if isinstance(value, tuple | list):
        return type(value)(map(unwrapped, value))
    if isinstance(value, dict):
        return {name: unwrapped(each) for name, each in value.items()}
    return np.asarray(value) if isinstance(value, Array) else value


# -- by chance


STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x * y - 2,
    lambda x, y: np.maximum(x, y),
    lambda x, y: x[::-1] + y,
    lambda x, y: x.T.reshape(x.shape) * y,
    lambda x, y: x - x.mean(axis=0),
    lambda x, y: np.where(x == y, x, y),
    lambda x, y: np.sort(x, axis=-1) + y,
]
ENDS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x,
    lambda x, y: x.sum(),
    lambda x, y: x.sum(axis=0),
    lambda x, y: x.T,
    lambda x, y: (x, x - y),
    lambda x, y: {"a": x, "b": [y + 1, "text", 3]},
    lambda x, y: (x.max(), None),
    lambda x, y: x[1:, :0],
]


def some_function(draw: random.Random) -> Callable[[Any, Any], Any]:
    steps, end = draw.choices(STEPS, k=draw.randint(1, 3)), draw.choice(ENDS)

    def function(x: Any, y: Any) -> Any:
        for step in steps:
            x = step(x, y)
        return end(x, y)

    return function


def some_arguments(draw: random.Random) -> list[Any]:
    shape = (draw.randint(1, 4), draw.randint(1, 4))
    values = np.random.default_rng(draw.randint(0, 99))
    first, second = [(values.normal(size=shape) * 4).astype(draw.choice(FEW)) for _ in range(2)]
    given = [array(first), draw.choice([array(second), second, array(np.float32(2)), 3, second.astype(">f4")])]
    if draw.random() < 0.3:
        given[0] = array(np.stack([first, first]))[1]  # a view
    return given


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(60))
def test_a_call_without_planning_gives_what_one_with_it_gives_and_numpy(seed: int) -> None:
    draw = random.Random(seed)
    function, given = some_function(draw), some_arguments(draw)
    small = Small(function)
    site = small.begin(*given)
    planned, planned_receipt = small.with_planning(*given)
    if site.programs.current is None or not site.programs.current.returns_new:
        site.host.skip_planning_for(8, "")
        assert not site.host.skip_planning, "what may alias its arguments is always planned"
        return
    quick, receipt = small.without_planning(*given)
    assert same(quick, planned)
    expected = function(*(np.asarray(each) if isinstance(each, Array) else each for each in given))
    for one, other in zip(_leaves(unwrapped(quick)), _leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype.newbyteorder("=") == np.asarray(other).dtype.newbyteorder("=")
    facts = [(each.task, each.device, each.kind, each.program, each.how) for each in (receipt, planned_receipt)]
    assert facts[0] == facts[1]
    assert receipt.phases.run > 0
    assert receipt.phases.total == pytest.approx(receipt.phases.plan + receipt.phases.run)
    assert receipt.bytes_to_device == receipt.bytes_to_host == 0
    assert receipt.reason == "it is small."


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in _leaves(each)] if isinstance(value, tuple | list) else [value]


# -- what results and arguments are to their owner


def test_a_result_is_an_array_of_its_own() -> None:
    kept: list[Floats] = []

    def function(x: Any) -> Any:
        return np.add(x, 1)

    def keeps(x: Floats) -> Floats:
        kept.append(x + 1)
        return kept[-1]

    small = Small(function)
    x = array(np.zeros(3, np.float32))
    small.begin(x)
    first, _ = small.without_planning(x)
    second, _ = small.without_planning(x)
    first[0] = 7
    np.testing.assert_array_equal(np.asarray(second), 1)
    np.testing.assert_array_equal(np.asarray(x), 0)
    x += 5
    np.testing.assert_array_equal(np.asarray(first), [7, 1, 1])
    np.testing.assert_array_equal(np.asarray(small.without_planning(x)[0]), 6)
    # What the function keeps is no part of the array that it has returned.
    site = CallSite("keeps", options(), "numpy", has_anygpu_arrays=True)
    mine = site.host.call_on_host(keeps, (x,), {})
    kept[-1][...] = 0
    np.testing.assert_array_equal(np.asarray(mine), 6)


def test_views_are_seen_as_they_are_now() -> None:
    small = Small(lambda x: x * 2)
    base = array(np.arange(6, dtype=np.float32))
    small.begin(base[1:4])
    part = base[1:4]
    base[2] = 50
    np.testing.assert_array_equal(np.asarray(small.without_planning(part)[0]), [2, 100, 6])
    part[0] = -1
    np.testing.assert_array_equal(np.asarray(small.without_planning(base[1:4])[0]), [-2, 100, 6])
    np.testing.assert_array_equal(np.asarray(base), [0, -1, 50, 3, 4, 5])


def test_what_is_not_computed_yet_is_computed_once() -> None:
    small = Small(lambda x: x * 2)
    x = array(np.arange(3, dtype=np.float32))
    small.begin(x)
    lazy = x + 1
    assert not lazy._value.computed
    np.testing.assert_array_equal(np.asarray(small.without_planning(lazy)[0]), [2, 4, 6])
    assert lazy._value.computed


@pytest.mark.parametrize(
    "function",
    [lambda x: (x + 1, x), lambda x: {"y": x + 1, "x": x}, lambda x: (x + 1, x[1:]), lambda x: [x, x]],
    ids=["in a tuple", "in a dict", "a view", "twice"],
)
def test_an_argument_that_is_returned_is_that_argument(function: Callable[..., Any]) -> None:
    small = Small(function)
    for _ in range(CALLS + 4):
        x = array(np.arange(6, dtype=np.float32))
        result = small.offloaded(x)
        last = list(result.values())[-1] if isinstance(result, dict) else result[-1]
        last[0] = 100
        assert 100 in np.asarray(x), "what is written into it is written into the argument"


def test_one_result_in_two_places_is_one() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        return y, y

    small = Small(function)
    for _ in range(CALLS + 4):
        one, other = small.offloaded(array(np.zeros(3, np.float32)))
        assert one is other


# -- what decides


def test_a_function_that_begins_to_write_to_its_argument() -> None:
    settings = SimpleNamespace(writes=False, scale=2.0)
    holder: dict[str, Any] = {"writes": False}

    def function(x: Any) -> Any:
        if holder["writes"] or settings.writes:
            x[0] = 7
        return x * settings.scale

    small = Small(function)
    x = array(np.ones(3, np.float32))
    small.begin(x)
    settings.scale = 3.0  # an input, which decides nothing
    np.testing.assert_array_equal(np.asarray(small.without_planning(x)[0]), 3)
    small.site.host.skip_planning_for(8, "")
    holder["writes"] = True
    np.testing.assert_array_equal(np.asarray(small.offloaded(x)), [21, 3, 3])
    np.testing.assert_array_equal(np.asarray(x), [7, 1, 1])


def test_a_function_under_a_name_that_is_bound_again() -> None:
    def double(x: Any) -> Any:
        return x * 2

    def overwrite(x: Any) -> Any:
        x[0] = 7
        return x * 3

    inner = double

    def function(x: Any) -> Any:
        return inner(x)

    small = Small(function)
    x = array(np.ones(3, np.float32))
    small.begin(x)
    small.site.host.skip_planning_for(8, "")
    inner = overwrite
    np.testing.assert_array_equal(np.asarray(small.offloaded(x)), [21, 3, 3])
    np.testing.assert_array_equal(np.asarray(x), [7, 1, 1])


def test_data_inside_of_an_argument_decides_too() -> None:
    model = SimpleNamespace(writes=False)

    def function(x: Any, model: Any) -> Any:
        if model.writes:
            x += 1
        return x * 2

    small = Small(function)
    x = array(np.ones(3, np.float32))
    small.begin(x, model)
    small.site.host.skip_planning_for(8, "")
    model.writes = True
    np.testing.assert_array_equal(np.asarray(small.offloaded(x, model)), 4)
    np.testing.assert_array_equal(np.asarray(x), 2)


def test_a_function_of_nothing_but_its_arguments_is_not_looked_at_again() -> None:
    small = Small(lambda x: np.tanh(x) * 2)
    small.begin(array(np.ones(3, np.float32)))
    small.site.host.skip_planning_for(8, "")
    assert not small.site.host.looks_first


def test_an_error_is_the_functions_own_and_the_next_call_is_planned() -> None:
    numbers = [1.0]

    def function(x: Any) -> Any:
        return x / numbers[0]

    def fails(x: Any) -> Any:
        raise KeyError("mine")

    x = array(np.ones(3, np.float32))
    site = CallSite("fails", options(), "numpy", has_anygpu_arrays=True)
    small = Small(function)
    recorded = small.begin(x)
    assert recorded.programs.current is not None
    site.add_program(recorded.programs.current)
    site.host.skip_planning_for(8, "")
    site.host.ran(1e-6)
    with pytest.raises(KeyError, match="mine"):
        site.host.call_on_host(fails, (x,), {})
    assert site.host.skip_planning == 0
    assert site.host.totals[0] == 1, "calls that did not run are not counted"


# -- accounting


def test_calls_without_planning_count() -> None:
    small = Small(lambda x: x * 2)
    x = array(np.ones(3, np.float32))
    site = small.begin(x)
    site.host.flush_timings(small.planner)
    calls, seconds = site.host.totals
    site.host.skip_planning_for(3, "")
    for _ in range(3):
        small.offloaded(x)
    assert site.host.totals[0] == calls + 3
    assert site.host.totals[1] > seconds
    planned = small.offloaded(x)
    assert site.chooser.calls == calls + 4
    np.testing.assert_array_equal(np.asarray(planned), 2)


def test_larger_arrays_are_other_calls() -> None:
    small = Small(lambda x: x * 2)
    small.begin(array(np.ones(3, np.float32)))
    small.site.host.skip_planning_for(8, "")
    small.offloaded(array(np.ones(4, np.float32)))
    assert len(small.offloaded._table.sites) == 2


def test_arrays_of_a_device_are_other_calls() -> None:
    small = Small(lambda x: x * 2)
    small.begin(array(np.ones(3, np.float32)))
    small.site.host.skip_planning_for(8, "")
    result = small.offloaded(ag.asarray(np.ones(3, np.float32), device="opencl"))
    assert _last().device.startswith("opencl")
    np.testing.assert_array_equal(np.asarray(result), 2)


def test_single_precision_is_kept() -> None:
    small = Small(lambda x: x * 2.0, precision="float32")
    x = array(np.ones(3, np.float64))
    small.begin(x)
    result, _ = small.without_planning(x)
    assert result.dtype == np.float32


def test_numbers_that_functions_return() -> None:
    small = Small(lambda x: x.sum())
    x = array(np.ones(3, np.float32))
    small.begin(x)
    result, _ = small.without_planning(x)
    assert isinstance(result, Array)
    assert result.shape == ()
    assert float(result) == 3.0
    assert float(result + x[0]) == 4.0
