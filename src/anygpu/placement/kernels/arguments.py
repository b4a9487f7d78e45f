"""The arguments of a kernel, checked: arrays by position, then numbers; nothing is converted silently."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.base.interrupts import float_errors_ignored
from anygpu.errors import InvalidOption
from anygpu.program.ops.custom import Parameter, Scalar, Three
from anygpu.program.primitives import Shape

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
    """The array for a parameter.

    Raises `InvalidOption` for what is no array, and for another type: nothing is converted.
    """
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
    """The number for a parameter, rounded to its type. Raises `InvalidOption` where it does not fit."""
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


# -- the shapes of a kernel's results, and the number of its groups, from the shapes of its arguments


#: A parameter that every result is like, one for each result, or a function of the shapes that is called as the kernel.
Results = str | Sequence[str] | Callable[..., Any]
#: Invocations in x, y and z, or a function of the shapes that is called as the kernel.
Grid = int | Sequence[int] | Callable[..., Any]


def call_like(function: Callable[..., Any], arrays: Sequence[Any], numbers: Mapping[str, int | float]) -> Any:
    """Call it as the kernel is called: with the arrays by position, and those of the numbers that it names."""
    return function(*arrays, **numbers_for(function, numbers))


def numbers_for(function: Callable[..., Any], numbers: Mapping[str, int | float]) -> dict[str, int | float]:
    """The numbers that the function takes by name: a reference has no need of a length that its arrays know."""
    if not numbers:
        return {}
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C that does not tell
        return {}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken):
        return dict(numbers)
    named = {each.name for each in taken if each.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return {name: value for name, value in numbers.items() if name in named}


def result_shapes(
    title: str,
    parameters: Sequence[Parameter],
    given: Mapping[str, Shape],
    numbers: Mapping[str, int | float],
    results: Results | None,
) -> tuple[Shape, ...]:
    """The shapes of what the kernel writes, where no reference tells: an update keeps its own."""
    made = [each for each in parameters if each.role == "output"]
    shapes = _made_shapes(title, made, given, numbers, results)
    made_by_name = {each.name: shape for each, shape in zip(made, shapes, strict=True)}
    return tuple(made_by_name.get(each.name, given.get(each.name, ())) for each in parameters if each.role != "input")


def _made_shapes(
    title: str,
    made: Sequence[Parameter],
    given: Mapping[str, Shape],
    numbers: Mapping[str, int | float],
    results: Results | None,
) -> Sequence[Shape]:
    """The shapes of the results that a kernel makes.

    These are what `results` says, by names of arrays or by a function, and otherwise the shape of the first array.
    Raises `InvalidOption` where that does not fit the number of results.
    """
    if not made:
        return []
    if results is None:
        if not given:
            raise InvalidOption(
                f"the kernel {title} takes no array that its result could be like. Say what shape it has: "
                "results=lambda n: (n,)."
            )
        return [next(iter(given.values()))] * len(made)
    if callable(results):
        return _returned(title, call_like(results, list(given.values()), numbers), len(made))
    names = [results] * len(made) if isinstance(results, str) else list(results)
    if len(names) != len(made):
        raise InvalidOption(f"the kernel {title} makes {len(made)} arrays, and results= has {len(names)} names.")
    unknown = [name for name in names if name not in given]
    if unknown:
        listed = ", ".join(given) or "none"
        raise InvalidOption(f"results= of the kernel {title} names {unknown[0]!r}; the arrays it takes are {listed}.")
    return [given[name] for name in names]


def _returned(title: str, found: Any, count: int) -> list[Shape]:
    """A shape, or one for each of several."""
    try:
        if count == 1 and not (isinstance(found, Sequence) and len(found) == 1 and isinstance(found[0], Sequence)):
            return [_shape(found)]
        shapes = [_shape(each) for each in found]
    except TypeError:
        shapes = []
    if len(shapes) != count:
        several = "a shape, such as (8, 3)" if count == 1 else f"{count} shapes, such as ((8, 3), (8,))"
        raise InvalidOption(f"results= of the kernel {title} gave {found!r}, which is not {several}.")
    return shapes


def _shape(found: Any) -> Shape:
    """The lengths as a shape. Raises `TypeError` for negative ones and for what is no integer."""
    lengths = [found] if not isinstance(found, Sequence) else found
    shape = tuple(operator.index(each) for each in lengths)
    if any(n < 0 for n in shape):
        raise TypeError
    return shape


#: The most invocations of a group where the text leaves that open, for a grid of one, two and three dimensions.
_GROUPS: tuple[Three, ...] = ((64, 1, 1), (16, 4, 1), (8, 4, 2))


def group_for(group: Three | None, grid: Three) -> Three:
    """The text's own. Where it has none, one that divides the grid: such kernels count on no more invocations."""
    if group is not None:
        return group
    most = _GROUPS[2 if grid[2] > 1 else 1 if grid[1] > 1 else 0]
    x, y, z = (_divisor(count, limit) for count, limit in zip(grid, most, strict=True))
    return x, y, z


def _divisor(count: int, limit: int) -> int:
    """The greatest that is not more than the limit."""
    return next((each for each in range(limit, 1, -1) if count % each == 0), 1)


def automatic_grid(shape: Shape, group: Three | None, width: int = 1) -> Three:
    """An invocation for each element of the first result; an element may be a vector of `width` numbers.

    For a group that is a line they are counted on along x. For one with more dimensions the last axis is x, the one
    before y, and what is left is z.
    """
    if group is None or group[1] == group[2] == 1:
        return -(-math.prod(shape) // width), 1, 1
    x, y, *rest = (*reversed(shape), 1, 1)
    return -(-x // width), y, math.prod(rest)


def invocations(
    title: str,
    grid: Grid | None,
    given: Mapping[str, Shape],
    numbers: Mapping[str, int | float],
    first: Shape,
    group: Three | None,
    width: int = 1,
) -> Three:
    """How many there are in x, y and z. `first` is the shape of the first result."""
    if grid is None:
        return automatic_grid(first, group, width)
    found = call_like(grid, list(given.values()), numbers) if callable(grid) else grid
    try:
        counts = [operator.index(each) for each in (found if isinstance(found, Sequence) else [found])]
    except TypeError:
        counts = []
    if not 1 <= len(counts) <= 3 or min(counts) < 0:
        raise InvalidOption(
            f"grid= of the kernel {title} is one to three numbers of invocations, such as (1024,) or (640, 480); "
            f"got {found!r}."
        )
    x, y, z, *_ = (*counts, 1, 1)
    return x, y, z


def groups_for(invocations: Three, group: Three) -> Three:
    """As many groups as hold the invocations; those that are too many in the last ones are the kernel's to skip."""
    x, y, z = (-(-count // max(size, 1)) for count, size in zip(invocations, group, strict=True))
    return x, y, z
