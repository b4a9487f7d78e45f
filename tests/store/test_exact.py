"""What is put into a store is what comes out of it: equal bytes and nothing less become one, and nothing is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption
from anygpu.store.store import Store

_QUIET_NAN = np.array([0x7FF8000000000000, 0x7FF8000000000001], np.uint64).view(np.float64)

PAIRS = {
    "subnormals": (np.zeros(2), np.array([1e-310, 5e-324])),
    "subnormals of 32 bits": (np.zeros(2, np.float32), np.array([1e-45, 0], np.float32)),
    "zeros with signs": (np.array([0.0, 0.0]), np.array([0.0, -0.0])),
    "NaNs": (_QUIET_NAN[:1], _QUIET_NAN[1:]),
    "dtypes": (np.array([1.0]), np.array([1.0]).view(np.int64)),
    "complex": (np.array([0j]), np.array([complex(0.0, -0.0)])),
    "byte orders": (np.array([1.0]), np.array([1.0]).view(">f8")),
}


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_contents_that_differ_in_their_bytes_stay_two(device: str, resident: bool, pair: tuple[Any, Any]) -> None:
    with Store(device=device) as store:
        for name, values in zip("ab", pair, strict=True):
            store.put(name, ag.asarray(values, device=device) if resident else values)
        store.optimise()
        for name, values in zip("ab", pair, strict=True):
            native = values.astype(values.dtype.newbyteorder("="))
            found = np.asarray(store.get(name))
            assert found.dtype == native.dtype
            assert found.tobytes() == native.tobytes()


@pytest.mark.parametrize("device", ["jax", "numpy"])
def test_contents_with_equal_bytes_become_one(device: str) -> None:
    values = np.array([1e-310, -0.0, 3.5, np.inf])
    with Store(device=device) as store:
        for name in "ab":
            store.put(name, ag.asarray(values, device=device))
        assert store.get("a")._entry.content is store.get("b")._entry.content


ODD = {
    "masked": np.ma.array([1.0, 999.0], mask=[False, True]),
    "matrix": np.ones((2, 2)).view(np.matrix),
    "records": np.ones(2, [("a", "f8")]).view(np.recarray),
    "subclass": np.ones(2).view(type("Metres", (np.ndarray,), {})),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_more_than_its_numbers_is_refused(odd: Any) -> None:
    with Store() as store:
        with pytest.raises(InvalidOption, match="more than its numbers"):
            store.put("odd", odd)
        assert not store.names()
    with pytest.raises(InvalidOption, match="more than its numbers"):
        ag.asarray(odd)


class Table:
    """As a DataFrame of pandas, which is not needed for it."""

    __module__ = "pandas.core.frame"

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.ones((2, 2))


def test_tables_are_refused() -> None:
    with Store() as store, pytest.raises(InvalidOption, match="to_numpy"):
        store.put("table", Table())
    with pytest.raises(InvalidOption, match="to_numpy"):
        ag.asarray(Table())


@pytest.mark.parametrize("holders", [[("a", "tuple")], ["good", 3], [object()]])
def test_a_refused_share_leaves_no_reference(holders: list[Any]) -> None:
    with Store() as store:
        store.put("a", np.ones(3))
        with pytest.raises(TypeError):
            store.share("a", with_=holders)
        assert store.get("a").holders == ("main",)
        store.release("a")
        assert "a" not in store.names()
