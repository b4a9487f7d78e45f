"""From a kernel's text and the shapes of its arguments to the node of a program that launches it.

`Launcher` makes a `LaunchCall` for the shapes of arguments, and keeps the last ones. Comparisons of results come first:
`first_difference` finds where a kernel and its reference disagree beyond the tolerance.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from anygpu.array.trace.tracing import record
from anygpu.base.interrupts import float_errors_ignored, is_of_a_handler
from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.custom.reflected import Length, Reflected
from anygpu.errors import InvalidOption
from anygpu.placement.kernels.arguments import (
    Given,
    Grid,
    Number,
    Results,
    group_for,
    groups_for,
    invocations,
    numbers_for,
    result_shapes,
    scalars_of,
)
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.custom import Custom, Parameter, Three
from anygpu.program.primitives import Shape, Spec
from anygpu.program.wire import to_bytes

# -- whether a kernel's result is that of its reference: pure comparison of two arrays


#: A share of each value, near 0 of the typical one; or a share of each value and a number that is added to it.
Tolerance = float | tuple[float, float]

#: In epsilons of the type. One operation may add as much as docs/reference/tolerances.md says, 32 of float32 for a
#: function; a kernel has several of them, and sums of some hundred numbers.
_EPSILONS = {"float16": 8, "float32": 256, "float64": 256, "complex64": 512, "complex128": 512}


#: As many values show what is typical of an array.
_SAMPLES = 1 << 16
_PIECE = 1 << 18


class Difference(NamedTuple):
    """Where two arrays differ first, in C order."""

    position: tuple[int, ...]
    found: Any
    expected: Any
    #: In how many they do.
    places: int


def default_tolerance(dtype: np.dtype[Any]) -> float:
    """The difference that is allowed between two right answers; 0 for whole numbers and bools."""
    return _EPSILONS[dtype.name] * float(np.finfo(dtype).eps) if dtype.name in _EPSILONS else 0.0


def first_difference(found: HostArray, expected: HostArray, tolerance: Tolerance | None = None) -> Difference | None:
    """The first place where two arrays of one shape and type differ by more than they may.

    A single tolerance is a share: of the expected value, or where that is less, of the median of all that are not 0. So
    neither a sum that comes close to 0 nor an array of tiny numbers is judged by a scale that is not its own.
    """
    flat, wanted = found.reshape(-1), expected.reshape(-1)
    typical = _typical(wanted)
    first: int | None = None
    places = 0
    # In pieces, so that what is compared in a wider type stays in the processor's caches.
    for begin in range(0, flat.size, _PIECE):
        one, other = flat[begin : begin + _PIECE], wanted[begin : begin + _PIECE]
        where = np.flatnonzero(one != other)
        if where.size:
            where = where[~_is_close(one[where], other[where], tolerance, typical)]
        if where.size and first is None:
            first = begin + int(where[0])
        places += where.size
    if first is None:
        return None
    position = tuple(int(each) for each in np.unravel_index(first, found.shape))
    return Difference(position, found[position].item(), expected[position].item(), places)


@float_errors_ignored
def _is_close(
    found: HostArray, expected: HostArray, tolerance: Tolerance | None, typical: float
) -> npt.NDArray[np.bool_]:
    """For each element whether found and expected agree within the tolerance.

    A single number is a share of the expected value or, if that is larger, of what is `typical` for the result. NaN
    agrees with NaN alone, and infinity only with itself, which the caller has compared before. Differences are computed
    in a wider type.
    """
    dtype = found.dtype
    if tolerance is None:
        tolerance = default_tolerance(dtype)
    if dtype.kind == "b" or not np.any(tolerance):
        return np.asarray((found != found) & (expected != expected))
    # Whole numbers wrap around in their own type, and floats overflow.
    wide: Any = np.complex128 if dtype.kind == "c" else np.float64 if dtype.itemsize < 8 else np.longdouble
    found, expected = found.astype(wide), expected.astype(wide)
    distance, size = np.abs(found - expected), np.abs(expected)
    if isinstance(tolerance, tuple):
        allowed = tolerance[0] * size + tolerance[1]
    else:
        # Below the smallest normal number some devices have only 0.
        least = float(np.finfo(dtype).tiny) if dtype.kind == "f" else 0.0
        allowed = np.maximum(tolerance * np.maximum(size, typical), least)
    near = (distance <= allowed) & np.isfinite(size) & np.isfinite(found)
    return np.asarray(near | (np.isnan(found) & np.isnan(expected)))


def _typical(values: HostArray) -> float:
    """The median of all that are not 0, as some thousand of them show it."""
    sizes = np.abs(values[:: max(1, values.size // _SAMPLES)]).astype(np.float64)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return float(np.median(sizes)) if sizes.size else 0.0


#: Kinds of calls that one kernel remembers.
_MOST_LAUNCHES = 256
#: Elements of each array of the program that shows whether a kernel compiles.
_FEW = 64
_ANY = Length()


class LaunchCall(msgspec.Struct, frozen=True):
    """The kernel for arguments of one kind and one set of numbers."""

    #: With `result` 0.
    op: Custom
    inputs: tuple[Spec, ...]
    results: tuple[Spec, ...]
    #: Of everything that a trial of this kernel depends on, in this process: two launches of one key differ in the
    #: values of numbers, and in groups that follow from them, at most.
    key: str
    #: Of everything that is computed and compared, for other processes. `None` where NumPy alone can compute the
    #: reference: whatever that depends on beside its code cannot be told, so nothing is remembered on disk.
    lasting_key: str | None

    @property
    def alone(self) -> Program:
        """The kernel and nothing else, with all of its results; what it means stays behind."""
        return program_of(msgspec.structs.replace(self.op, reference=b""), self.inputs)


class Launcher:
    """A kernel's text, reference and options, applied to calls."""

    def __init__(
        self,
        name: str,
        reflected: Reflected,
        reference: Callable[..., Any] | None,
        *,
        results: Results | None = None,
        grid: Grid | None = None,
        tolerance: Tolerance | None = None,
    ) -> None:
        """How a kernel is launched: `read` and `written` are its parameters by role, `numbers` its scalars.

        `results` and `grid` give shapes and invocations where the source does not tell. Launches are kept for the last
        arguments' shapes.
        """
        self.name = name
        self.reflected = reflected
        self.reference = reference
        self.tolerance = tolerance
        self.read = tuple(each for each in reflected.parameters if each.role != "output")
        self.written = tuple(each for each in reflected.parameters if each.role != "input")
        self.numbers = tuple(Number(each.name, each.dtype) for each in reflected.scalars)
        self._results = results
        self._grid = grid
        self._launches: LRUCache[LaunchCall] = LRUCache(_MOST_LAUNCHES)

    def launch_of(self, given: Given) -> LaunchCall:
        return self.launch(tuple(Spec(each.shape, each.dtype.name) for each in given.arrays), given.numbers)

    def launch(self, inputs: tuple[Spec, ...], numbers: Mapping[str, int | float]) -> LaunchCall:
        # By how numbers are written: 0.0 and -0.0 are equal, and not the same.
        return self._launches.get((inputs, repr(numbers)), lambda: self._launch(inputs, numbers))

    def sample(self) -> Program:
        """A program that has the kernel in it, and shows whether it compiles; it is never run."""
        lengths = self.reflected.lengths
        few = {each.name: (lengths.get(each.name, _ANY).exactly or _FEW,) for each in self.reflected.parameters}
        ones = dict.fromkeys((each.name for each in self.numbers), 1)
        op = self._custom(tuple(few[each.name] for each in self.written), (1, 1, 1), ones)
        return program_of(op, tuple(Spec(few[each.name], each.dtype) for each in self.read))

    def _launch(self, inputs: tuple[Spec, ...], numbers: Mapping[str, int | float]) -> LaunchCall:
        """A launch for inputs of these specs and these numbers: shapes of results, grid, and the keys that remember it.

        Raises `InvalidOption` where lengths do not fit what the source declares.
        """
        given = {each.name: spec.shape for each, spec in zip(self.read, inputs, strict=True)}
        reference = self._recorded(inputs, numbers)
        shapes = self._shapes(given, numbers, reference)
        self._check_lengths({**given, **dict(zip((each.name for each in self.written), shapes, strict=True))})
        group = self.reflected.group
        width = self.reflected.lengths.get(self.written[0].name, _ANY).multiple
        grid = invocations(self.name, self._grid, given, numbers, shapes[0], group, width)
        op = self._custom(shapes, grid, numbers, reference)
        op.infer(*inputs)
        results = tuple(Spec(shape, each.dtype) for each, shape in zip(self.written, shapes, strict=True))
        return LaunchCall(op, inputs, results, self._key(op, inputs), self._lasting_key(op, inputs))

    def _custom(
        self,
        shapes: tuple[Shape, ...],
        grid: Three,
        numbers: Mapping[str, int | float],
        reference: Program | None = None,
    ) -> Custom:
        """The primitive that runs the kernel over a grid, with its reference as bytes where that could be recorded."""
        group = group_for(self.reflected.group, grid)
        return Custom(
            language=self.reflected.language,
            title=self.name,
            source=self.reflected.source,
            entry=self.reflected.entry,
            parameters=self.reflected.parameters,
            scalars=scalars_of(self.numbers, numbers),
            group=group,
            groups=groups_for(grid, group),
            shapes=shapes,
            reference=to_bytes(reference, lines=False) if reference is not None else b"",
            group_memory=self.reflected.group_memory,
        )

    def _recorded(self, inputs: tuple[Spec, ...], numbers: Mapping[str, int | float]) -> Program | None:
        """The reference as a program. `None` where NumPy alone can compute it: then it is for checking only."""
        if self.reference is None:
            return None
        try:
            program = record(partial(self.reference, **numbers_for(self.reference, numbers)), *inputs)
        except Exception as error:  # the user's function on arrays that have no values: it may raise anything
            if is_of_a_handler(error):
                raise
            return None
        # A kernel in there is something to be compared with, and cannot stand for this one.
        return None if any(isinstance(node.op, Custom) for node in program.nodes) else program

    def _shapes(
        self, given: Mapping[str, Shape], numbers: Mapping[str, int | float], reference: Program | None
    ) -> tuple[Shape, ...]:
        """The shapes of the results: the reference's where there is one, or else what `results` or the source says.

        Raises where the reference returns another number or type of results than the kernel writes, or where both say
        different shapes.
        """
        parameters, results = self.reflected.parameters, self._results
        if reference is None:
            return result_shapes(self.name, parameters, given, numbers, results)
        if len(reference.results) != len(self.written):
            raise of_another_number(self.name, self.written, len(reference.results))
        for parameter, spec in zip(self.written, reference.results, strict=True):
            if spec.dtype != parameter.dtype:
                raise of_another_type(self.name, parameter, spec.dtype)
        shapes = tuple(spec.shape for spec in reference.results)
        wanted = shapes if results is None else result_shapes(self.name, parameters, given, numbers, results)
        if wanted != shapes:
            raise InvalidOption(
                f"results= of the kernel {self.name} gives {_listed(wanted)}, and its reference {_listed(shapes)}. "
                "Omit results=, or fix whichever is wrong."
            )
        return shapes

    def _check_lengths(self, shapes: Mapping[str, Shape]) -> None:
        """The rules for buffers that are an array of vectors, or whose length is a part of the text."""
        for name, length in self.reflected.lengths.items():
            count = math.prod(shapes[name])
            if length.exactly is not None and count != length.exactly:
                raise InvalidOption(f"{name} of the kernel {self.name} has {length.exactly} elements, not {count}.")
            if count % length.multiple:
                raise InvalidOption(
                    f"{name} of the kernel {self.name} is made of vectors of {length.multiple}, and {count} elements "
                    "are not a whole number of them. Pad the array, or index single numbers in the kernel."
                )

    def _key(self, op: Custom, inputs: tuple[Spec, ...]) -> str:
        numbers = [(each.name, each.dtype) for each in op.scalars]
        text = encoded(msgspec.structs.replace(op, scalars=(), reference=b"", group=(0, 0, 0), groups=(0, 0, 0)))
        return hashlib.sha256(repr((text, numbers, inputs)).encode()).hexdigest()

    def _lasting_key(self, op: Custom, inputs: tuple[Spec, ...]) -> str | None:
        """The recorded reference has every value in it that its closure, its defaults and its globals had."""
        if self.reference is not None and not op.reference:
            return None
        return hashlib.sha256(repr((encoded(op), inputs, self.tolerance)).encode()).hexdigest()


def of_another_type(kernel: str, parameter: Parameter, found: str) -> InvalidOption:
    """The error for a reference whose result has another type than the kernel's."""
    return InvalidOption(
        f"the reference of the kernel {kernel} gives {parameter.name} in {found}, and the kernel in {parameter.dtype}. "
        f"End the reference with .astype(np.{parameter.dtype})."
    )


def of_another_number(kernel: str, written: Sequence[Parameter], found: int) -> InvalidOption:
    """The error for a reference with another number of results than the kernel's."""
    names = ", ".join(each.name for each in written)
    return InvalidOption(
        f"the reference of the kernel {kernel} returns {found} arrays, and the kernel writes {len(written)}: {names}."
    )


def result_of(op: Custom, number: int) -> Custom:
    """The same launch, for another of its results."""
    return msgspec.structs.replace(op, result=number) if number else op


def program_of(op: Custom, inputs: tuple[Spec, ...]) -> Program:
    """A program of one launch, all of whose results it returns."""
    recorder = Recorder()
    sources = [recorder.input(spec) for spec in inputs]
    return recorder.program([recorder.add(result_of(op, number), *sources) for number in range(len(op.written))])


def encoded(op: Custom) -> bytes:
    """Whatever people call it."""
    return msgspec.msgpack.encode(msgspec.structs.replace(op, title="-"))


def _listed(shapes: tuple[Shape, ...]) -> str:
    return ", ".join(map(str, shapes))
