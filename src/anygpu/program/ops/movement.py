"""Movements: primitives whose elements are elements of their inputs at other positions.

Views look at their input and cost nothing; `Update`, `Pad` and `Concatenate` make new values. Two movements of a kind
in a row become one (`simpler`). `stretch_of` takes a part of a value along an axis, by which calls are cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.ops.elementwise import Select
from anygpu.program.ops.source import Constant
from anygpu.program.primitive import (
    FROM_WHOLE,
    MAX_ELEMENTS,
    NEW,
    Made,
    Origin,
    PassedAxes,
    PerAxis,
    Primitive,
    Shape,
    Simpler,
    Spec,
    all_but,
    checked,
    distinct_axes,
    listed,
    next_axes,
    product,
    require_inputs,
    with_length,
)

if TYPE_CHECKING:
    from anygpu.program.graph import Recorder
    from anygpu.program.transforms import Batched, Stack

__all__ = ["Broadcast", "Concatenate", "Flip", "Pad", "Permute", "Reshape", "Slice", "Update", "Windows"]


class Movement(Primitive, frozen=True):
    """The rules that all movements share."""

    family = "movement"
    is_movement = True
    other_axes: ClassVar[Origin | None] = FROM_WHOLE

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        return 0


class View(Movement, frozen=True):
    """A movement that needs no copy; when it is written out, no more is read than is written."""

    is_view = True

    def most_read(self, result: int, inputs: Sequence[int]) -> int:
        return result


class Reshape(View, frozen=True):
    """The same elements in C order, in another shape."""

    shape: Shape

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        result = checked(Spec(self.shape, inputs[0].dtype))
        if result.size != inputs[0].size:
            raise InvalidProgram(f"reshape: {inputs[0]} does not have as many elements as {result}.")
        return result

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        """An axis is kept if it has its length and as many elements come before it: then as many come after it, too."""
        places: dict[tuple[int, int], int] = {}
        for axis, length in enumerate(result):
            key = (product(result[:axis]), length)
            places[key] = axis if key not in places else -1
        (shape,) = inputs
        keys = [(product(shape[:axis]), length) for axis, length in enumerate(shape)]
        found = [places.get(key, -1) if key[1] > 1 and keys.count(key) == 1 else -1 for key in keys]
        return [[axis if axis >= 0 else None for axis in found]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Reshape((stack.size, *self.shape)), given[0].position)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"to {listed(self.shape)}"

    def shortened(self, axis: int, length: int) -> Primitive:
        return Reshape(with_length(self.shape, axis, length))

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        (x,) = inputs
        if recorder.spec(x).shape == self.shape:
            return x
        before, first = made.get(x, (None, ()))
        return (self, list(first)) if isinstance(before, Reshape) else None


class Permute(View, frozen=True):
    """The axes in another order: axis `i` of the result is axis `axes[i]` of the input."""

    axes: PerAxis

    is_shifting = True
    other_axes = None

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        (x,) = inputs
        if sorted(self.axes) != list(range(len(x.shape))):
            raise InvalidProgram(f"permute: {self.axes} is not an order of the axes of {x}.")
        return Spec(tuple(x.shape[axis] for axis in self.axes), x.dtype)

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return [[self.axes.index(axis) for axis in range(len(self.axes))]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Permute((0, *next_axes(self.axes))), given[0].position)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"axes {listed(self.axes)}"

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """The input itself where no axis moves, and one permutation for two."""
        (x,) = inputs
        if self.axes == tuple(range(len(self.axes))):
            return x
        before, first = made.get(x, (None, ()))
        if isinstance(before, Permute):
            return Permute(tuple(before.axes[axis] for axis in self.axes)), list(first)
        return None


class Broadcast(View, frozen=True):
    """Repeated along new leading axes and along axes of length 1, as NumPy broadcasts."""

    shape: Shape

    is_repeating = True
    other_axes = NEW

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of the wider shape. Raises `InvalidProgram` where the input cannot be repeated to it."""
        require_inputs(self, inputs, 1)
        (x,) = inputs
        result = checked(Spec(self.shape, x.dtype))
        tail = self.shape[len(self.shape) - len(x.shape) :]
        if len(x.shape) > len(self.shape) or any(n not in (1, m) for n, m in zip(x.shape, tail, strict=True)):
            raise InvalidProgram(f"broadcast: {x} cannot be repeated to {self.shape}.")
        return result

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        (shape,) = inputs
        first = len(result) - len(shape)
        return [[first + axis if length == result[first + axis] else None for axis, length in enumerate(shape)]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        """Broadcast for all calls at once, with the new axis in front of those that come."""
        (x,) = given
        shape = stack.shape(x)
        position = x.position
        if len(shape) < len(self.shape):  # the new axis stays in front, so the others that come need room behind it
            missing = (1,) * (len(self.shape) - len(shape))
            position = stack.add(Reshape((stack.size, *missing, *shape)), position)
        return stack.add(Broadcast((stack.size, *self.shape)), position)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"to {listed(self.shape)}"

    def shortened(self, axis: int, length: int) -> Primitive:
        return Broadcast(with_length(self.shape, axis, length))

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        (x,) = inputs
        if recorder.spec(x).shape == self.shape:
            return x
        before, first = made.get(x, (None, ()))
        return (self, list(first)) if isinstance(before, Broadcast) else None


class Slice(View, frozen=True):
    """From each axis the elements start, start + step, … before stop; steps are positive."""

    starts: PerAxis
    stops: PerAxis
    steps: PerAxis

    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of the part. Raises `InvalidProgram` for a part that reaches beyond an axis."""
        require_inputs(self, inputs, 1)
        (x,) = inputs
        if not len(x.shape) == len(self.starts) == len(self.stops) == len(self.steps):
            raise InvalidProgram(f"slice: needs start, stop and step for each of the {len(x.shape)} axes of {x}.")
        shape = []
        for start, stop, step, length in zip(self.starts, self.stops, self.steps, x.shape, strict=True):
            if not (0 <= start <= stop <= length and 0 < step <= MAX_ELEMENTS):
                raise InvalidProgram(f"slice: {start}:{stop}:{step} is outside an axis of length {length}.")
            shape.append(-(-(stop - start) // step))
        return Spec(tuple(shape), x.dtype)

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        """An axis of which a part is taken is another axis."""
        return [_of_equal_length(inputs[0], result)]

    def batched(self, stack: Stack, *given: Batched) -> int:
        slice_ = Slice((0, *self.starts), (stack.size, *self.stops), (1, *self.steps))
        return stack.add(slice_, given[0].position)

    def details(self, inputs: Sequence[Spec]) -> str:
        return _region(self.starts, self.stops, self.steps, inputs[0].shape)

    def shortened(self, axis: int, length: int) -> Primitive:
        return Slice(self.starts, with_length(self.stops, axis, length), self.steps)

    def stretch(
        self, recorder: Recorder, inputs: Sequence[int], axis: int, start: int, stop: int, length: int
    ) -> int | None:
        """The elements from `start` to `stop` of the slice, cut from its input."""
        first, step = self.starts[axis], self.steps[axis]
        starts = with_length(self.starts, axis, first + start * step)
        stops = with_length(self.stops, axis, first + (stop - 1) * step + 1)
        return recorder.add(Slice(starts, stops, self.steps), *inputs)

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """The input itself where all of it is taken, and one slice for two."""
        (x,) = inputs
        shape = self.infer(recorder.spec(x)).shape
        if shape == recorder.spec(x).shape:
            return x
        before, first = made.get(x, (None, ()))
        if not isinstance(before, Slice):
            return None
        starts, stops, steps = [], [], []
        for axis, length in enumerate(shape):
            start = before.starts[axis] + self.starts[axis] * before.steps[axis]
            step = before.steps[axis] * self.steps[axis]
            # The last element that is wanted is inside; an empty stretch may begin at the very end.
            start = min(start, before.stops[axis])
            starts.append(start)
            stops.append(start + (length - 1) * step + 1 if length else start)
            steps.append(step)
        return Slice(tuple(starts), tuple(stops), tuple(steps)), list(first)


class Flip(View, frozen=True):
    """Backwards along the axes."""

    axes: PerAxis

    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        require_inputs(self, inputs, 1)
        distinct_axes(self, self.axes, inputs[0])
        return inputs[0]

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return [[axis if axis not in self.axes else None for axis in range(len(result))]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Flip(next_axes(self.axes)), given[0].position)

    def details(self, inputs: Sequence[Spec]) -> str:
        if not self.axes:
            return "along no axis"
        return f"along {'axis' if len(self.axes) == 1 else 'axes'} {', '.join(map(str, self.axes))}"

    def stretch(
        self, recorder: Recorder, inputs: Sequence[int], axis: int, start: int, stop: int, length: int
    ) -> int | None:
        return recorder.add(self, stretch_of(recorder, inputs[0], axis, length - stop, length - start))

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """Without axes of length 1, and with a flip before it: axes that both flip stay as they are."""
        (x,) = inputs
        shape = recorder.spec(x).shape
        axes = tuple(sorted(axis for axis in self.axes if shape[axis] > 1))
        if not axes:
            return x
        before, first = made.get(x, (None, ()))
        if isinstance(before, Flip):
            return Flip(tuple(sorted(set(axes) ^ set(before.axes)))), list(first)
        return (Flip(axes), list(inputs)) if axes != self.axes else None


class Windows(View, frozen=True):
    """All stretches of `size` neighbours along an axis, every `step`; each stretch lies along a new last axis."""

    axis: int
    size: int
    step: int

    is_shifting = True
    is_repeating = True

    def infer(self, *inputs: Spec) -> Spec:
        """One window of `size` elements every `step` elements along the axis; windows are the result's last axis.

        Raises `InvalidProgram` where not even one window fits.
        """
        require_inputs(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        length = x.shape[self.axis]
        if not 1 <= self.size <= length or not 0 < self.step <= MAX_ELEMENTS:
            raise InvalidProgram(f"windows: no stretch of {self.size} by {self.step} in an axis of length {length}.")
        count = (length - self.size) // self.step + 1
        return checked(Spec((*with_length(x.shape, self.axis, count), self.size), x.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return all_but(self.axis, inputs)

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Windows(self.axis + 1, self.size, self.step), given[0].position)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"of {self.size} along axis {self.axis}" + (f" every {self.step}" if self.step != 1 else "")

    def stretch(
        self, recorder: Recorder, inputs: Sequence[int], axis: int, start: int, stop: int, length: int
    ) -> int | None:
        """The windows from `start` to `stop`, made from the elements that these look at."""
        if axis != self.axis:
            return None
        needed = stretch_of(recorder, inputs[0], axis, start * self.step, (stop - 1) * self.step + self.size)
        return recorder.add(self, needed)


class Update(Movement, frozen=True):
    """The first input with the region start, start + step, … replaced by the second input."""

    starts: PerAxis
    steps: PerAxis

    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        """The first input's spec.

        Raises `InvalidProgram` where the new values do not fit into it at these starts and steps.
        """
        require_inputs(self, inputs, 2)
        x, new = inputs
        if not len(x.shape) == len(new.shape) == len(self.starts) == len(self.steps) or x.dtype != new.dtype:
            raise InvalidProgram(f"update: {new} with {self.starts}, {self.steps} does not fit into {x}.")
        for start, step, count, length in zip(self.starts, self.steps, new.shape, x.shape, strict=True):
            fits = start + (count - 1) * step < length if count else start <= length
            if start < 0 or not 0 < step <= MAX_ELEMENTS or not fits:
                raise InvalidProgram(f"update: {count} elements from {start} by {step} do not fit into {length}.")
        return x

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        kept = _of_equal_length(*inputs)
        return [kept, kept]

    def batched(self, stack: Stack, *given: Batched) -> int:
        x, new = given
        return stack.add(Update((0, *self.starts), (1, *self.steps)), stack.lifted(x), stack.lifted(new))

    def details(self, inputs: Sequence[Spec]) -> str:
        counts = zip(self.starts, self.steps, inputs[1].shape, strict=True)
        stops = tuple(start + (count - 1) * step + 1 if count else start for start, step, count in counts)
        return "at " + _region(self.starts, stops, self.steps, inputs[0].shape)

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """The first input where nothing is written, and the second where everything is."""
        x, new = (recorder.spec(each) for each in inputs)
        if new.size == 0:
            return inputs[0]
        return inputs[1] if new.shape == x.shape else None


class Pad(Movement, frozen=True):
    """The first input, surrounded by the value of the second, which has no axes."""

    low: PerAxis
    high: PerAxis

    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        """The spec with `low` and `high` more elements on each axis.

        The second input is the one value that fills them.
        """
        require_inputs(self, inputs, 2)
        x, value = inputs
        if value.shape != () or value.dtype != x.dtype:
            raise InvalidProgram(f"pad: the value must be one {x.dtype}, not {value}.")
        if not len(x.shape) == len(self.low) == len(self.high) or min((*self.low, *self.high), default=0) < 0:
            raise InvalidProgram(f"pad: needs two widths of 0 or more for each axis of {x}.")
        widths = zip(self.low, x.shape, self.high, strict=True)
        return checked(Spec(tuple(low + n + high for low, n, high in widths), x.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return [_of_equal_length(inputs[0], result), []]

    def batched(self, stack: Stack, *given: Batched) -> int:
        """Padded for all calls at once.

        A value that is the same for all calls pads as before. Otherwise the padding is chosen afterwards, by a mask of
        where the input's own elements are.
        """
        x, value = given
        low, high = (0, *self.low), (0, *self.high)
        if not value.stacked:
            return stack.add(Pad(low, high), x.position, value.position)
        # Each call has its own value: pad with anything, and put the values where a padded mask says.
        shape, dtype = stack.shape(x), stack.dtype(x)
        anything = stack.add(Constant((), dtype, bytes(ITEMSIZE[dtype])))
        padded = stack.add(Pad(low, high), stack.lifted(x), anything)
        inside = stack.add(self, stack.full(shape, "bool", True), stack.full((), "bool", False))
        result = stack.spec(padded).shape
        spread = stack.add(Reshape((stack.size,) + (1,) * len(shape)), value.position)
        return stack.add(Select(), stack.add(Broadcast(result), inside), padded, stack.add(Broadcast(result), spread))

    def details(self, inputs: Sequence[Spec]) -> str:
        return "by " + ", ".join(f"{low}+{high}" for low, high in zip(self.low, self.high, strict=True))

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        return None if any(self.low) or any(self.high) else inputs[0]


class Concatenate(Movement, frozen=True):
    """One input after the other along an axis."""

    axis: int

    is_shifting = True

    def infer(self, *inputs: Spec) -> Spec:
        """The inputs one after the other along the axis. Raises `InvalidProgram` where types or other axes differ."""
        if not inputs:
            raise InvalidProgram("concatenate: needs at least one input.")
        first = inputs[0]
        distinct_axes(self, (self.axis,), first)
        for other in inputs[1:]:
            if other.dtype != first.dtype or _without(other.shape, self.axis) != _without(first.shape, self.axis):
                raise InvalidProgram(f"concatenate: {other} does not fit to {first} along axis {self.axis}.")
        length = sum(each.shape[self.axis] for each in inputs)
        return checked(Spec(with_length(first.shape, self.axis, length), first.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return all_but(self.axis, inputs)

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Concatenate(self.axis + 1), *(stack.lifted(each) for each in given))

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"along axis {self.axis}"

    def simpler(self, inputs: Sequence[int], recorder: Recorder, made: Made) -> Simpler:
        """Without inputs that have no elements, and the input itself where only one is left."""
        filled = [each for each in inputs if recorder.spec(each).shape[self.axis]]
        if len(filled) <= 1:
            return (filled or inputs)[0]
        return (self, filled) if len(filled) < len(inputs) else None


def stretch_of(recorder: Recorder, position: int, axis: int, start: int, stop: int) -> int:
    """The elements of a value from `start` to `stop` along one axis."""
    shape = recorder.spec(position).shape
    starts = with_length((0,) * len(shape), axis, start)
    return recorder.add(Slice(starts, with_length(shape, axis, stop), (1,) * len(shape)), position)


def _of_equal_length(shape: Shape, other: Shape) -> list[int | None]:
    return [axis if length == other[axis] else None for axis, length in enumerate(shape)]


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :]) if axis < len(shape) else (-1,)


def _region(starts: Shape, stops: Shape, steps: Shape, shape: Shape) -> str:
    return f"[{', '.join(map(_range, starts, stops, steps, shape))}]"


def _range(start: int, stop: int, step: int, length: int) -> str:
    first, last = str(start or ""), "" if stop == length else str(stop)
    return f"{first}:{last}:{step}" if step != 1 else f"{first}:{last}"
