"""Results of every engine share memory with the arguments, and lie in memory, as NumPy's do."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from tests.array.test_views_and_copies import facts, function_of, leaves, sharing
from tests.support.memory_layouts import CALLS, LAYOUTS, NumpyCall, layout

#: NumPy warns when the flags of what `broadcast_arrays` gives are asked for.
pytestmark = pytest.mark.filterwarnings("ignore:future versions:FutureWarning")

ENGINES = ("cpu", "torch", "jax", "webgpu", "opencl")
#: Cells of the table for each engine, in a sample.
CELLS = 120


TABLE = [(call, name) for call in CALLS for name in LAYOUTS]


def check_cells(engine: str, cells: list[tuple[NumpyCall, str]]) -> tuple[int, int, list[str]]:
    """Cells that NumPy takes: how many, how many ran on the engine, and what differs there from NumPy."""
    count = on_device = 0
    differing: list[str] = []
    for call, name in cells:
        function = function_of(f"return {call.text}, x + 1")
        x = layout(name, call.dtype)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                expected = leaves(function(x))
            except Exception:  # noqa: BLE001 - NumPy does not take it
                continue
            result = ag.run(function, x, on=engine)
            got = leaves(result.value)
            wanted, found = [facts(each, x) for each in expected], [facts(each, x) for each in got]
        count += 1
        on_device += result.receipt.device != "numpy"
        if found != wanted or sharing(got) != sharing(expected):
            differing.append(f"{call.text} of {name}: {found}, and NumPy has {wanted}")
    return count, on_device, differing


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_of_the_table(engine: str) -> None:
    """Other cells for each engine, and always the same."""
    count, on_device, differing = check_cells(engine, random.Random(engine).sample(TABLE, CELLS))
    assert not differing
    assert count > 50
    assert on_device > 0.8 * count


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_the_whole_table(engine: str) -> None:
    count, on_device, differing = check_cells(engine, TABLE)
    assert not differing
    assert count > 300 * 20
    assert on_device >= 0.85 * count


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_written_into_a_flattened_part_stays_there(engine: str) -> None:
    def function(x: Any, k: Any) -> Any:
        y = x * 2
        part = y[::2].ravel()
        part += k
        return y

    x = np.arange(6, dtype=np.float32)
    result = ag.run(function, x, 5.0, on=engine)
    assert result.receipt.device != "numpy"
    assert np.array_equal(result.value, function(x, 5.0))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flattened_argument_is_not_the_callers_memory(engine: str) -> None:
    memory = np.arange(48, dtype=np.float32).reshape(6, 8)
    x = memory[::-1, ::-2]
    before = memory.copy()
    flat, _ = ag.run(lambda x: (x.ravel(), x + 1), x, on=engine).value
    flat[:] = 0
    assert np.array_equal(memory, before)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_number_is_copied_by_a_reshape(engine: str) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        line = y.reshape(-1)
        line += 7
        return y

    x = np.array(1.5, np.float32)
    got = ag.run(function, x, on=engine).value
    assert type(got) is np.float32
    assert got == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_real_numbers_are_their_own_conjugate(engine: str) -> None:
    x = np.arange(4.0)
    conjugate, _ = ag.run(lambda x: (x.conj(), np.sin(x)), x, on=engine).value
    assert conjugate is x
