"""What an Array is beside its operations: lazy, printable, picklable, and a good citizen among libraries."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import anygpu as ag
from anygpu.array.core.array import Array, as_array
from anygpu.array.core.expression import linearise


def test_nothing_is_computed_before_it_is_needed() -> None:
    x = as_array(np.arange(3.0))
    y = np.tanh(x @ x) + 1
    assert repr(y) == "Array(shape=(), dtype=float64, device=numpy, not computed yet)"
    assert float(y) == pytest.approx(np.tanh(5.0) + 1)
    assert "not computed" not in repr(y)


def test_a_small_computed_array_shows_its_values_and_a_large_one_does_not() -> None:
    assert repr(as_array(np.array([1, 2])).compute()) == "Array([1, 2], dtype=int64, device=numpy)"
    assert repr(as_array(np.zeros(2000))) == "Array(shape=(2000,), dtype=float64, device=numpy)"


def test_what_the_user_holds_is_computed_once() -> None:
    x = as_array(np.arange(4.0))
    shared: Any = np.exp(x)
    total = shared.sum()
    _, _, results = linearise([total._value])
    assert len(results) == 2, "the user still holds `shared`, so it is kept along with the total"
    total.compute()
    assert shared._value.computed
    del shared
    again = np.exp(x)
    temporary = (again * 2).sum()
    del again
    assert len(linearise([temporary._value])[2]) == 1


def test_very_deep_expressions() -> None:
    x = as_array(np.zeros(2))
    for _ in range(20_000):
        x = x + 1
    assert x.tolist() == [20_000.0, 20_000.0]


def test_facts() -> None:
    x = as_array(np.zeros((2, 3), np.float32))
    assert (x.shape, x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == ((2, 3), 2, 6, 24, 4, 2)
    assert x.dtype == np.float32
    assert x.dtype == ag.float32
    assert x.device == "numpy"
    assert x.base is None
    assert x[0].base is x


def test_conversions() -> None:
    assert (int(as_array(3.7)), float(as_array(2)), complex(as_array(1j)), bool(as_array(0.0))) == (3, 2.0, 1j, False)
    assert list(range(5))[as_array(2)] == 2
    assert f"{as_array(1.5):.2f}" == "1.50"
    for bad in (lambda: bool(as_array([1, 2])), lambda: int(as_array([1, 2])), lambda: float(as_array(1j))):
        with pytest.raises((ValueError, TypeError)):
            bad()
    with pytest.raises(TypeError, match="hash"):
        hash(as_array(1))
    package: Any = ag
    with pytest.raises(TypeError, match=r"anygpu\.asarray"):
        package.array([1, 2])
    with pytest.raises(TypeError, match="asarray"):
        Array(np.zeros(3))  # type: ignore[arg-type]


def test_copying_and_pickling() -> None:
    x = as_array(np.arange(3.0)) * 2
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.tolist() == [0.0, 2.0, 4.0]
        y += 1
    assert x.tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("device", ["numpy", "cpu", "torch", "jax"])
def test_dlpack_out_and_in(device: str) -> None:
    x = ag.asarray(np.arange(6.0).reshape(2, 3), device=device) * 2
    assert np.array_equal(np.from_dlpack(x), np.arange(6.0).reshape(2, 3) * 2)
    backwards = ag.asarray(np.arange(3.0), device=device)[::-1]
    assert np.from_dlpack(backwards).tolist() == [2.0, 1.0, 0.0]
    assert torch.from_dlpack(backwards).tolist() == [2.0, 1.0, 0.0]
    back = ag.from_dlpack(np.arange(4.0))
    assert back.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_moving_between_devices() -> None:
    x = as_array(np.arange(3.0))
    there = x.to_device("torch") + 1
    assert there.device == "torch:cpu"
    assert there.to_device("numpy").tolist() == [1.0, 2.0, 3.0]
    assert x.to_device("numpy") is x
    with pytest.raises(ag.InvalidOption, match="to_device"):
        x + there


def test_numbers_on_the_left_and_numpy_on_the_left() -> None:
    x = as_array(np.array([1.0, 2.0], np.float32))
    for result, expected in (
        (2 - x, [1, 0]),
        (np.array([1.0, 1.0], np.float32) / x, [1, 0.5]),
        (np.float32(3) * x, [3, 6]),
        ([1, 2] + x, [2, 4]),  # noqa: RUF005 - the sum of a list and an array is meant
        (2**x, [2, 4]),
    ):
        assert isinstance(result, Array)
        assert result.tolist() == expected
    assert (2 * x).dtype == np.float32
    assert (np.float64(2) * x).dtype == np.float64


def test_python_numbers_are_weak_as_in_numpy() -> None:
    for dtype in ("int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "bool"):
        theirs = np.ones(2, dtype)
        for number in (True, 1, 1.5, 1j):
            expected = theirs + number
            assert (as_array(theirs) + number).dtype == expected.dtype, (dtype, number)
    with pytest.raises(OverflowError):
        as_array(np.ones(2, np.int8)) + 300


def test_signed_zero_and_nan_survive_being_constants() -> None:
    x = as_array(np.array([0.0]))
    assert np.signbit(np.asarray(x * -0.0))[0]
    assert not np.signbit(np.asarray(x * 0.0))[0]
    assert np.isnan(np.asarray(x + float("nan")))[0]


def test_comparisons_are_exact_between_signed_and_unsigned() -> None:
    signed = np.array([-1, 0, 2**62, 2**63 - 1], np.int64)
    unsigned = np.array([2**64 - 1, 0, 2**62 + 1, 2**63 - 1], np.uint64)
    for operator in ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"):
        for one, other in ((signed, unsigned), (unsigned, signed)):
            got: Any = getattr(as_array(one), operator)(as_array(other))
            assert np.asarray(got).tolist() == getattr(one, operator)(other).tolist(), operator
    assert (as_array(np.array([1], np.uint8)) > -5).tolist() == [True]
    assert (as_array(np.array([1], np.int8)) < 1000).tolist() == [True]
