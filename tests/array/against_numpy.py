"""Comparing arrays with NumPy's own: the same call on both, and the same values, type and shape."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from anygpu.array.core.array import Array, as_array

#: NumPy's own types do not know that its functions take other arrays.
np: Any = numpy

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """NumPy warns of infinities and NaN; anygpu does not."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        yield


def values(dtype: str, seed: int = 0, size: int = 17) -> Any:
    """Numbers of every sort that a type has, in an order that depends on the seed."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, size).astype(dtype)
    if kind in "iu":
        info = np.iinfo(dtype)
        special = [0, 1, 2, 3, 5, 7, info.max, info.min, info.max - 1, info.min + 1]
        if kind == "i":
            special += [-1, -2, -6]
        filler = rng.integers(max(info.min, -20), 20, size)
        return rng.permutation(np.array([*special, *filler.tolist()][:size], dtype))
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 1e-3]
    real = np.array([*special, *(rng.normal(size=size) * 10)][:size])
    if kind == "f":
        return rng.permutation(real).astype(dtype)
    return (rng.permutation(real) + 1j * rng.permutation(real)).astype(dtype)


def outcome(run: Callable[[], Any]) -> Any:
    """The result, or the kind of error."""
    try:
        return run()
    except (TypeError, ValueError, OverflowError) as error:
        return TypeError if isinstance(error, TypeError) else type(error)


def check(ours: Any, theirs: Any, what: object, ulps: int = 0) -> None:
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check(one, other, what, ulps)
        return
    if isinstance(theirs, type):
        assert ours is theirs, what
        return
    assert isinstance(ours, Array), (what, ours)
    got = np.asarray(ours)
    assert got.dtype == theirs.dtype, (what, got.dtype, theirs.dtype)
    assert got.shape == np.shape(theirs), (what, got.shape)
    if ulps and theirs.dtype.kind in "fc":
        close = np.abs(got - theirs) <= ulps * np.abs(np.spacing(np.abs(theirs)))
        assert np.all(close | (got == theirs) | (np.isnan(got) & np.isnan(theirs))), (what, got, theirs)
        return
    np.testing.assert_array_equal(got, theirs, err_msg=str(what))
    if theirs.dtype.kind == "f":
        zeros = theirs == 0
        np.testing.assert_array_equal(np.signbit(got) & zeros, np.signbit(theirs) & zeros, err_msg=f"sign: {what}")


def compare(
    function: Callable[..., Any], *operands: Any, ulps: int = 0, ours: Callable[..., Any] | None = None
) -> None:
    """Call a function with NumPy's arrays, and it or another one with ours."""
    theirs = outcome(lambda: function(*operands))
    lazy = [as_array(each) if isinstance(each, np.ndarray) else each for each in operands]
    check(
        outcome(lambda: _computed((ours or function)(*lazy))),
        theirs,
        [getattr(each, "dtype", each) for each in operands],
        ulps,
    )


def _computed(result: Any) -> Any:
    """Some errors, such as that of an integer to a negative power, come when it runs."""
    for each in result if isinstance(result, tuple) else (result,):
        each.compute()
    return result
