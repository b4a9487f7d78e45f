"""The program of a traced call, and how what the function returned is made of its results.

NumPy warns of more than what is returned: of values that are discarded, and of elements that are cut away. Those are
results of the program too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice, ArrayInput, CapturedConstant, ScalarInput
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value, are_needed, cut_away, in_order, leaves_of, linearise, unused
from anygpu.array.core.layouts import Layouts, axis_order, has_no_gaps
from anygpu.array.core.structure import Structure
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.core.views import View
from anygpu.array.trace.copies import Unfollowed, original
from anygpu.array.trace.traced import (
    NotTraceable,
    ReturnedLeaf,
    TraceResult,
    as_numpy_gives,
    as_python_gives,
    same,
)
from anygpu.program.dtypes import KIND, is_inexact
from anygpu.program.graph import Program
from anygpu.program.primitives import Binary, Cast, Reshape, Unary

#: Types whose values are a part of the program's meaning: another value is another signature.
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range))


class _Results:
    """The values that a program gives, each once."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Value) -> int:
        """Return the number of a value among the results, to which it is added unless it is one."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.values)
            self.values.append(value)
        return self._numbers[id(value)]


def drawn(
    tracer: AbstractDevice, arrays: dict[int, Array] | None, returned: list[Any], structure: Structure
) -> TraceResult | NotTraceable:
    """Return the program from what was given to what was returned, and how each returned leaf is made of its results.

    Inputs are ordered: arguments, numbers, arrays from outside, arrays that the function made. Refuses a result that
    NumPy may raise for and that is discarded, as the program would not compute it.
    """
    results = _Results()
    made = _leaves(tracer, arrays, returned, results)
    if isinstance(made, str):
        return NotTraceable(made)
    leaves, kept = made
    why = _why_not(tracer, leaves, kept, results.values)
    if why is not None:
        return NotTraceable(why)
    _add_what_warns(tracer, results)
    others = leaves_of(results.values)
    for each in others:
        if not isinstance(each.buffer, _INPUTS):
            return NotTraceable(f"it uses an array of {each.spec} from outside; pass it as an argument")
    others.sort(key=lambda each: _order(each.buffer))
    program = linearise(results.values, inputs=others, keep_held=False)[0]
    buffers = [each.buffer for each in others]
    return TraceResult(
        program,
        [each for each in buffers if isinstance(each, ArrayInput)],
        [each.text for each in buffers if isinstance(each, ScalarInput)],
        [each.values for each in buffers if isinstance(each, CapturedConstant)],
        [each.digest for each in buffers if isinstance(each, CapturedConstant)],
        structure,
        kept,
        _unshared(program, leaves),
        tracer,
    )


def _leaves(
    tracer: AbstractDevice, arrays: dict[int, Array] | None, returned: list[Any], results: _Results
) -> tuple[list[ReturnedLeaf | None], list[Any]] | str:
    """Return how each leaf is made of results, `None` for constants, and the constants; a reason why one cannot be."""
    positions = None if arrays is None else {id(array): position for position, array in arrays.items()}
    leaves: list[ReturnedLeaf | None] = []
    kept: list[Any] = list(returned)
    views: dict[int, int] = {}
    layouts = Layouts(tracer, exact=False)
    for where, leaf in enumerate(returned):
        if type(leaf) is TracedScalar:
            leaves.append(ReturnedLeaf(results.number(leaf.strong), None, (), as_python_gives))
        elif isinstance(leaf, Array):
            made = _returned(leaf, positions, results.number, layouts)
            if isinstance(made, str):
                return made
            if made.path:
                first = views.setdefault(id(leaf), where)
                made = made if first == where else made._replace(twin=first)
            leaves.append(made)
        elif type(leaf) in _PLAIN or (isinstance(leaf, np.generic | np.dtype) or type(leaf) is np.ndarray):
            leaves.append(None)
            continue
        else:
            return f"it returns a {_kind_of(leaf)}, which anygpu cannot inspect"
        kept[where] = None
    return leaves, kept


def _why_not(
    tracer: AbstractDevice, leaves: list[ReturnedLeaf | None], kept: list[Any], wanted: list[Value]
) -> str | None:
    """Return why no program does what the function did, as a clause; `None` if there is one."""
    if not _can_be_copied([leaf for leaf in kept if type(leaf) is np.ndarray]):
        return "it returns a view of a constant that anygpu cannot recreate; return a copy"
    if not any(leaf is not None and leaf.which is not None for leaf in leaves):
        return "it returns no array computed from its arguments"
    if not are_needed(tracer.may_raise, wanted):
        return "it discards a result for which NumPy may raise an error, such as an index or an inverse"
    return next(filter(None, map(_only_numpy_warns, in_order([*tracer.shown, *wanted]))), None)


def _add_what_warns(tracer: AbstractDevice, results: _Results) -> None:
    """Add the values that are not returned and that NumPy may warn about."""
    # The reference of a user's kernel is traced for types and shapes with arrays that are no inputs, and computes
    # nothing.
    for value in unused(tracer.shown, results.values, partial(_may_warn, tracer)):
        if all(isinstance(each.buffer, _INPUTS) for each in leaves_of([value])):
            results.number(value)
    # NumPy also warns about elements that are cut away, which engines do not compute.
    shown = {id(behind) for value in tracer.shown for behind in _with_copied(value)}
    for value in cut_away(results.values, lambda value: id(value) in shown and _may_warn(tracer, value)):
        results.number(value)


#: The sources of a program's values.
_INPUTS = ArrayInput | ScalarInput | CapturedConstant


#: The flag of an array that owns its memory, as a number.
_OWNDATA = 0x4


def _can_be_copied(constants: list[Any]) -> bool:
    """Return whether copies of these arrays have their flags and strides, and no two of them share memory."""
    for number, each in enumerate(constants):
        copy = each.copy(order="K")
        if copy.flags.num | _OWNDATA != each.flags.num | _OWNDATA or (each.size > 1 and copy.strides != each.strides):
            return False
        if any(each is not other and np.may_share_memory(each, other) for other in constants[:number]):
            return False
    return True


def _with_copied(value: Value) -> Iterator[Value]:
    """Yield a value, and those that it is a copy or a reshaped view of."""
    yield value
    while isinstance(value.op, Reshape):
        (value,) = value.inputs
        yield value


def _may_warn(tracer: AbstractDevice, value: Value) -> bool:
    """Return whether NumPy may warn about an operation on a line where the user has not silenced it."""
    op = value.op
    if op is None or value.device is None or not op.may_raise_flags or value.line in tracer.quiet_lines:
        return False
    if is_inexact(value.spec.dtype):
        return True
    if isinstance(op, Cast):
        return is_inexact(value.inputs[0].spec.dtype)
    return isinstance(op, Binary) and (op.fn in _QUOTIENTS or not value.spec.shape)


def _only_numpy_warns(value: Value) -> str | None:
    """Return why a warning that no result shows keeps a function on NumPy; `None` for most values."""
    op = value.op
    if isinstance(op, Binary) and op.fn in _ORDERS and KIND[value.inputs[0].spec.dtype] == "complex":
        return "it orders complex numbers, and NumPy warns where one of them is NaN"
    if isinstance(op, Unary) and op.fn == "reciprocal" and not is_inexact(value.spec.dtype):
        return "it takes reciprocals of whole numbers, and NumPy warns of 0"
    return None


_ORDERS = frozenset(("less", "less_equal", "greater", "greater_equal"))
#: Functions whose integer divisions by zero NumPy warns about.
_QUOTIENTS = frozenset(("floor_divide", "remainder", "fmod"))


def _kind_of(leaf: Any) -> str:
    """Return the name of a value's class, for messages."""
    return "value of an unknown kind" if type(leaf) is Unfollowed else original(type(leaf)).__name__


def _order(buffer: Any) -> tuple[int, int]:
    """Return the sort key of a program input: arguments, numbers, outer arrays, arrays that the function makes."""
    if isinstance(buffer, ArrayInput):
        return (0 if buffer.is_argument else 2), buffer.position
    return (1, 0) if isinstance(buffer, ScalarInput) else (3, 0)


def _returned(
    array: Array, positions: dict[int, int] | None, result: Callable[[Value], int], layouts: Layouts
) -> ReturnedLeaf | str:
    """Return how an array that is returned is made of results or captures; a clause that says why where it cannot be.

    `positions` are those of the arguments by identity; `result` gives the number of a result. Without `positions` views
    and arguments are results as well.
    """
    if positions is None:
        return ReturnedLeaf(result(array._value), None, (), same if array.shape else as_numpy_gives)
    if id(array) in positions:
        return ReturnedLeaf(None, positions[id(array)], (), same)
    view: View | None = array._view
    base = array if view is None else view.base
    path = () if view is None else view.path
    array._value  # noqa: B018 - it looks again at what was written to its base
    if view is not None and not view.can_be_followed:
        return "it returns a view that anygpu cannot recreate; return a copy"
    if id(base) in positions:
        return ReturnedLeaf(None, positions[id(base)], path, same)
    layout = layouts.of(base._value)
    if layout is None or not has_no_gaps(layout):
        return "it returns an array whose memory layout only NumPy has; return np.ascontiguousarray of it"
    order = () if layout.flags.c_contiguous else axis_order(layout)
    finish = as_numpy_gives if view is None and not array.shape else same
    return ReturnedLeaf(result(base._value), None, path, finish, order=order)


def _unshared(program: Program, leaves: list[ReturnedLeaf | None]) -> list[ReturnedLeaf | None]:
    """Return the leaves, marked to be copied where the user sees one result as two arrays, or an input as a result."""
    first: dict[int, int] = {}
    made: list[ReturnedLeaf | None] = []
    for leaf in leaves:
        if leaf is not None and leaf.which is not None and leaf.finish is same:
            node = program.outputs[leaf.which]
            if node < program.input_count or first.setdefault(node, leaf.which) != leaf.which:
                leaf = leaf._replace(own=True)
        made.append(leaf)
    return made
