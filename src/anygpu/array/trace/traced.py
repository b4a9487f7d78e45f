"""A function that has become a program: what the program takes for a call, and what the call returns.

`Traced` is made by `tracing.trace`, is immutable and may be used by any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice, ArrayInput
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.layouts import copy_in_order
from anygpu.array.core.structure import LEAF, Structure, flatten, unflatten
from anygpu.array.core.traced_scalar import evaluator, in_type
from anygpu.array.core.views import follow_on_host
from anygpu.array.trace.captures import Capture
from anygpu.array.trace.guards import GONE, STEPS, compiled_reader
from anygpu.program.dtypes import KIND
from anygpu.program.exactness import Order, Rounding, judged, rounds_each_step, why_not, with_loops
from anygpu.program.graph import Program
from anygpu.program.primitives import Contract
from anygpu.program.transforms import in_single_precision

Precision = Literal["float32"]

#: The reason for a call on NumPy if `Traced.lies_otherwise`.
LIES_OTHERWISE = "its last bits follow from how its arguments lie in memory, which native code knows for C's order."


class NotTraceable(NamedTuple):
    """The reason why a function has no program and runs on the host."""

    #: A clause that goes on after the function's name: "it branches on an array value …".
    reason: str
    #: The user's own line, where it is known.
    line: str | None = None
    #: Whether a later trace, with more time, may succeed.
    for_now: bool = False
    #: The error that the function itself raised while it was traced.
    error: Exception | None = None


class ReturnedLeaf(NamedTuple):
    """An array or number that is returned, and how it is made."""

    #: Which of the program's results it is made of.
    which: int | None
    #: The capture that it is, or is a view of.
    argument: int | None
    #: The way from there, for a view.
    path: tuple[Any, ...]
    finish: Callable[[Any], Any]
    #: Whether the result shares memory with an input or another result, so that it must be copied.
    own: bool = False
    #: The axes of a result in the order of memory, where that is not C's.
    order: tuple[int, ...] = ()
    #: For a view that is returned more than once, the earlier leaf that is the same object.
    twin: int | None = None


def _lies_as_c(array: Any) -> bool:
    """Return whether an array is in C order; NumPy adds others in pieces, or in another order."""
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative  # type: ignore[no-any-return]


def _lies_forwards(array: Any) -> bool:
    """Return whether no axis of an array runs backwards, for which NumPy has other loops."""
    return array.flags.forc or min(array.strides, default=0) >= 0


class TraceResult(NamedTuple):
    """The program of one call with abstract arrays, and how its results become the return value."""

    program: Program
    reads: list[ArrayInput]
    #: Expressions over numbers.
    texts: list[str]
    fixed: list[Any]
    digests: list[bytes]
    #: The nesting of the return value, and its leaves, with `None` in place of arrays.
    structure: Structure
    returned: list[Any]
    leaves: list[ReturnedLeaf | None]
    tracer: AbstractDevice


class CallInputs(list[Any]):
    """The inputs of a program for one call, as a list, with the `values` of all captures that were read for it.

    It holds the user's objects, so it lives as long as the call.
    """

    __slots__ = ("values",)

    def __init__(self, inputs: list[Any], values: list[Any]) -> None:
        super().__init__(inputs)
        self.values = values


class Traced:
    """A function that has become a program, for calls of one kind. It holds no object of the user's.

    `inputs` reads what a call passes to the program, or finds that the program is not that of the call. `rebuild` makes
    the return value of the program's results.
    """

    __slots__ = (
        "_captures",
        "_deciding",
        "_distinct",
        "_evaluate",
        "_fixed",
        "_leaves",
        "_needs",
        "_numbers",
        "_positions",
        "_reader",
        "_returned",
        "_single",
        "_structure",
        "by_value",
        "has_complex_products",
        "is_exact",
        "numbers",
        "program",
        "quiet_lines",
        "returns_new",
        "warns_anyway",
    )

    #: The computation.
    program: Program
    #: Which of float and int are constants of the program: another value needs another program.
    by_value: frozenset[type]
    #: Whether every bit of its results has to be NumPy's.
    is_exact: bool
    #: Whether it multiplies complex matrices, where BLAS decides which infinities become NaN.
    has_complex_products: bool
    #: The inputs that are numbers: arguments, and values that Python computes from them.
    numbers: slice
    #: Lines on which the user has turned NumPy's warnings off.
    quiet_lines: frozenset[tuple[str, int]]
    #: Whether NumPy may warn whatever its modes are.
    warns_anyway: bool
    #: Whether each array that is returned is one of its own: no argument, no view, and none of the others.
    returns_new: bool

    def __init__(
        self,
        result: TraceResult,
        captures: tuple[Capture, ...],
        *,
        by_value: frozenset[type],
        precision: Precision | None,
        exact: Rounding | None,
    ) -> None:
        self.program = in_single_precision(result.program) if precision == "float32" else result.program
        if exact is not None:
            self.program = with_loops(self.program, exact, throughout=True)
        self.is_exact = exact is not None
        self.has_complex_products = any(
            isinstance(op, Contract) and KIND[spec.dtype] == "complex"
            for (op, _), spec in zip(self.program.nodes, self.program.specs, strict=True)
        )
        self._needs: Order | None = None
        self.by_value = by_value
        self.warns_anyway = result.tracer.warns_anyway
        self.quiet_lines = frozenset(() if self.warns_anyway else result.tracer.quiet_lines)
        self._captures = captures
        self._reader = compiled_reader(captures)
        self._deciding = _steps_to_watched(captures)
        self.returns_new = _are_new(result)
        first = [each for each in result.reads if each.is_argument]
        self._positions = (
            [each.position for each in first],
            [each.position for each in result.reads if not each.is_argument],
        )
        texts = result.texts
        specs = self.program.inputs[len(first) : len(first) + len(texts)]
        self._numbers = [to_numpy_dtype(spec.dtype) for spec in specs]
        self.numbers = slice(len(first), len(first) + len(texts))
        # Those that are no inputs come last, and are computed only to see whether Python raises an error.
        texts = [*texts, *(each for each in result.tracer.risky if each not in texts)]
        self._evaluate = evaluator(texts) if texts else None
        self._fixed = result.fixed
        self._structure = result.structure
        self._returned = result.returned
        self._leaves = result.leaves
        arrays = [position for position, each in enumerate(captures) if each.kind == "array"]
        self._distinct = arrays if len(arrays) > 1 else []
        only = result.leaves[0] if result.structure is LEAF else None
        self._single = (
            only is not None
            and only.argument is None
            and not (only.path or only.own or only.order)
            and only.finish is same
        )

    def only_on_numpy(self, rounding: Rounding) -> str | None:
        """Return why a device that rounds like this misses NumPy's bits where they matter, as a sentence, or `None`."""
        if rounds_each_step(self.program):
            return "it adds or multiplies float16 numbers: NumPy rounds each step, in an order that memory decides."
        why = why_not(self.program, rounding, throughout=self.is_exact)
        return f"{why}, and only numpy has the same." if why is not None else None

    def lies_otherwise(self, inputs: Sequence[Any]) -> bool:
        """Return whether bits that matter depend on the memory layout of arguments, and these have an unknown one.

        The known layout is C order for sums, and any without reversed axes for functions.
        """
        if self._needs is None:
            self._needs = judged(self.program, "complex", throughout=self.is_exact).needs
        if self._needs == Order.ANY:
            return False
        lies = _lies_as_c if self._needs == Order.C else _lies_forwards
        return not all(lies(each) for each in inputs if type(each) is np.ndarray)

    def read(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> list[Any] | None:
        """Return the values of all captures for this call, by position; `None` when a guard fails.

        Arrays that were different objects when the function was traced have to be so still: a function may compare
        identities, or write to one of two.
        """
        values = self._reader(arguments, keywords, as_function(function))
        if values is None:
            return None
        if self._distinct and len({id(values[each]) for each in self._distinct}) != len(self._distinct):
            return None
        return values

    @property
    def has_deciding_captures(self) -> bool:
        """Return whether data or functions decide what it does, other than what a call's signature says."""
        return bool(self._deciding)

    def decides_alike(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Return whether the objects that decide what the function does are unchanged, without looking at inputs.

        It is quicker than `read`, for calls on the host that only must not write to their arguments.
        """
        roots = (arguments, keywords, as_function(function))
        values: list[Any] = []
        try:
            for parent, read, key, test, expected in self._deciding:
                value = read(values[parent] if parent >= 0 else roots, key)
                if not test(value, expected):
                    return False
                values.append(value)
        except GONE:
            return False
        return True

    def changed(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str | None:
        """Return the user's name of the first capture whose guard fails, for messages; `None` if none does."""
        roots = (arguments, keywords, as_function(function))
        values: list[Any] = []
        for kind, parent, read, key, test, expected, name in self._captures:
            try:
                value = read(values[parent] if parent >= 0 else roots, key)
                same = value is values[expected] if kind == "same" else test(value, expected)
            except GONE:
                same = False
            if not same:
                return name
            values.append(value)
        return None

    def inputs(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> CallInputs | None:
        """Return what the program takes, one for each of `program.inputs`; `None` when it is not this call's program.

        Arrays among the arguments come first, in their order and without those that the function does not use; then
        numbers, as arrays without axes; then arrays from outside, as they are now; then what the function makes itself.
        The arrays are the caller's own: with `precision="float32"` the code that runs the program narrows them.
        """
        found = self.arrays(function, arguments, keywords)
        return None if found is None else CallInputs(*found)

    def arrays(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[list[Any], list[Any]] | None:
        """Return the parts of `CallInputs`: the program's inputs, and the values of all captures; `None` when it is not
        its program.

        It is also `None` where Python raises for an expression over numbers: the function itself shall raise that.
        """
        values = self.read(function, arguments, keywords)
        if values is None:
            return None
        before, after = self._positions
        inputs = [values[position] for position in before]
        if self._evaluate is not None:
            try:
                inputs += map(in_type, self._evaluate(values), self._numbers)
            except (ArithmeticError, ValueError, TypeError):
                return None  # Python's own error: the function itself shall raise it
        if after:
            inputs += [values[position] for position in after]
        if self._fixed:
            inputs += self._fixed
        return inputs, values

    def inputs_reader(self) -> Callable[[tuple[Any, ...], dict[str, Any], Any], list[Any] | None] | None:
        """Return the inputs of the program as one compiled function of a call; `None` where reading captures is not all
        there is to do.

        That is so with expressions over numbers, arrays that the function makes itself, or more than two distinct
        arrays.
        """
        if self._evaluate is not None or self._fixed or len(self._distinct) > 2:
            return None
        before, after = self._positions
        return compiled_reader(self._captures, [*before, *after], self._distinct)

    @property
    def returns_result(self) -> bool:
        """Return whether the function returns the result of the program unchanged."""
        return self._single

    def rebuild(self, results: Sequence[Any], given: CallInputs | None = None) -> Any:
        """Return the function's return value, from what the program gave for the call that `given` was read for.

        Arguments that are returned, and views of them, are made of the caller's own arrays; results that share memory
        with an input or another result are copied. Without `given` the word `ARGUMENT` stands in the place of
        arguments.
        """
        if self._single:
            return results[0]
        leaves = list(self._returned)
        made_of: dict[int, Any] = {}
        copies: dict[int, Any] = {}
        for where, leaf in enumerate(self._leaves):
            if leaf is None:
                kept = leaves[where]
                if isinstance(kept, np.ndarray):
                    if id(kept) not in copies:
                        copies[id(kept)] = kept.copy(order="K")
                    leaves[where] = copies[id(kept)]
                continue
            if leaf.twin is not None:
                leaves[where] = leaves[leaf.twin]
                continue
            if leaf.which is None:
                if given is None:
                    leaves[where] = ARGUMENT
                    continue
                assert leaf.argument is not None
                made = given.values[leaf.argument]
            else:
                if leaf.which not in made_of:
                    made_of[leaf.which] = _made(results[leaf.which], leaf)
                made = made_of[leaf.which]
            leaves[where] = leaf.finish(follow_on_host(leaf.path, made) if leaf.path else made)
        return unflatten(self._structure, leaves)

    @property
    def results_returned(self) -> list[int | None]:
        """The position of the result that each leaf of the return value is; `None` for a leaf that is not one."""
        return [None if leaf is None else leaf.which for leaf in self._leaves]

    @property
    def reorders(self) -> bool:
        """Return whether a result lies in memory in another order than C's."""
        return any(leaf is not None and leaf.order for leaf in self._leaves)

    @property
    def returned(self) -> Structure:
        """The nesting of the function's return value."""
        return self._structure

    @property
    def owns(self) -> list[bool]:
        """Return whether each leaf of the return value is a result with memory of its own: no argument, and no view."""
        return [leaf is None or (leaf.argument is None and not leaf.path) for leaf in self._leaves]

    def without_arguments(self, value: Any) -> Any:
        """Return the return value with arguments, and views of them, replaced by `ARGUMENT`; they alias the caller's
        data.
        """
        if not any(leaf is not None and leaf.argument is not None for leaf in self._leaves):
            return value
        leaves, structure = flatten(value)
        if structure != self._structure:
            return value
        marked = [
            ARGUMENT if known is not None and known.argument is not None else leaf
            for known, leaf in zip(self._leaves, leaves, strict=True)
        ]
        return unflatten(structure, marked)


#: One step to something that a function depends on: from which of the earlier ones, how, and what must be true of it.
_Step = tuple[int, Callable[[Any, Any], Any], Any, Callable[[Any, Any], bool], Any]

#: Captures that may be others at any call: data, and functions of Python under a name that can be bound again.
_WATCHED = frozenset(("value", "container", "object", "function", "method", "partial"))
#: Steps whose values change only if code replaces parts of a function.
_OF_CODE = (STEPS["default"], STEPS["keyword default"], STEPS["defaults"], STEPS["globals"])


def _steps_to_watched(captures: tuple[Capture, ...]) -> list[_Step]:
    """Return the steps to all captures whose change would make the function do something else, beyond what a call's
    signature says.

    Parents come before children, as in the captures themselves, so that one pass reads them.
    """
    wanted: set[int] = set()
    for number, each in enumerate(captures):
        if each.parent >= 0 and each.kind in _WATCHED and each.read not in _OF_CODE:
            way = number
            while way >= 0 and way not in wanted:
                wanted.add(way)
                way = captures[way].parent
    order = {number: position for position, number in enumerate(sorted(wanted))}
    found = ((order.get(each.parent, -1), each) for number, each in enumerate(captures) if number in order)
    return [(parent, each.read, each.key, each.test, each.expected) for parent, each in found]


def _made(result: Any, leaf: ReturnedLeaf) -> Any:
    """Return a result of the program in the memory that NumPy's would have: copied into another order of axes, or to be
    its own.
    """
    if leaf.order:
        return copy_in_order(result, leaf.order)
    return result.copy() if leaf.own else result


def _are_new(result: TraceResult) -> bool:
    """Return whether all arrays that are returned are new, and no two are the same."""
    whole = [each for each in result.leaves if each is not None]
    made = [each.which for each in whole if each.argument is None and not each.path]
    if len(set(made)) != len(whole):
        return False
    return not any(
        each is None and isinstance(value, np.ndarray)
        for each, value in zip(result.leaves, result.returned, strict=True)
    )


#: Stands for an argument that is returned, where the arguments are gone.
ARGUMENT = "an argument"


def as_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method behind a callable object; a function is itself."""
    if isinstance(function, FunctionType | MethodType | functools.partial):
        return function
    by_class = next((vars(cls)["__call__"] for cls in type(function).__mro__ if "__call__" in vars(cls)), None)
    return MethodType(by_class, function) if isinstance(by_class, FunctionType) else function


def same(result: Any) -> Any:
    """Return the result unchanged."""
    return result


def as_python_gives(result: Any) -> Any:
    """Return a result without axes as a number of Python's."""
    return result.item()


def as_numpy_gives(result: Any) -> Any:
    """Return a result without axes as a NumPy scalar, as NumPy's functions do; an `Array` unchanged."""
    return result[()] if type(result) is np.ndarray else result
