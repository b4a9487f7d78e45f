"""Opaque tasks: what arrives in the function, and what comes back, is what was passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def _values(dtype: str) -> Any:
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        return np.array([0, 1, np.iinfo(kind).max, np.iinfo(kind).min], kind)
    if kind.kind == "b":
        return np.array([True, False, True, False])
    return np.array([1.1, -0.0, np.finfo(kind).max, np.finfo(kind).tiny], kind)


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_stay(engine: str, dtype: str) -> None:
    seen: list[str] = []

    @ag.offload(engine=engine)
    def same(x: Any) -> Any:
        seen.append(str(x.dtype).rpartition(".")[2])
        return x

    values = _values(dtype)
    back = same(values)
    assert seen == [dtype]
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_layouts_and_byte_orders(engine: str) -> None:
    @ag.offload(engine=engine)
    def same(x: Any) -> Any:
        return x

    base = np.arange(12.0).reshape(3, 4)
    frozen = base.copy()
    frozen.flags.writeable = False
    for values in (base[::-1], base[:, ::2], base.T, base.astype(">f8"), frozen, np.float64(3.0) * np.ones(())):
        np.testing.assert_array_equal(same(values), values)


def test_wide_numbers_are_computed_in_jax() -> None:
    @ag.offload(engine="jax")
    def more(x: Any) -> Any:
        return x + 1

    np.testing.assert_array_equal(more(np.array([2**40, 2**31])), [2**40 + 1, 2**31 + 1])
    assert more(np.array([1.0 + 1e-12]))[0] == 2.0 + 1e-12


def test_a_function_of_narrow_numbers_keeps_the_settings_of_its_user() -> None:
    import jax.numpy as jnp

    @ag.offload(engine="jax")
    def with_ones(x: Any) -> Any:
        return x + jnp.ones(3)

    assert with_ones(np.ones(3, np.float32)).dtype == np.float32


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_masked_arrays_are_refused(engine: str) -> None:
    same = ag.offload(engine=engine)(lambda x: x)
    with pytest.raises(InvalidOption, match="more than its numbers"):
        same(np.ma.array([1.0, 2.0], mask=[True, False]))
