"""Deferred calls without the option: what is found in a function's code, and that nothing else is deferred."""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.deferred import conversions
from anygpu.array.deferred.standing_in import StandIn
from anygpu.placement import automatic, automatic_deferral, deferred, loading, native_loading
from anygpu.placement import background as beside
from anygpu.placement.closed_code import ClosedCode
from anygpu.placement.native_calls import background

N = 5000
_LIST: list[Any] = []
_DICT: dict[str, Any] = {}
_OUT = np.zeros(N)
_OBJECTS = np.empty(3, object)
_FACTOR = 2.0
_MATRIX = np.eye(3)
_MASKED = np.ma.MaskedArray  # which loads the module


class _Holder:
    kept: Any = None

    def method(self, x: Any) -> Any:
        self.kept = x * 2
        return x.sum()

    def __add__(self, other: Any) -> Any:
        _LIST.append(other)
        return other


_HOLDER = _Holder()


# -- what may keep an array


def _attribute(x: Any) -> Any:
    _HOLDER.kept = x * 2
    return x.sum()


def _setattr(x: Any) -> Any:
    setattr(_HOLDER, "kept", x * 2)  # noqa: B010
    return x.sum()


def _global(x: Any) -> Any:
    global _FACTOR
    _FACTOR = x[0]
    return x.sum()


def _appended(x: Any) -> Any:
    _LIST.append(x * 2)
    return x.sum()


def _method_kept(x: Any) -> Any:
    append = _LIST.append
    append(x * 2)
    return x.sum()


def _in_a_dict(x: Any) -> Any:
    _DICT["x"] = x * 2
    return x.sum()


def _updated(x: Any) -> Any:
    _DICT.update(x=x * 2)
    return x.sum()


def _through_another_name(x: Any) -> Any:
    other = _LIST if x.ndim else []
    other += [x * 2]
    return x.sum()


def _default(x: Any, kept: list[Any] = []) -> Any:  # noqa: B006
    kept.append(x * 2)
    return x.sum()


def _generator(x: Any) -> Any:
    return (row for row in (x * 2, x))


def _iterator(x: Any) -> Any:
    return zip([x * 2], [1], strict=True)


def _closure(x: Any) -> Any:
    y = x * 2
    return lambda: y


def _partial(x: Any) -> Any:
    return functools.partial(np.add, x * 2)


def _bound_method(x: Any) -> Any:
    return (x * 2).sum


def _set_of_numbers(x: Any) -> Any:
    return {x.sum()}


@functools.lru_cache
def _cached(number: Any) -> Any:
    return number


def _in_a_cache(x: Any) -> Any:
    return _cached(x.sum())


def _operator(x: Any) -> Any:
    return _HOLDER + x


def _method(x: Any) -> Any:
    return _HOLDER.method(x)


def _error_kept(x: Any) -> Any:
    try:
        raise ValueError(x)
    except ValueError as error:
        _LIST.append(error)
    return x.sum()


def _objects(x: Any) -> Any:
    _OBJECTS[0] = x * 2
    return x.sum()


def _called_back(x: Any) -> Any:
    np.apply_along_axis(_LIST.append, 0, x)
    return x.sum()


def _callback_of_python(x: Any) -> Any:
    return np.apply_along_axis(_attribute, 0, x)


def _callback_in_a_list(x: Any) -> Any:
    functions: list[Any] = [np.sin, _attribute]
    for each in functions:
        x = each(x)
    return x


def _frame(x: Any) -> Any:
    _LIST.append(sys._getframe())
    return x.sum()


def _evaluated(x: Any) -> Any:
    return eval("_LIST.append(x)")


def _out(x: Any) -> Any:
    np.add(x, 1, out=_OUT)
    return x.sum()


def _positional_out(x: Any) -> Any:
    np.add(1, 2, _OUT)
    return x.sum()


def _copied_to(x: Any) -> Any:
    np.copyto(_OUT, 3.0)
    return x.sum()


def _view_written(x: Any) -> Any:
    view = np.asarray(_OUT)[2:]
    view[:] = 3.0
    return x.sum()


def _sorted_in_place(x: Any) -> Any:
    _OUT.sort()
    return x.sum()


def _added_in_place(x: Any) -> Any:
    y = _OUT if x.ndim else x
    y += 1
    return x.sum()


def _base(x: Any) -> Any:
    x[1:].base[0] = 3.0
    return x.sum()


# -- what asks for a type, or is heard elsewhere


def _type(x: Any) -> Any:
    return type(x + 1) is np.ndarray


def _types(x: Any) -> Any:
    return next(type(each) for each in (x, 1)) is np.ndarray


def _type_by_another_name(x: Any) -> Any:
    kind = type
    return kind(x * 2)


def _printed(x: Any) -> Any:
    print("x")  # noqa: T201
    return x.sum()


def _identity(x: Any) -> Any:
    return id(x)


KEEPERS = [
    _attribute, _setattr, _global, _appended, _method_kept, _in_a_dict, _updated, _through_another_name, _default,
    _generator, _iterator, _closure, _partial, _bound_method, _set_of_numbers, _in_a_cache, _operator, _method,
    _error_kept, _objects, _called_back, _callback_of_python, _callback_in_a_list, _frame, _evaluated, _out,
    _positional_out, _copied_to, _view_written, _sorted_in_place, _added_in_place, _base, _type, _types,
    _type_by_another_name, _printed, _identity,
]  # fmt: skip


@pytest.mark.parametrize("function", KEEPERS, ids=lambda each: each.__name__)
def test_what_may_keep_an_array_or_ask_for_its_type_is_not_closed(function: Callable[..., Any]) -> None:
    assert ClosedCode(function).why_not is not None


def test_a_variable_around_the_function_is_not_set() -> None:
    kept: Any = None

    def keeps(x: Any) -> Any:
        nonlocal kept
        kept = x * 2
        return x.sum()

    assert ClosedCode(keeps).why_not is not None


def _newton(x: Any, tolerance: float = 1e-9) -> Any:
    y = x + 1
    while True:
        better = (y + x / y) / 2
        change = np.abs(better - y).max()
        y = better
        if change < tolerance:
            return y


def _scaled(x: Any) -> Any:
    return x * _FACTOR


def _recursive(x: Any, depth: int = 3) -> Any:
    return x if depth == 0 or x.sum() < 0 else _recursive(x / 2, depth - 1)


# -- code that is closed


def _scaled_by(x: Any, factor: float) -> Any:
    return x * factor * _FACTOR


def _iterates(x: Any, tolerance: float = 1e-9, *, most: int = 20) -> Any:
    kept, named = [], {"start": x}
    for number in range(most):
        better = _scaled_by(x + 1, 0.5) / 2
        x[:1], change = 3.0, np.abs(better - x).max()
        kept.append(better)
        if change < tolerance or number > 3:
            break
    return kept[-1], named, [each.sum() for each in kept if each is not None]


def _shadowed(x: Any) -> Any:
    _ = [_LIST for _LIST in ([],)]  # type: ignore[var-annotated] # noqa: C416
    _LIST.append(x * 2)
    return x.sum()


def _type_of_numbers_kept(x: Any) -> Any:
    kind = np.float64
    return kind.sum(x)


def _iterator_by_sum(x: Any) -> Any:
    return sum([], zip(x, x, strict=True))  # type: ignore[call-overload]


def _module(x: Any) -> Any:
    module = np
    return module.sum(x)


def _attribute_read(x: Any) -> Any:
    return x * _HOLDER.kept


def _array_outside(x: Any) -> Any:
    return x + _OUT


CLOSED: list[Callable[..., Any]] = [_iterates, _newton, _recursive]


@pytest.mark.parametrize("function", CLOSED, ids=lambda each: each.__name__)
def test_code_that_comes_to_nothing_else_is_closed(function: Callable[..., Any]) -> None:
    found = ClosedCode(function)
    assert found.why_not is None
    assert found.holds((np.ones(N), 3, "text", None, (1, 2)), {"y": np.float32(1)})
    assert not found.holds(([np.ones(N)],), {})
    assert not found.holds((np.ones(N).view(np.recarray),), {})


@pytest.mark.parametrize(
    "function",
    [*KEEPERS, _shadowed, _type_of_numbers_kept, _iterator_by_sum, _module, _attribute_read, _array_outside],
    ids=lambda each: each.__name__,
)
def test_code_that_may_come_to_something_else_is_not_closed(function: Callable[..., Any]) -> None:
    assert ClosedCode(function).why_not is not None


def test_closed_code_is_so_as_long_as_names_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(N)
    for name, new in (("_scaled_by", _attribute), ("_FACTOR", []), ("np", None), ("range", lambda *_: _LIST)):
        found = ClosedCode(_iterates)
        assert found.holds((x,), {})
        with monkeypatch.context() as patched:
            patched.setitem(globals(), name, new)
            assert not found.holds((x,), {}), name
    found = ClosedCode(_iterates)
    with monkeypatch.context() as patched:
        patched.setattr(np, "abs", _attribute)
        assert not found.holds((x,), {})
    with monkeypatch.context() as patched:
        patched.setattr(_scaled_by, "__code__", _global.__code__)
        assert not found.holds((x,), {})


# -- calls


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Functions are deferred however small they are, and stay so; NumPy runs their segments."""
    monkeypatch.setenv("ANYGPU_NATIVE", "on")
    monkeypatch.delenv("ANYGPU_DEFER", raising=False)
    monkeypatch.setattr(loading.segments, "is_ready", True)
    monkeypatch.setattr(beside, "pause", lambda seconds: None)
    monkeypatch.setattr(automatic, "LEAST_TO_DEFER", 0.0)
    monkeypatch.setattr(automatic, "BEFORE_LOOKING", 0.0)
    monkeypatch.setattr(automatic_deferral, "MOST_TO_LOOK", 1e9)
    monkeypatch.setattr(deferred, "LEAST_PER_OPERATION", 0.0)
    monkeypatch.setattr(deferred, "LEAST_GAIN", 1e9)
    monkeypatch.setattr(deferred, "PLAIN_EVERY", 1000)
    monkeypatch.setattr(deferred, "PLAIN_AT_FIRST", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def _automatic(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function, after its calls are deferred without the option."""
    ours = ag.offload(function)
    ours.prepare(*arguments)
    for _ in range(2):  # the next call is evaluated
        ours(*arguments)
        background.settle(60)
    assert any(isinstance(site.direct, automatic_deferral.DeferredCalls) for site in ours._known.native.values())
    ours(*arguments)
    background.settle(60)  # calls are plain while native code for a segment is compiled
    return ours


@pytest.mark.usefixtures("_always")
def test_a_function_that_cannot_be_traced_is_deferred_without_being_asked_to() -> None:
    x = np.random.default_rng(1).random(N)
    ours = _automatic(_newton, x)
    value = ours(x)
    assert type(value) is np.ndarray
    assert np.array_equal(value, _newton(x))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred automatically: ")


@pytest.mark.usefixtures("_always")
def test_a_function_whose_code_is_closed_is_deferred() -> None:
    x = np.random.default_rng(1).random(N)
    ours = _automatic(_newton, x)
    assert np.array_equal(ours(x), _newton(x))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "it cannot be traced, and its code has no side effects beyond its arguments" in receipt.reason
    sys.settrace(lambda *_: None)
    try:
        ours(x)
    finally:
        sys.settrace(None)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert not receipt.reason.startswith("deferred"), "a debugger sees NumPy's arrays"


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("names_one", [True, False])
def test_numpys_functions_are_others_only_where_code_names_them(
    names_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(x: Any) -> Any:
        y = np.asarray(x) * 2
        return y + 1 if y.sum() > 0 else y

    def names_none(x: Any) -> Any:
        y = x * 2
        return y + 1 if y.sum() > 0 else y

    x = np.ones(N)
    ours = _automatic(names if names_one else names_none, x)
    asked: list[Any] = []
    put = conversions._put

    def put_and_tell(functions: dict[str, Callable[..., Any]]) -> None:
        asked.append(functions)
        put(functions)

    monkeypatch.setattr(conversions, "_put", put_and_tell)
    assert np.array_equal(ours(x), x * 3)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred automatically: ")
    assert bool(asked) is names_one
    assert np.asarray is conversions._theirs["asarray"]


@pytest.mark.usefixtures("_always")
def test_explain_shows_the_segments_of_calls_that_are_deferred_automatically() -> None:
    x = np.random.default_rng(1).random(N)
    ours = _automatic(_newton, x)
    ours(x)
    shown = str(ours.explain(x))
    assert "deferred automatically" in shown
    assert "segment 0: " in shown


@pytest.mark.usefixtures("_always")
def test_the_next_process_looks_with_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_HISTORY", "on")
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(deferred.DeferredSite, "is_faster", True)
    x = np.random.default_rng(1).random(N)
    ours = _automatic(_newton, x)
    ours(x)
    background.settle(60)
    monkeypatch.setattr(automatic, "BEFORE_LOOKING", 1e9)
    monkeypatch.setattr(loading.native, "is_ready", True)
    later = ag.offload(_newton)
    for _ in range(6):
        assert np.array_equal(later(x), _newton(x))
        background.settle(60)
        if loading.segments.thread is not None:
            loading.segments.thread.join(60)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred automatically: ")


@pytest.mark.usefixtures("_always")
def test_a_name_that_means_something_else_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def computes(x: Any) -> Any:
        return _scaled(x) if x.sum() > 0 else x

    x = np.ones(N)
    ours = _automatic(computes, x)
    assert np.array_equal(ours(x), x * 2)
    monkeypatch.setitem(globals(), "_scaled", lambda x: (_LIST.append(x * 3), x * 3)[1])  # type: ignore[func-returns-value]
    assert np.array_equal(ours(x), x * 3)
    assert type(_LIST.pop()) is np.ndarray


@pytest.mark.usefixtures("_always")
def test_variables_in_the_frames_of_an_error_are_numpys() -> None:
    def fails(x: Any) -> Any:
        y = x * 2
        parts = [y + 1]
        if y.sum() > 0:
            z = y - 3
            raise ValueError("no", z)
        return parts

    x = -np.ones(N)
    ours = _automatic(fails, x)
    with pytest.raises(ValueError, match="no") as caught:
        ours(np.ones(N))
    found = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb) if frame.f_code.co_name == "fails"]
    assert found
    held = [found[0]["y"], found[0]["z"], found[0]["x"], found[0]["parts"][0], caught.value.args[1]]
    assert StandIn not in set(map(type, held))
    assert all(isinstance(each, np.ndarray) for each in held)


@pytest.mark.usefixtures("_always")
def test_what_is_not_closed_is_suggested_with_the_reason() -> None:
    def keeps(x: Any) -> Any:
        _HOLDER.kept = x * 2
        return x if x.sum() > 0 else -x

    x = np.ones(N)
    ours = ag.offload(keeps)
    ours.prepare(x)
    for _ in range(3):
        ours(x)
        background.settle(60)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "it cannot be traced: " in receipt.reason
    suggested = "With offload(deferred=True) it can run as it is; not automatically, because it sets something"
    assert suggested in receipt.reason
    assert type(_HOLDER.kept) is np.ndarray


# -- that it does no harm


@pytest.mark.usefixtures("_always")
def test_no_code_is_looked_at_before_calls_have_taken_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Asked(ClosedCode):
        def __init__(self, function: Any) -> None:
            asked.append(function)
            super().__init__(function)

    monkeypatch.setattr(automatic_deferral, "ClosedCode", Asked)
    monkeypatch.setattr(automatic, "BEFORE_LOOKING", 1.0)

    def computes(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x

    x = np.ones(N)
    ours = ag.offload(computes)
    ours.prepare(x)
    (site,) = ours._known.native.values()
    for _ in range(5):
        ours(x)
        background.settle(60)
    assert not asked
    site.seconds = 2.0
    for _ in range(3):
        ours(x)
        background.settle(60)
    assert asked == [computes]


def test_without_native_code_nothing_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    monkeypatch.setattr(automatic, "BEFORE_LOOKING", 0.0)
    monkeypatch.setattr(automatic.Trial, "__call__", None)

    def computes(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x

    ours = ag.offload(computes)
    for _ in range(50):
        ours(np.ones(200_000))
    background.settle(60)


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "on")
    monkeypatch.setenv("ANYGPU_DEFER", "off")
    monkeypatch.setattr(automatic, "defer_if_closed", lambda *given: pytest.fail("it is off"))

    @ag.offload
    def halved(x: Any) -> Any:
        while x.max() > 1:
            x = x / 2
        return x

    halved.prepare(np.arange(9.0))
    assert "it cannot be traced" in ag.last_receipt().reason  # type: ignore[union-attr]


def test_what_is_loaded_beside_calls_is_there() -> None:
    native_loading._load_functions(beside.yielding)
    assert "anygpu.placement.automatic_deferral" in sys.modules
