"""An offloaded function is to everybody else the function: pickle, copy, inspect, descriptors, decorators, threads."""

from __future__ import annotations

import abc
import asyncio
import copy
import functools
import importlib
import inspect
import io
import pickle
import pydoc
import subprocess
import sys
import threading
import traceback
import typing
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded

X = np.arange(4.0)


@ag.offload
def score(x: Any, scale: float = 2.0, *, offset: int = 1) -> Any:
    """The score."""
    return x * scale + offset


@ag.offload(on="numpy", fallback="raise")
def asked(x: Any) -> Any:
    return x + 1


def bare(x: Any) -> Any:
    return x - 1


rebound = ag.offload(on="numpy", fallback="raise")(bare)


class Model:
    factor = 3.0

    @ag.offload
    def method(self, x: Any) -> Any:
        return x * self.factor

    @classmethod
    @ag.offload
    def under_class(cls, x: Any) -> Any:
        return x * cls.factor

    @ag.offload
    @classmethod
    def over_class(cls, x: Any) -> Any:
        return x * cls.factor

    @staticmethod
    @ag.offload
    def under_static(x: Any) -> Any:
        return x * 2

    @ag.offload(on="numpy")
    @staticmethod
    def over_static(x: Any) -> Any:
        return x * 2

    @property
    @ag.offload
    def doubled(self) -> Any:
        return np.full(2, self.factor) * 2


class Inherited(Model):
    factor = 5.0

    @ag.offload
    def method(self, x: Any) -> Any:
        return super().method(x) + 1


# -- pickle and copy


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [score, asked, Model.method, Model.under_static, Inherited.method])
def test_it_pickles_by_name(function: Any, protocol: int) -> None:
    written = pickle.dumps(function, protocol)
    assert pickle.loads(written) is function
    assert len(written) < 200


def test_the_pickler_of_python_is_of_one_mind_with_that_of_c() -> None:
    buffer = io.BytesIO()
    pickle._Pickler(buffer).dump([score, score])
    assert pickle.loads(buffer.getvalue()) == [score, score]


def test_a_function_that_was_bound_to_another_name_pickles_with_its_options() -> None:
    again = pickle.loads(pickle.dumps(rebound))
    assert isinstance(again, Offloaded)
    assert again.function is bare
    assert again.options == rebound.options
    np.testing.assert_array_equal(again(X), X - 1)


def error_of(thing: Any) -> BaseException:
    with pytest.raises((pickle.PicklingError, AttributeError)) as raised:
        pickle.dumps(thing)
    return raised.value


def test_a_local_function_gives_the_error_of_a_local_function() -> None:
    def local(x: Any) -> Any:
        return x

    anonymous = lambda x: x  # noqa: E731
    for function in (local, anonymous):
        expected, got = error_of(function), error_of(ag.offload(function))
        assert type(got) is type(expected)
        assert str(got) == str(expected)


def test_bound_methods_pickle() -> None:
    method = pickle.loads(pickle.dumps(Model().method))
    np.testing.assert_array_equal(method(X), X * 3)
    assert method.__func__ is Model.method


POOL = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import anygpu as ag, numpy as np

@ag.offload
def score(x):
    return np.tanh(x).sum()

def bare(x):
    return x - 1

rebound = ag.offload(on="numpy")(bare)

class Model:
    @ag.offload
    def method(self, x):
        return x * 3

if __name__ == "__main__":
    score(np.ones(3))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[1])) as pool:
        print([float(each) for each in pool.map(score, [np.zeros(3), np.zeros(4)])])
        print(pool.submit(rebound, 3).result(), pool.submit(Model().method, 3).result())
"""


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_processes_of_a_pool_call_it(start: str, tmp_path: Path) -> None:
    # In a program of its own: a library that other tests have loaded may not like to be forked.
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    done = subprocess.run([sys.executable, script, start], check=True, timeout=100, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[0.0, 0.0]", "2 9"]
    assert not done.stderr


@pytest.fixture
def cloudpickle() -> Any:
    return importlib.import_module("cloudpickle")


def test_cloudpickle_takes_functions_without_a_name(cloudpickle: Any) -> None:
    captured = 3.0
    again = cloudpickle.loads(cloudpickle.dumps(ag.offload(on="numpy")(lambda x: x * captured)))
    assert again.options.preference.on == ("numpy",)
    np.testing.assert_array_equal(again(X), X * 3)
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(score))(X), X * 2 + 1)


def test_cloudpickle_takes_functions_of_main_to_a_process_that_has_another(cloudpickle: Any, tmp_path: Path) -> None:
    written = tmp_path / "function"
    sender = f"""
import anygpu as ag, cloudpickle

@ag.offload(on="numpy")
def twice(x):
    return x * 2

open({str(written)!r}, "wb").write(cloudpickle.dumps(twice))
"""
    receiver = f"import cloudpickle; print(cloudpickle.load(open({str(written)!r}, 'rb'))(21))"
    subprocess.run([sys.executable, "-c", sender], check=True, timeout=60)
    done = subprocess.run([sys.executable, "-c", receiver], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "42"


def test_a_copy_is_the_function_itself() -> None:
    for function in (score, rebound, ag.offload(lambda x: x)):
        assert copy.copy(function) is function
        assert copy.deepcopy(function) is function
        assert copy.deepcopy({"f": [function]})["f"][0] is function


# -- what others ask of a function


def test_it_looks_like_the_function() -> None:
    function: Any = score
    assert not inspect.iscoroutinefunction(function)
    assert inspect.signature(score) == inspect.signature(score.__wrapped__)
    assert str(inspect.signature(Model().method)) == "(x: 'Any') -> 'Any'"
    assert (score.__name__, score.__qualname__, score.__module__) == ("score", "score", __name__)
    assert score.__doc__ == "The score."
    assert typing.get_type_hints(score) == {"x": Any, "scale": float, "offset": int, "return": Any}
    assert function.__code__ is function.__wrapped__.__code__
    assert function.__defaults__ == (2.0,)
    assert function.__kwdefaults__ == {"offset": 1}
    assert inspect.getsource(score).startswith("@ag.offload\ndef score(")
    with pytest.raises(AttributeError, match="nothing_like_it"):
        function.nothing_like_it  # noqa: B018
    function.mine = 1
    assert function.mine == 1
    del function.mine


def test_inspect_takes_it_for_a_routine() -> None:
    assert inspect.isroutine(score)


def test_help_shows_the_signature_and_the_text() -> None:
    text = pydoc.render_doc(score, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "score(x: 'Any', scale: 'float' = 2.0, *, offset: 'int' = 1)" in text
    assert "The score." in text


def test_equality_and_hash_are_by_identity() -> None:
    other = ag.offload(score.__wrapped__)
    assert score == score
    assert score != other
    assert len({score, other, score}) == 2
    assert weakref.ref(score)() is score


def test_an_attribute_of_the_function_is_one_of_the_offloaded_function() -> None:
    def function(x: Any) -> Any:
        return x

    function.tag = "mine"  # type: ignore[attr-defined]
    assert ag.offload(function).tag == "mine"  # type: ignore[attr-defined]


# -- methods


def test_methods_of_every_kind() -> None:
    for kind in (Model, Inherited):
        model = kind()
        np.testing.assert_array_equal(model.under_class(X), X * kind.factor)
        np.testing.assert_array_equal(kind.under_class(X), X * kind.factor)
        np.testing.assert_array_equal(model.over_class(X), X * kind.factor)
        np.testing.assert_array_equal(kind.over_class(X), X * kind.factor)
        for owner in (kind, model):
            np.testing.assert_array_equal(owner.under_static(X), X * 2)
            np.testing.assert_array_equal(owner.over_static(X), X * 2)
        np.testing.assert_array_equal(model.doubled, [kind.factor * 2] * 2)
    np.testing.assert_array_equal(Model().method(X), X * 3)
    np.testing.assert_array_equal(Inherited().method(X), X * 5 + 1)
    np.testing.assert_array_equal(Inherited.method(Inherited(), X), X * 5 + 1)
    assert isinstance(Model.over_static, Offloaded)
    assert Model.over_static.options.preference.on == ("numpy",)


def test_a_method_is_bound_to_its_instance() -> None:
    model = Model()
    assert model.method == model.method
    assert hash(model.method) == hash(model.method)
    assert model.method.__self__ is model
    assert model.method.__name__ == "method"
    assert ag.run(model.method, X).receipt.task == "Model.method"
    with ag.collect_receipts() as collected:
        ag.run(model.method, X)
    assert len(collected) == 1


def test_abstract_methods() -> None:
    class Base(abc.ABC):
        @abc.abstractmethod
        @ag.offload
        def one(self, x: Any) -> Any: ...

        @ag.offload
        @abc.abstractmethod
        def two(self, x: Any) -> Any: ...

    assert Base.__abstractmethods__ == {"one", "two"}
    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_decorators_of_functools_on_top() -> None:
    cached = functools.lru_cache(score)
    assert cached(3.0) == cached(3.0) == 7.0
    assert cached.cache_info().hits == 1

    @functools.singledispatch
    @ag.offload
    def kinds(x: Any) -> Any:
        return "anything"

    @kinds.register
    @ag.offload
    def _(x: int) -> Any:
        return "int"

    assert (kinds(1), kinds("1")) == ("int", "anything")
    assert functools.partial(score, offset=5)(1.0) == 7.0
    assert functools.reduce(ag.offload(lambda a, b: a + b), [1, 2, 3]) == 6

    class WithCache:
        @functools.cached_property
        @ag.offload
        def values(self) -> Any:
            return np.ones(2)

    holder = WithCache()
    assert holder.values is holder.values


def test_a_wrapper_of_an_offloaded_function_can_be_offloaded() -> None:
    @functools.wraps(score)
    def wrapper(x: Any) -> Any:
        return score(x) * 100

    again = ag.offload(wrapper)
    assert again.function is wrapper
    np.testing.assert_array_equal(again(X), (X * 2 + 1) * 100)
    assert not [name for name in vars(wrapper) if name.startswith("_") and not name.startswith("__")]


def test_what_is_no_method_does_not_become_one() -> None:
    class Holder:
        sine = ag.offload(np.sin)
        whole = ag.offload(Model().method)
        part = ag.offload(functools.partial(bare))
        anonymous = ag.offload(lambda self, x: x + 1)

    holder = Holder()
    np.testing.assert_array_equal(holder.sine(X), np.sin(X))
    np.testing.assert_array_equal(holder.whole(X), X * 3)
    np.testing.assert_array_equal(holder.part(X), X - 1)
    np.testing.assert_array_equal(holder.anonymous(X), X + 1)


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __call__(self, x: Any) -> Any:
        return x + 1


def test_names_of_things_that_have_none() -> None:
    part = functools.partial(bare, np.zeros(10**6))
    assert repr(ag.offload(part)) == "<offloaded bare>"
    assert repr(ag.offload(Unspeakable())) == "<offloaded Unspeakable>"
    assert ag.run(Unspeakable(), X).receipt.task == "Unspeakable"


# -- what is refused


async def asynchronous(x: Any) -> Any:
    return x


async def asynchronous_generator(x: Any) -> Any:
    yield x


def generator(x: Any) -> Any:
    yield x


class Asynchronous:
    async def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (asynchronous, "is an async function.*submit"),
        (asynchronous_generator, "is a generator function"),
        (generator, "is a generator function"),
        (functools.partial(asynchronous, 1), "is an async function"),
        (Asynchronous(), "is an async function"),
        (Asynchronous().__call__, "is an async function"),
        (staticmethod(generator), "is a generator function"),
    ],
)
def test_functions_that_do_not_compute_when_they_are_called_are_refused(function: Any, what: str) -> None:
    for decorate in (ag.offload, ag.offload(on="numpy")):
        with pytest.raises(ag.InvalidOption, match=what):
            decorate(function)
    with pytest.raises(ag.InvalidOption, match=what):
        ag.run(function, X)
    with pytest.raises(ag.InvalidOption, match=what):
        ag.submit(function, X).result(60)


def test_classes_and_properties_are_refused() -> None:
    with pytest.raises(ag.InvalidOption, match="Model is a class: offload those of its methods"):
        ag.offload(Model)
    with pytest.raises(ag.InvalidOption, match="@property above @offload"):
        ag.offload(property(bare))  # type: ignore[call-overload]
    with pytest.raises(ag.InvalidOption, match="takes a function"):
        ag.offload("score")  # type: ignore[call-overload]
    for call in (lambda: ag.run(3, X), lambda: ag.submit(3, X).result(60), lambda: ag.explain(3, X)):  # type: ignore[arg-type]
        with pytest.raises(ag.InvalidOption, match="takes a function to run; got 3"):
            call()
    assert ag.run(np.float32, 1.5).value == 1.5


# -- arguments


@ag.offload
def everything(a: Any, /, b: Any = 2, *rest: Any, c: Any = 3, **more: Any) -> Any:
    return a, b, rest, c, more


def test_arguments_arrive_as_they_were_given() -> None:
    original = everything.__wrapped__
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {}),
        ((X, 1), {}),
        ((X,), {"b": 1}),
        ((X, 1, 2, 3), {"c": X, "d": [X], "self": 1, "function": 2, "arguments": 3}),
    ]
    for arguments, keywords in calls * 3:
        assert repr(everything(*arguments, **keywords)) == repr(original(*arguments, **keywords))
        through = functools.partial(everything, **keywords)
        assert repr(ag.run(through, *arguments).value) == repr(original(*arguments, **keywords))
        assert repr(ag.submit(through, *arguments).result(60)) == repr(original(*arguments, **keywords))


@pytest.mark.parametrize("call", [lambda f: f(), lambda f: f(X, 1, 2, 3), lambda f: f(X, scale=1, nothing=2)])
def test_wrong_arguments_give_the_error_of_the_function(call: Any) -> None:
    with pytest.raises(TypeError) as expected:
        call(score.__wrapped__)
    with pytest.raises(TypeError) as got:
        call(score)
    assert str(got.value) == str(expected.value)


# -- calls within calls


@ag.offload
def factorial(n: int) -> int:
    return 1 if n == 0 else n * factorial(n - 1)


def test_recursion() -> None:
    for _ in range(3):
        assert factorial(100) == factorial.__wrapped__(100)
    with pytest.raises(RecursionError):
        factorial(-1)
    assert factorial(5) == 120


def test_an_offloaded_function_calls_another() -> None:
    @ag.offload
    def outer(x: Any) -> Any:
        return score(x) + Model().method(x)

    for on in ("numpy", "opencl"):
        value = ag.run(outer, X.astype("f4"), on=on, fallback="allow").value
        np.testing.assert_allclose(value, X * 2 + 1 + X * 3)
    for _ in range(5):
        np.testing.assert_array_equal(outer(X), X * 2 + 1 + X * 3)


# -- what is known is shared, and values never are


class Layer:
    def __init__(self, factor: float, shift: Any, mode: str) -> None:
        self.factor, self.shift, self.mode = factor, shift, mode

    def plain(self, x: Any) -> Any:
        return x * self.factor + self.shift if self.mode == "add" else x - self.shift

    @ag.offload
    def offloaded(self, x: Any) -> Any:
        return x * self.factor + self.shift if self.mode == "add" else x - self.shift


def captured(layer: Layer) -> Any:
    factor, shift, mode = layer.factor, layer.shift, layer.mode
    return lambda x: x * factor + shift if mode == "add" else x - shift


@pytest.mark.parametrize("on", ["opencl", "webgpu", None])
def test_closures_methods_and_objects_of_one_code_get_their_own_values(on: Any) -> None:
    x = np.arange(6, dtype=np.float32)
    by_argument = ag.offload(on=on, fallback="allow")(lambda x, layer: layer.plain(x))
    for number in range(12):
        shift: Any = np.float32(number) if number % 3 else np.full(6, number, np.float32)
        layer = Layer(number / 2, shift, "add" if number % 4 else "subtract")
        expected = layer.plain(x)
        for got in (
            ag.run(layer.plain, x, on=on, fallback="allow").value,
            ag.run(layer.offloaded, x, on=on, fallback="allow").value,
            ag.run(captured(layer), x, on=on, fallback="allow").value,
            ag.submit(captured(layer), x, on=on, fallback="allow").result(60),
            layer.offloaded(x),
            by_argument(x, layer),
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
            assert got.dtype == expected.dtype


@pytest.mark.parametrize("on", ["opencl", "webgpu"])
def test_numbers_of_every_type_get_their_own_results(on: str) -> None:
    x = np.arange(6, dtype=np.float32)
    shifted = ag.offload(on=on, fallback="allow")(lambda x, n, times: np.roll(x, n) * times)
    for n in (0, 1, 5, 1, True, np.int64(2)):
        for times in (2, 3, True, 2.5, np.int32(2), np.float32(3), 2):
            expected = np.roll(x, n) * times
            got = shifted(x, n, times)
            np.testing.assert_allclose(got, expected, rtol=1e-6)
            assert got.dtype == expected.dtype, (n, times)


# -- threads, errors, interrupts


def test_threads_call_it_at_the_same_time() -> None:
    function = ag.offload(lambda x, n, text: x * n + len(text))
    ready = threading.Barrier(8)

    def work(number: int) -> None:
        ready.wait()
        for each in range(2000):
            n, text = (each * number) % 50, "t" * (each % 30)
            assert function(3, n, text) == 3 * n + len(text)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


class Mine(Exception):
    pass


def test_the_users_error_comes_out_as_it_was_raised() -> None:
    def inner(x: Any) -> Any:
        raise Mine("deep inside")

    @ag.offload
    def function(x: Any) -> Any:
        return inner(x)

    for _ in range(3):
        for call in (function, lambda x: ag.run(function, x), lambda x: ag.submit(function, x).result(60)):
            with pytest.raises(Mine, match="deep inside") as raised:
                call(X)
            frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
            assert frames[-2:] == ["function", "inner"]
            assert raised.value.__cause__ is None
            assert raised.value.__context__ is None
    assert ag.offload(lambda x: x + 1)(1) == 2, "nothing is left behind"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
def test_other_exceptions_pass_through(kind: type[BaseException]) -> None:
    raises = [True]

    @ag.offload
    def function(x: Any) -> Any:
        if raises[0]:
            raise kind
        return x + 1

    for _ in range(3):
        with pytest.raises(kind):
            function(X)
    raises[0] = False
    np.testing.assert_array_equal(function(X), X + 1)


def test_it_can_be_called_in_a_loop_of_asyncio() -> None:
    async def main() -> Any:
        direct = score(X)
        return direct, await ag.submit(score, X), await asyncio.to_thread(score, X)

    for each in asyncio.run(main()):
        np.testing.assert_array_equal(each, X * 2 + 1)
