"""What a function uses beside its arguments: arrays are read anew, changes are noticed, and nothing is touched."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
import random
import types
from collections.abc import Callable
from time import thread_time
from timeit import repeat
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.array import as_array
from anygpu.array.trace.captures import CaptureSearch
from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.engines.numpy import lowering

W = np.arange(15.0).reshape(5, 3)
X = np.linspace(0, 1, 35).reshape(7, 5)
SCALE = 2.0
CONFIG = {"weights": [W, np.ones(3)], "gain": 3}
COUNT = 0
TABLE = np.array([2, 0, 1])
MASK = np.array([True, False, True, True, False])


def run(traced: Traced, function: Callable[..., Any], *arguments: Any) -> Any:
    given = traced.inputs(function, arguments, {})
    assert given is not None, traced.changed(function, arguments, {})
    return traced.rebuild(lowering.run(traced.program, given), given)


def traced(function: Callable[..., Any], *arguments: Any) -> Traced:
    made = trace(function, arguments or (X,), {})
    assert isinstance(made, Traced), made
    return made


def helper(x: Any) -> Any:
    return x @ W * SCALE


class Layer:
    scale = np.full(3, 2.0)

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, x: Any) -> Any:
        return x @ self.weights * self.scale


class Slotted:
    __slots__ = ("weights",)

    def __init__(self, weights: Any) -> None:
        self.weights = weights


class Model:
    def __init__(self, weights: Any) -> None:
        self.layers = [Layer(weights)]
        self.slotted = Slotted(weights)
        self.unused = np.zeros(4)
        self.gain = 1.5
        self.calls = 0

    def forward(self, x: Any) -> Any:
        return self._finish(self.layers[0](x))

    def _finish(self, x: Any) -> Any:
        return x * self.gain

    def by_slot(self, x: Any) -> Any:
        return x @ self.slotted.weights

    def counted(self, x: Any) -> Any:
        self.calls += 1
        return x * 2

    def kept(self, x: Any) -> Any:
        self.last = x * 2
        return x * 2


module = types.ModuleType("a_users_module")
module.weights = W  # type: ignore[attr-defined]


def use_default(x: Any, w: Any = W) -> Any:
    return x @ w


def closed_over(w: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return y @ w

        return inner(x)

    return function


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a global": lambda x: x @ W,
    "a view of it": lambda x: x @ W[:, ::-1] + W.T[0, :1],
    "a result of it": lambda x: x @ (W * 2) * W.mean(),
    "positions": lambda x: x[TABLE] + W[0, 0],
    "a function that is called": lambda x: helper(x),
    "a closure": closed_over(W),
    "a default": lambda x: use_default(x),
    "a container": lambda x: x @ CONFIG["weights"][0] * CONFIG["gain"],  # type: ignore[index]
    "a method": Model(W).forward,
    "a slot": Model(W).by_slot,
    "an object that is called": Layer(W),
    "an argument of a partial": functools.partial(lambda w, x: x @ w, W),
    "a module": lambda x: x @ module.weights,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arrays_are_found_and_what_is_written_into_them_is_seen(name: str) -> None:
    function = FUNCTIONS[name]
    program = traced(function)
    assert any(each is W for each in CaptureSearch(function, (X,), {}).values)
    assert np.allclose(run(program, function, X), function(X))
    key = program.program.key
    W[:] += 1
    try:
        assert np.allclose(run(program, function, X), function(X))
        assert traced(function).program.key == key
    finally:
        W[:] -= 1


BY_VALUE: dict[str, Callable[[Any], Any]] = {
    "a branch": lambda x: x @ W if W[0, 0] > -1 else x,
    "a number": lambda x: x * float(W[1, 1]),
    "a length": lambda x: x[: int(W[0, 2])] * 2,
    "a mask": lambda x: x[:, W[:, 0] > 2],
    "a function we lack": lambda x: x * math.fsum(W.ravel().tolist()),
}


@pytest.mark.parametrize("name", BY_VALUE)
def test_values_that_decide_are_a_part_of_the_program_and_are_watched(name: str) -> None:
    function = BY_VALUE[name]
    program = traced(function)
    assert np.allclose(run(program, function, X), function(X))
    W[:] += 1
    try:
        assert program.inputs(function, (X,), {}) is None
        assert np.allclose(run(traced(function), function, X), function(X))
    finally:
        W[:] -= 1


def test_whatever_is_given_another_meaning_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(W)
    functions: list[Callable[[Any], Any]] = [lambda x: helper(x), model.forward, FUNCTIONS["a container"]]
    programs = [traced(each) for each in functions]

    def unchanged(number: int) -> bool:
        return programs[number].inputs(functions[number], (X,), {}) is not None

    assert all(map(unchanged, range(3)))
    changes: tuple[tuple[int, Callable[[], None]], ...] = (
        (0, lambda: monkeypatch.setattr(f"{__name__}.helper", lambda x: x)),
        (0, lambda: monkeypatch.setattr(f"{__name__}.SCALE", "text")),
        (0, lambda: monkeypatch.setattr(f"{__name__}.W", W.astype(np.float32))),
        (1, lambda: monkeypatch.setattr(model, "gain", 2)),
        (1, lambda: monkeypatch.setattr(model.layers[0], "weights", W[:4])),
        (1, lambda: monkeypatch.setattr(Model, "_finish", lambda self, x: x)),
        (1, lambda: monkeypatch.setattr(model, "_finish", lambda x: x, raising=False)),
        (1, lambda: monkeypatch.setattr(model, "layers", [])),
        (1, lambda: monkeypatch.setattr(Model, "layers", [], raising=False)),
        (2, lambda: monkeypatch.setitem(CONFIG, "new", 4)),
        (2, lambda: monkeypatch.setitem(CONFIG, "gain", True)),
    )
    for number, change in changes:
        change()
        assert not unchanged(number)
        monkeypatch.undo()
        assert unchanged(number)


def test_arrays_and_numbers_that_are_replaced_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(W.copy())
    functions: list[Callable[[Any], Any]] = [lambda x: helper(x), model.forward, FUNCTIONS["a container"]]
    programs = [traced(each) for each in functions]
    monkeypatch.setattr(f"{__name__}.SCALE", 3.0)
    monkeypatch.setattr(f"{__name__}.W", W * 3)
    monkeypatch.setattr(model, "gain", 2.0)
    monkeypatch.setattr(model.layers[0], "weights", W + 5)
    monkeypatch.setattr(Layer, "scale", W[0].copy())
    monkeypatch.setitem(CONFIG, "gain", 4)
    for program, function in zip(programs, functions, strict=True):
        assert np.allclose(run(program, function, X), function(X))


def test_what_code_does_not_name_does_not_matter() -> None:
    model = Model(W)
    program = traced(model.forward)
    model.calls = 7
    model.unused[:] = 3
    model.unused = np.ones(2)
    assert program.inputs(model.forward, (X,), {}) is not None
    assert "unused" not in repr([each.name for each in CaptureSearch(model.forward, (X,), {}).captures])


def test_nothing_of_the_users_is_touched_and_what_would_be_is_refused() -> None:
    model, before = Model(W), W.copy()
    history: list[Any] = []
    calls = 0

    def appends(x: Any) -> Any:
        history.append(x)
        return x * 2

    def counts(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x * 2

    def counts_globally(x: Any) -> Any:
        global COUNT
        COUNT += 1
        return x * 2

    def writes(x: Any) -> Any:
        W[0] = 0
        return x @ W

    def decides_and_writes(x: Any) -> Any:
        if W[0, 0] < 1:
            W[0] = 100
        return x @ W

    for function in (appends, counts, counts_globally, writes, decides_and_writes, model.counted, model.kept):
        assert isinstance(trace(function, (X,), {}), NotTraceable), function
    assert trace(writes, (X,), {}) == NotTraceable("it writes to W")
    assert (history, calls, COUNT, model.calls, hasattr(model, "last")) == ([], 0, 0, 0, False)
    assert np.array_equal(W, before)


class Mode(enum.Enum):
    FAST = enum.auto()
    SLOW = enum.auto()


class Sign:
    pass


NOTHING = Sign()
MODE = Mode.FAST


def test_what_is_told_by_being_itself_stays_itself() -> None:
    settings = Model(W)
    settings.mode = MODE  # type: ignore[attr-defined]
    settings.sign = NOTHING  # type: ignore[attr-defined]

    def function(x: Any) -> Any:
        same = MODE is Mode.FAST and settings.mode is Mode.FAST and settings.sign is NOTHING  # type: ignore[attr-defined]
        return x @ settings.layers[0].weights if same else x

    assert np.allclose(run(traced(function), function, X), X @ W)


def test_an_object_that_ends_with_a_bang_is_not_copied() -> None:
    ends: list[str] = []

    class Handle:
        def __init__(self) -> None:
            self.weights = W

        def __del__(self) -> None:
            ends.append("closed")

    handle = Handle()
    made = trace(lambda x: x @ handle.weights, (X,), {})
    assert isinstance(made, NotTraceable)
    assert "it uses handle, a Handle, which anygpu cannot follow" in made.reason
    assert ends == []


def test_an_object_among_the_arguments_is_looked_into_and_others_like_it_share_the_program() -> None:
    model, other = Model(W), Model(W * 2)
    program = traced(Model.forward, model, X)
    other.gain = 3.5
    assert np.allclose(run(program, Model.forward, model, X), model.forward(X))
    assert np.allclose(run(program, Model.forward, other, X), other.forward(X))


def test_offloaded_functions_inside_are_a_part_of_it() -> None:
    @ag.offload
    def inner(x: Any, t: float) -> Any:
        return x @ W * t

    class Uses:
        @ag.offload
        def method(self, x: Any) -> Any:
            return x @ W

        def both(self, x: Any, t: float) -> Any:
            return inner(x, t) + self.method(x)

    uses = Uses()
    program = traced(uses.both, X, 0.5)
    assert not program.by_value
    assert np.allclose(run(program, uses.both, X, 0.25), X @ W * 1.25)


def test_our_own_arrays_from_outside_are_inputs_too() -> None:
    ours = as_array(W)
    function: Callable[[Any], Any] = lambda x: x @ ours  # noqa: E731
    program = traced(function)
    given = program.inputs(function, (X,), {})
    assert given is not None
    assert given[1] is ours
    assert len(program.program.inputs) == 2


def test_arrays_without_axes_are_read_anew() -> None:
    gain = np.array(2.0)
    function: Callable[[Any], Any] = lambda x: x * gain  # noqa: E731
    program = traced(function)
    gain[()] = 5.0
    assert np.array_equal(run(program, function, X), X * 5.0)


def test_what_cannot_be_followed_is_refused() -> None:
    hidden = itertools.repeat(W)

    @functools.lru_cache
    def window(length: int) -> Any:
        return np.hanning(length)

    for function in (lambda x: x @ next(hidden), lambda x: x * window(5)):
        reason = trace(function, (X,), {})
        assert isinstance(reason, NotTraceable)
        assert "cannot follow" in reason.reason
    assert window.cache_info().misses == 0


def test_random_numbers_are_refused_and_their_sources_stay_as_they_were() -> None:
    generator = np.random.default_rng(0)

    def drawn() -> tuple[Any, ...]:
        return np.random.rand(), random.random(), generator.normal()

    np.random.seed(1)
    random.seed(1)
    expected = drawn()
    np.random.seed(1)
    random.seed(1)
    generator = np.random.default_rng(0)
    for function in (
        lambda x: x * np.random.rand(),
        lambda x: x + np.random.normal(size=X.shape),
        lambda x: x * random.random(),
        lambda x: x + generator.normal(size=X.shape),
    ):
        assert isinstance(trace(function, (X,), {}), NotTraceable)
    assert drawn() == expected


class Base:
    count = 0
    weights = W[0].copy()

    def __init__(self, bias: float = 1.0) -> None:
        self.bias = bias

    def forward(self, x: Any) -> Any:
        return x * self.bias + self.weights.sum()

    @property
    def numbered(self) -> int:
        Base.count += 1
        return Base.count

    def counted(self, x: Any) -> Any:
        type(self).count += 1
        return x * type(self).count

    @classmethod
    def counted_by_class(cls, x: Any) -> Any:
        cls.count += 1
        return x * cls.count


class Child(Base):
    def forward(self, x: Any) -> Any:
        return super().forward(x) - 1


class Grandchild(Child):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def test_methods_of_base_classes_are_called_in_their_order() -> None:
    thing = Grandchild(3.0)
    for function in (thing.forward, lambda x: Grandchild(2.0).forward(x), lambda x: Child.forward(thing, x)):
        assert np.allclose(run(traced(function), function, X), function(X))
    kinds: Callable[[Any], Any] = lambda x: x * (isinstance(thing, Base) + 2 * (type(thing) is Grandchild))  # noqa: E731
    assert np.array_equal(run(traced(kinds), kinds, X), X * 3)


def test_what_is_changed_in_a_class_or_module_is_refused_and_not_seen() -> None:
    thing = Grandchild()

    def sets(x: Any) -> Any:
        Base.count = 9
        return x * 2

    def sets_numpy(x: Any) -> Any:
        np.seen = 1  # type: ignore[attr-defined]
        return x * 2

    def sets_math(x: Any) -> Any:
        math.seen = 1  # type: ignore[attr-defined]
        return x * 2

    functions = (sets, sets_numpy, sets_math, thing.counted, thing.counted_by_class, lambda x: x * thing.numbered)
    for function in functions:
        assert isinstance(trace(function, (X,), {}), NotTraceable), function
    assert (Base.count, hasattr(np, "seen"), hasattr(math, "seen")) == (0, False, False)


def test_looking_whether_something_changed_costs_next_to_nothing() -> None:
    program = traced(FUNCTIONS["a function that is called"])
    work = np.zeros(64)
    function = FUNCTIONS["a function that is called"]
    ours = min(repeat(lambda: program.read(function, (X,), {}), timer=thread_time, number=2000, repeat=5))
    theirs = min(repeat(lambda: work + 1, timer=thread_time, number=2000, repeat=5))
    assert ours < 10 * theirs


GAINS = {"fast": 2.0}


class Speed(enum.Enum):
    FAST = "fast"

    def gain(self) -> float:
        return GAINS[self.value]


class Ends:
    def __del__(self) -> None:
        """Nothing is to be closed."""


class Registers:
    gain = np.ones(3)

    def __init_subclass__(cls) -> None:
        raise AssertionError("a trace has made a subclass")


class Failed(Exception):
    def __init__(self) -> None:
        self.gain = GAINS["fast"]


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an enumeration": (lambda x: x * Speed.FAST.gain(), "it uses Speed, which depends on GAINS"),
    "a finaliser": (lambda x: x * isinstance(Ends(), Ends), "it uses Ends, whose __del__"),
    "a class that knows its subclasses": (lambda x: x[:3, 0] * Registers.gain, "which runs __init_subclass__"),
    "an error": (lambda x: x * Failed().gain, "it uses Failed, which depends on GAINS"),
    "the locale": (lambda x: x * len(f"{1234567:n}"), "writes a number as the locale does"),
    "the locale, by a builtin": (lambda x: x * len(format(1234567, ">12n")), "writes a number as the locale does"),
    "a receipt": (lambda x: x * bool(ag.last_receipt()), "it uses anygpu.last_receipt"),
    "a file": (lambda x: x * np.memmap("a"), "it uses np.memmap"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_what_cannot_be_compared_is_refused_by_its_name(name: str) -> None:
    function, reason = REFUSED[name]
    found = trace(function, (X,), {})
    assert isinstance(found, NotTraceable)
    assert reason in found.reason


def test_texts_that_no_locale_changes_are_written() -> None:
    functions: tuple[Callable[[Any], Any], ...] = (
        lambda x: x * len(f"mean{3}n"),
        lambda x: x * len(format(3, "mean"[4:])),
        lambda x: x * 7 % 5,
    )
    for function in functions:
        assert np.allclose(run(traced(function), function, X), function(X))


@dataclasses.dataclass
class Shape:
    scale: float = 2.0

    def run(self, x: Any) -> Any:
        return x * self.scale


@dataclasses.dataclass
class Square(Shape):
    side: str = "ab"

    def run(self, x: Any) -> Any:
        return super().run(x) * len(f"{self.side:>4}")


def test_methods_that_call_those_of_base_classes_are_followed_where_these_have_no_copy() -> None:
    function = Square(3.0).run
    assert np.allclose(run(traced(function), function, X), function(X))
