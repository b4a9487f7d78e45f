"""The methods of Array have NumPy's signatures."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.array import Array
from anygpu.array.core.methods import NumpyMethods

METHODS = sorted(name for name, value in vars(NumpyMethods).items() if inspect.isfunction(value))

#: What NumPy's text signature calls otherwise than NumPy itself: `x.dot(b=y)` works, and `x.dot(other=y)` does not.
CALLED_OTHERWISE = {"dot": {"other": "b"}}


def names(signature: inspect.Signature) -> list[str]:
    return [each.name for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]


@pytest.mark.parametrize("name", METHODS)
def test_parameters_are_numpys(name: str) -> None:
    ours = inspect.signature(getattr(Array, name))
    try:
        theirs = inspect.signature(getattr(np.ndarray, name))
    except ValueError:
        return  # before 2.4 NumPy does not tell
    other = CALLED_OTHERWISE.get(name, {})
    wanted = [other.get(each, each) for each in names(theirs)]
    assert names(ours)[: len(wanted)] == wanted
    for each in wanted[1:]:
        parameter, known = ours.parameters[each], theirs.parameters.get(each)
        if known is not None:
            assert parameter.default == known.default, each
    assert not any(each.kind is each.VAR_KEYWORD for each in ours.parameters.values())


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_has_a_type_and_every_method_a_docstring(name: str) -> None:
    method = getattr(Array, name)
    assert all(each in method.__annotations__ for each in names(inspect.signature(method))[1:])
    assert "return" in method.__annotations__
    assert method.__doc__


def test_a_signature_is_written_out() -> None:
    assert list(inspect.signature(Array.sum).parameters) == [
        "self", "axis", "dtype", "out", "keepdims", "initial", "where",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["all", "any", "argmax", "cumsum", "max", "mean", "prod", "round", "std", "sum"])
def test_out_is_written_to_and_returned(name: str) -> None:
    numbers = np.arange(6, dtype=np.float64).reshape(2, 3)
    x = ag.asarray(numbers)
    axis = () if name == "round" else (0,)
    wanted = getattr(numbers, name)(*axis)
    out = ag.zeros(wanted.shape, dtype=wanted.dtype)
    assert getattr(x, name)(*axis, out=out) is out
    assert np.array_equal(np.asarray(out), wanted)


def test_out_of_dot_and_trace() -> None:
    numbers = np.arange(9, dtype=np.float64).reshape(3, 3)
    x = ag.asarray(numbers)
    product, total = ag.zeros((3, 3)), ag.zeros(())
    assert x.dot(x, out=product) is product
    assert x.trace(out=total) is total
    assert np.array_equal(np.asarray(product), numbers.dot(numbers))
    assert total.item() == numbers.trace()
