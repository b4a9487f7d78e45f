"""NumPy's ufuncs on arrays: `np.add(x, y)` with its options, and methods such as `np.add.reduce`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anygpu.array.core.arguments import to_array
from anygpu.array.core.array import Array, device_of
from anygpu.array.core.call_notes import note_ufunc
from anygpu.array.core.expression import active_tracer, note_error
from anygpu.array.core.overrides import UFUNCS, load_functions
from anygpu.array.core.recording import binary, cast, reshape, unary
from anygpu.array.functions import ufunc_methods as methods
from anygpu.array.functions.elementwise import RULES, array_of, operands_of, record, resolve
from anygpu.array.functions.ufunc_methods import into, mask_of
from anygpu.program.dtypes import FLOATS, DType

#: Ufuncs of NumPy that are refused, and what to write instead.
REFUSED: dict[np.ufunc, str] = {np.isnat: "anygpu has no arrays of dates; keep them in NumPy: np.isnat(np.asarray(x))."}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The implementation of `Array.__array_ufunc__`."""
    for each in (*inputs, *(options.get("out") or ())):
        if type(each) is not Array and _is_foreign(each):
            return NotImplemented
    try:
        if active_tracer.get() is None or options.get("out") is not None:
            return _called(ufunc, method, inputs, options)
        return note_ufunc(ufunc, method, inputs, options, _called(ufunc, method, inputs, dict(options)))
    except Exception as error:
        note_error(error)
        raise


def _called(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A ufunc, or one of its methods, on arrays of ours. Raises `TypeError` for ufuncs that we do not have."""
    if ufunc not in UFUNCS:
        load_functions.call(ufunc)  # those of matrices are with the products
    if ufunc not in UFUNCS:
        raise TypeError(REFUSED.get(ufunc) or _unknown(ufunc))
    if method == "__call__":
        return _call(ufunc, inputs, **options) if ufunc in RULES else _call_linear(ufunc, inputs, **options)
    if method == "outer":
        return _outer(ufunc, inputs, options)
    if "out" in options:
        (options["out"],) = _outs(ufunc, options["out"])
    match method:
        case "reduce":
            return methods.reduce(ufunc, *inputs, **options)
        case "accumulate":
            return methods.accumulate(ufunc, *inputs, **options)
        case "reduceat":
            return methods.reduceat(ufunc, *inputs, **options)
        case "at":
            return methods.at(ufunc, *inputs, **options)
    raise TypeError(f"np.{ufunc.__name__}.{method} is not known here; use it on np.asarray(x).")


def call_plain_ufunc(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Array | None:
    """The common case, without NumPy's type resolution: real floats of one dtype. `None` when it is not that."""
    fn = _PLAIN.get(ufunc)
    first = inputs[0]
    if fn is None or type(first) is not Array:
        return None
    x = first._stored if first._view is None else first._value
    if x.spec.dtype not in _REAL:
        return None
    if len(inputs) == 1:
        return Array(unary(fn, x))
    second = inputs[1]
    if type(second) is Array:
        y = second._stored if second._view is None else second._value
        if y.spec == x.spec:
            return Array(binary(fn, x, y))
    return None


_REAL = frozenset(FLOATS)

#: Ufuncs that are one primitive in the type of their operands (float_power widens them), under which name.
_PLAIN: dict[np.ufunc, Any] = {
    ufunc: rule.body.args[0]
    for ufunc, rule in RULES.items()
    if isinstance(rule.body, partial) and ufunc is not np.float_power
}


def _unknown(ufunc: np.ufunc) -> str:
    """The message for a ufunc that is not NumPy's own."""
    return (
        f"the ufunc {ufunc.__name__} cannot become a part of a program. "
        f"Compute it on the host: {ufunc.__name__}(np.asarray(x))."
    )


def _is_foreign(x: Any) -> bool:
    """Whether another library's array, which may know what to do with ours, is among the operands."""
    if isinstance(x, Array | int | float | complex) or x is None:
        return False
    theirs = getattr(type(x), "__array_ufunc__", None)
    return theirs is not None and theirs is not np.ndarray.__array_ufunc__


def _call(
    ufunc: np.ufunc,
    inputs: tuple[Any, ...],
    *,
    out: tuple[Any, ...] | None = None,
    where: Any = True,
    dtype: Any = None,
    signature: Any = None,
    sig: Any = None,
    casting: str = "same_kind",
    order: str = "K",
    subok: bool = True,
) -> Any:
    """A call of an elementwise ufunc with NumPy's options.

    Results are new arrays, or `out` where it is given; elements outside of `where` keep what `out` has, so `where`
    without `out` is a `TypeError`: NumPy would leave them uninitialised.
    """
    if out is None and where is True and dtype is None and signature is None and sig is None and casting == "same_kind":
        operands = operands_of(inputs)
        return _delivered([array_of(value, operands) for value in record(ufunc, operands)])
    outs = _outs(ufunc, out)
    device = device_of(*inputs, *outs, where)
    operands = operands_of(inputs, device)
    mask = mask_of(where, device)
    if mask is not None and None in outs:
        raise TypeError(
            f"np.{ufunc.__name__} with where= leaves the other elements to chance unless out= is given. "
            "Give out=, or write np.where(condition, result, otherwise)."
        )
    values = record(ufunc, operands, _types(outs), _signature(ufunc, dtype, signature or sig), casting)
    return _delivered(
        [
            array_of(value, operands) if target is None else into(target, value, mask)
            for value, target in zip(values, outs, strict=True)
        ]
    )


def _call_linear(
    ufunc: np.ufunc,
    inputs: tuple[Any, ...],
    *,
    out: tuple[Any, ...] | None = None,
    dtype: Any = None,
    signature: Any = None,
    sig: Any = None,
    casting: str = "same_kind",
    order: str = "K",
    subok: bool = True,
    axis: int | None = None,
    axes: Any = None,
    keepdims: bool = False,
) -> Any:
    """A call of `matmul` and its kind, in the types that NumPy's own resolution finds.

    `axes` and `keepdims` are refused.
    """
    if axes is not None or keepdims:
        raise TypeError(
            f"np.{ufunc.__name__}: instead of axes= and keepdims=, move axes with np.moveaxis or x[..., None]."
        )
    outs = _outs(ufunc, out)
    device = device_of(*inputs, *outs)
    values = [to_array(each, device)._value for each in inputs]
    kinds = tuple(value.spec.dtype for value in values)
    loop = resolve(ufunc, kinds, _types(outs), _signature(ufunc, dtype, signature or sig), casting)
    arrays = [Array(cast(value, name)) for value, name in zip(values, loop, strict=False)]
    result = UFUNCS[ufunc](*arrays, **({} if axis is None else {"axis": axis}))
    return result if outs[0] is None else into(outs[0], result._value)


def _outer(ufunc: np.ufunc, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """The ufunc of every element of one array with every element of the other."""
    if ufunc.nin != 2:
        raise ValueError(f"outer takes a function of two operands, and np.{ufunc.__name__} has {ufunc.nin}.")
    device = device_of(*inputs)
    one, other = (to_array(each, device) for each in inputs)
    stretched = Array(reshape(one._value, one.shape + (1,) * other.ndim))
    return _call(ufunc, (stretched, other), **options)


def _outs(ufunc: np.ufunc, out: tuple[Any, ...] | None) -> tuple[Array | None, ...]:
    """The arrays that results go to, `None` for new ones. Raises `TypeError` for NumPy's own arrays."""
    if out is None:
        return (None,) * ufunc.nout
    for each in out:
        if each is not None and not isinstance(each, Array):
            raise TypeError(
                f"np.{ufunc.__name__} cannot put the values of an anygpu Array into a NumPy array by itself. "
                "Write np.asarray(x) for the operand, as in a += np.asarray(x), or omit out=."
            )
    return out


def _types(outs: Sequence[Array | None]) -> tuple[DType | None, ...]:
    return tuple([None if each is None else each._stored.spec.dtype for each in outs])


def _signature(ufunc: np.ufunc, dtype: Any, signature: Any) -> Any:
    """The types that a user asks for, as NumPy's `resolve_dtypes` takes them. Raises `TypeError` for both options."""
    if dtype is None:
        return tuple(signature) if isinstance(signature, list) else signature
    if signature is not None:
        raise TypeError("give either dtype= or signature=, not both.")
    return (None,) * ufunc.nin + (np.dtype(dtype),) * ufunc.nout


def _delivered(results: list[Array]) -> Array | tuple[Array, ...]:
    return results[0] if len(results) == 1 else tuple(results)
