"""Hashes are of content, the same in every process, and tell apart what is not the same."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.calls.signature import signature
from anygpu.placement.history.records import device_stamp, function_hash, function_name, signature_hash
from anygpu.testing import fake_device

SOURCE = """
import functools
import numpy as np
def plain(x, y=2.5): return x * y + 1j if x in {1, "two", (3, b"four", None, ...)} else -0.0
def other(x, y=2.5): return x * y + 2j if x in {1, "two", (3, b"four", None, ...)} else -0.0
def nested(x): return [each * 2 for each in x], (lambda z: z + 1)(x)
def decorated(function):
    def wrapper(*given): return function(*given)
    return wrapper
one, two = decorated(plain), decorated(other)
class Model:
    def run(self, x): return x
    def __call__(self, x): return x + 1
class Other(Model): pass
method, callable_, theirs = Model().run, Model(), Other().run
partial = functools.partial(plain, y=3)
cached = functools.lru_cache(plain)
"""
NAMES = ("plain", "other", "nested", "one", "two", "method", "callable_", "theirs", "partial", "cached")


def functions(source: str = SOURCE) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "module"}
    exec(compile(source, f"/some/where/{len(source)}.py", "exec"), names)
    return names


def test_hashes_are_the_same_in_another_process_and_on_other_lines(tmp_path: Path) -> None:
    here = [function_hash(functions()[name]) for name in NAMES]
    assert None not in here
    assert len(set(here)) == len(NAMES), "they tell all of these apart"
    script = """
import sys
from tests.history.test_keys import NAMES, SOURCE, functions
from anygpu.placement.history.records import function_hash, signature_hash
found = functions("\\n" * 100 + SOURCE)
print(*(function_hash(found[name]) for name in NAMES))
print(signature_hash(((3, 4), 12, float, "x", dict, None, True, frozenset("abcdef"))))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split() == here
    assert second == signature_hash(((3, 4), 12, float, "x", dict, None, True, frozenset("abcdef")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x + 1.0"),
        ("def f(x): return x * 0.0", "def f(x): return x * -0.0"),
        ("def f(x): return x + True", "def f(x): return x + 1"),
        ("def f(x): return x.sum()", "def f(x): return x.max()"),
        ("def f(x, y): return x", "def f(x, *, y): return x"),
        ("def f(x): return lambda: 1", "def f(x): return lambda: 2"),
        ("def f(x): return 'a', 'b'", "def f(x): return 'ab', ''"),
        ("def f(x): return x", "class A:\n def f(x): return x\nf = A.f"),
    ],
)
def test_functions_that_do_something_else_have_another_hash(one: str, other: str) -> None:
    found = [function_hash(functions(source)["f"]) for source in (one, other)]
    assert None not in found
    assert found[0] != found[1]
    assert function_hash(functions(one)["f"]) == found[0]


def test_functions_that_are_not_pythons() -> None:
    assert function_hash(np.tanh) == function_hash(np.tanh) != function_hash(np.sqrt)
    assert function_hash(np.dot) not in (None, function_hash(np.sum))
    assert function_hash(math.sqrt) not in (None, function_hash(math.sin))
    assert function_hash([].append) is None
    assert function_hash(dict) is None
    assert function_hash(np.frompyfunc(abs, 1, 1)) is None
    assert function_hash(functools.partial([].append)) is None
    assert function_hash(functools.partial(np.tanh)) is not None


def test_objects_that_raise_have_no_hash_and_some_name() -> None:
    class Nasty:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no")

        def __call__(self) -> None: ...

    class Worse:
        __call__ = property(lambda self: 1 / 0)

    nasty: Callable[..., Any] = Nasty()
    assert function_name(nasty) == "?"
    assert function_hash(nasty) is not None, "its class says what it does"
    worse: Any = Worse()
    assert function_hash(worse) is None


def test_a_function_that_captures_itself_has_a_hash() -> None:
    def outer() -> Callable[[int], int]:
        def again(n: int) -> int:
            return again(n - 1) if n else 0

        return again

    assert function_hash(outer()) == function_hash(outer()) is not None


def test_what_is_captured_has_no_part_in_it() -> None:
    def scaled(by: Any) -> Callable[[Any], Any]:
        return lambda x: x * by

    assert function_hash(scaled(1)) == function_hash(scaled("secret"))


def test_names_are_for_people() -> None:
    found = functions()
    assert function_name(found["plain"]) == "module.plain"
    assert function_name(found["partial"]) == "module.plain"
    assert function_name(found["method"]) == "module.Model.run"
    assert function_name(found["callable_"]) == "module.Model"
    assert function_name(np.tanh).endswith("tanh")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.sampled_from((float, np.float32, dict, np, ...)),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=10,
)  # fmt: skip


def _with_types(value: Any) -> Any:
    """So that equal means the same: 1 is not True, and NaN is NaN."""
    return (type(value), tuple(map(_with_types, value)) if isinstance(value, tuple) else repr(value))


@given(VALUES, VALUES)
def test_signatures_have_one_hash_if_they_are_the_same(one: Any, other: Any) -> None:
    assert (signature_hash(one) == signature_hash(other)) == (_with_types(one) == _with_types(other))


def test_signatures_of_calls_have_hashes() -> None:
    class Mine:
        pass

    x = np.zeros((3, 4), np.float32)
    calls: list[tuple[Any, ...]] = [
        (x,), (x.T,), (x.astype(np.float64),), (x, 1), (x, 1.0), (x, True), (x, "a"), ([x, x],), ((x, x),),
        (Mine(),), (np.tanh, x), (lambda x: x, x), (slice(1, 2), x), (None,), (np.dtype("f4"), x),
    ]  # fmt: skip
    assert len({signature_hash(signature(each, {})) for each in calls}) == len(calls)
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    assert len(signature_hash(deep)) == 32


def test_a_stamp_changes_with_whatever_changes_times() -> None:
    device = fake_device("webgpu:0", state="verified")
    stamps = [
        device_stamp(device, ("numpy",), "thread", 2),
        device_stamp(device, (), "thread", 2),
        device_stamp(device, ("numpy",), "process", 2),
        device_stamp(device, ("numpy",), "thread", 4),
        device_stamp(fake_device("webgpu:1", state="verified"), ("numpy",), "thread", 2),
    ]
    assert len(set(stamps)) == len(stamps)
    assert device_stamp(device, ("numpy",), "thread", 2) == stamps[0]
    assert device_stamp(device, ("numpy",), "thread") == device_stamp(device, ("numpy",), "thread")
