"""Functions that are hard on what is recorded of a function, decorated: they do what they do without."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.native import hostile_functions, random_hostile_functions

_CASES = hostile_functions.cases()
#: What is wrong today, with the cause. A comparison with NumPy finds those that have other results.
_KNOWN = {
    "the type of a type": "the class of a class is Python's own `type`, which sees an array that stands for NumPy's",
    "builtins of its own": "the names of a function are looked up in the builtins of its module",
    "an asynchronous function": "a coroutine that a traced call makes is never awaited, and Python warns of that",
    "a generator that is left open": "the coroutine of another case is collected meanwhile",
    "a matrix": "NumPy warns of matrices whenever one is made, while a function is traced as well",
}


@pytest.fixture(scope="module", autouse=True)
def _natively() -> Iterator[None]:
    with hostile_functions.natively():
        yield


@pytest.mark.parametrize("name", _CASES)
def test_it_does_what_it_does_on_numpy(name: str) -> None:
    came = hostile_functions.what_came(_CASES[name])
    if came.wrong and name in _KNOWN:
        pytest.xfail(_KNOWN[name])
    assert came.wrong is None


def test_random_functions_that_write_and_keep_do_what_they_do_on_numpy() -> None:
    natively = 0
    for number in range(60):
        chosen = random.Random(number)
        text = random_hostile_functions.source(chosen) if number % 2 else random_hostile_functions.quiet(chosen)
        came = hostile_functions.what_came(text)
        assert came.wrong is None, f"{came.wrong}: {text}"
        natively += came.natively > 0
    assert natively >= 8
