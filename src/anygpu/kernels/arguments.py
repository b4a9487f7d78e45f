"""The arguments of a kernel, checked: arrays by position, then numbers; nothing is converted silently."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.base.float_errors import float_errors_ignored
from anygpu.errors import InvalidOption
from anygpu.program.ops.custom import Parameter, Scalar

_RANGES = {name: np.iinfo(name) for name in ("int32", "uint32", "int64", "uint64")}


class Given(NamedTuple):
    """The arguments of one call."""

    #: In the order of the parameters that are read.
    arrays: list[Any]
    #: By name, in the kernel's order, as exact as the kernel gets them.
    numbers: dict[str, int | float]

    @property
    def has_ours(self) -> bool:
        return any(isinstance(each, Array) for each in self.arrays)


class Number(NamedTuple):
    """A number that a kernel takes."""

    name: str
    dtype: str


def given_to(
    title: str,
    read: Sequence[Parameter],
    numbers: Sequence[Number],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Given:
    """The arguments of a call, each where it belongs."""
    names = [each.name for each in read] + [each.name for each in numbers]
    found: dict[str, Any] = dict(zip(names, arguments, strict=False))
    if len(arguments) > len(names):
        raise InvalidOption(f"{len(arguments)} arguments for {call_text(title, read, numbers)}.")
    for name, value in keywords.items():
        if name not in names:
            raise InvalidOption(f"there is no {name!r} in {call_text(title, read, numbers)}.")
        if name in found:
            raise InvalidOption(f"{name!r} is given twice to {call_text(title, read, numbers)}.")
        found[name] = value
    missing = [name for name in names if name not in found]
    if missing:
        raise InvalidOption(f"{missing[0]!r} is missing in the call of {call_text(title, read, numbers)}.")
    return Given(
        [_array(title, each, found[each.name]) for each in read],
        {each.name: _number(title, each, found[each.name]) for each in numbers},
    )


def call_text(title: str, read: Sequence[Parameter], numbers: Sequence[Number]) -> str:
    """The signature of the kernel, for messages."""
    arrays = [f"{each.name}: array of {each.dtype}" for each in read]
    return f"{title}({', '.join([*arrays, *(f'{each.name}: {each.dtype}' for each in numbers)])})"


def _array(title: str, parameter: Parameter, value: Any) -> Any:
    if not isinstance(value, Array) and isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, Array | np.ndarray):
        raise InvalidOption(
            f"{parameter.name} of the kernel {title} is an array, and got a {type(value).__name__}. Make one of it: "
            f"np.asarray(..., np.{parameter.dtype})."
        )
    if value.dtype.name != parameter.dtype or not value.dtype.isnative:
        raise InvalidOption(
            f"{parameter.name} of the kernel {title} is an array of {parameter.dtype}, and got one of "
            f"{value.dtype.name if value.dtype.isnative else value.dtype}. Nothing is converted by itself: write "
            f"{parameter.name}.astype(np.{parameter.dtype})."
        )
    return value


def _number(title: str, number: Number, value: Any) -> int | float:
    if isinstance(value, Array) and not value.shape:
        value = value.item()
    if type(value) is TracedScalar:
        value = float(value)  # there is none while a function is recorded, and this says so
    about = f"{number.name} of the kernel {title} is a number of {number.dtype}"
    if isinstance(value, Array | np.ndarray) and value.ndim:
        raise InvalidOption(f"{about}, and got an array of shape {value.shape}.")
    if number.dtype in _RANGES:
        try:
            whole = operator.index(value)
        except TypeError:
            raise InvalidOption(f"{about}, and got {value!r}. Round it: int(...).") from None
        limits = _RANGES[number.dtype]
        if not int(limits.min) <= whole <= int(limits.max):
            raise InvalidOption(f"{about}, which is from {limits.min} to {limits.max}; got {whole}.")
        return whole
    try:
        exact = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidOption(f"{about}, and got {value!r}.") from None
    rounded = float(float_errors_ignored(np.dtype(number.dtype).type)(exact))
    if math.isinf(rounded) and not math.isinf(exact):
        raise InvalidOption(f"{about}, and {exact:g} is more than it can hold.")
    return rounded


def scalars_of(numbers: Sequence[Number], values: Mapping[str, int | float]) -> tuple[Scalar, ...]:
    return tuple(Scalar(each.name, each.dtype, values[each.name]) for each in numbers)  # type: ignore[arg-type]
