"""NumPy's functions reach ours, whichever of our modules was imported before."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from anygpu.array.core.overrides import FUNCTIONS, UFUNCS, implements, override


@pytest.fixture
def tables_as_before() -> object:
    functions, ufuncs = dict(FUNCTIONS), dict(UFUNCS)
    yield
    for table, before in ((FUNCTIONS, functions), (UFUNCS, ufuncs)):
        table.clear()
        table.update(before)


def test_a_name_that_numpy_lacks_is_passed_over(tables_as_before: None) -> None:
    before = len(FUNCTIONS)

    @implements("a_function_of_a_later_numpy")
    def ours() -> int:
        return 1

    assert ours() == 1
    assert len(FUNCTIONS) == before


def test_functions_and_ufuncs_are_told_apart(tables_as_before: None) -> None:
    @implements(np.array2string, np.isnat, "busday_count")
    def ours() -> None: ...

    assert FUNCTIONS[np.array2string] is FUNCTIONS[np.busday_count] is UFUNCS[np.isnat] is ours


def test_a_function_without_an_override_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        override(np.busday_count)


@pytest.mark.parametrize(
    "use",
    [
        "np.add(x, x)",
        "np.modf(x)",
        "np.matmul(x, x)",
        "np.sum(x)",
        "np.linalg.norm(x)",
        "x.sum()",
        "x.conj()",
        "x @ x",
        "x[0]",
        "x.__array_namespace__()",
    ],
)
def test_the_first_use_of_an_array_finds_what_it_needs(use: str) -> None:
    """In a process of its own, in which only the core was imported."""
    script = f"""
import sys, pickle, numpy as np
from anygpu.array.core.array import as_array
from anygpu.array.core.device import device_for
assert not [each for each in sys.modules if each.startswith("anygpu.array.functions.")]
x = as_array(np.ones(3, np.float32), device_for("numpy"))
{use}
"""
    subprocess.run([sys.executable, "-c", script], check=True)
