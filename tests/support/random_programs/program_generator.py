"""Writes one random program, node by node, with the bounds of everything in it.

`ProgramGenerator.write` tries generators of nodes by chance; the methods under "Parts" are what those are made of.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anygpu.agreement.elementwise import EPSILON
from anygpu.base.typing import HostArray
from anygpu.program import primitives as p
from anygpu.program.dtypes import KIND, REAL_PART, DType, is_inexact, is_integer
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Primitive, Shape, Spec, product
from anygpu.program.transforms import without_dead_code
from tests.support.random_programs.error_bounds import bounds_after
from tests.support.random_programs.intervals import INPUT_LIMIT, INPUT_STEP, WHOLE_LIMIT, Bounds, fits, whole_range

#: How often each type is among the few that one program uses; the others count 1.
DTYPE_WEIGHTS: dict[DType, float] = {
    "float16": 2, "float32": 5, "float64": 4, "complex64": 2, "complex128": 2, "bool": 1.5, "int32": 2, "int64": 2,
}  # fmt: skip

#: Odd ones most, and now and then none at all.
LENGTHS = (1, 2, 3, 5, 7, 4, 9, 13, 0)
LENGTH_WEIGHTS = (4, 5, 6, 5, 3, 2, 1, 1, 0.4)
MOST_DIMENSIONS = 5

#: Magnitudes stay below these, and absolute errors too: beyond, agreement would say little.
LARGEST: dict[DType, float] = {"float16": 2.0**11, "float32": 2.0**16, "float64": 2.0**24}
LARGEST_ERROR: dict[DType, float] = {
    "float16": 48 * EPSILON["float16"],
    "float32": 2.0**12 * EPSILON["float32"],
    "float64": 2.0**16 * EPSILON["float64"],
}


class Impossible(Exception):
    """What was tried cannot be made here; the generator tries something else."""


class ProgramGenerator:
    """Generates one program, with the bounds of every node.

    Values are positions in the program. `pool` has those that later operations may use.
    """

    def __init__(self, rng: random.Random, dtypes: tuple[DType, ...], max_nodes: int, max_elements: int) -> None:
        self.rng = rng
        self.dtypes = dtypes
        self.weights = [DTYPE_WEIGHTS.get(dtype, 1) for dtype in dtypes]
        #: Few types for one program, so that its values can be used together.
        self.favourites = rng.choices(dtypes, self.weights, k=rng.choice((1, 2, 2, 3, 4)))
        self.max_nodes = max_nodes
        self.max_elements = max_elements
        self.recorder = Recorder()
        self.bounds: list[Bounds] = []
        #: What later operations may use, and what may be returned.
        self.pool: list[int] = []
        self.used: set[int] = set()

    def write(
        self,
        weights: Mapping[type[Primitive], float],
        makers: Mapping[type[Primitive], Callable[[ProgramGenerator], int]],
    ) -> Program:
        """Add nodes by chance, one maker after the other, and return what comes of it."""
        chosen = [each for each, weight in weights.items() if weight > 0 and each is not p.Input]
        cumulative = list(np.cumsum([weights[each] for each in chosen]).tolist()) if chosen else []
        self._write_inputs()
        tries = 4 * self.max_nodes
        while chosen and tries and len(self.bounds) < self.max_nodes:
            tries -= 1
            (kind,) = self.rng.choices(chosen, cum_weights=cumulative)
            try:
                result = makers[kind](self)
            except Impossible:
                continue
            if self._is_good(result) and len(self.bounds) <= self.max_nodes:
                self.pool.append(result)
        if not self.pool:
            self.pool.append(self.constant(self.shape(), self.dtype()))
        return without_dead_code(self.recorder.program(self._outputs()))

    def _write_inputs(self) -> None:
        """Adds up to four inputs of related shapes, so that they can be used together."""
        count = min(self.rng.choices((0, 1, 2, 3, 4), (1, 8, 8, 4, 1))[0], self.max_nodes - 1)
        shape = self.shape()
        for _ in range(count):
            # Related shapes, so that they can be used together.
            kind = self.rng.random()
            if kind < 0.25:
                shape = self.shape()
            elif kind < 0.5 and shape:
                kept = self.rng.randrange(len(shape))
                shape = tuple(1 if self.rng.random() < 0.3 else length for length in shape[kept:])
            dtype = self.dtype()
            position = self.recorder.input(Spec(shape, dtype))
            self.bounds.append(bounds_after(p.Input(shape, dtype), Spec(shape, dtype), (), ()))
            self.pool.append(position)

    def _outputs(self) -> list[int]:
        """Mostly what nothing else uses, so that little is dead."""
        ends = [each for each in self.pool if each not in self.used]
        count = self.rng.choices((1, 2, 3, 4), (3, 3, 2, 1))[0]
        outputs = ends[-count:] if ends else self.pool[-count:]
        if self.rng.random() < 0.05:
            outputs.append(self.rng.choice(self.pool))
        return outputs

    def _is_good(self, position: int) -> bool:
        """Right in type and size, and with right answers that lie close together."""
        spec, bounds = self.recorder.spec(position), self.bounds[position]
        if spec.dtype not in self.dtypes or spec.size > self.max_elements or len(spec.shape) > MOST_DIMENSIONS + 1:
            return False
        if not is_inexact(spec.dtype):
            return bounds.exact
        part = REAL_PART.get(spec.dtype, spec.dtype)
        small = bounds.magnitude <= LARGEST[part] and bounds.absolute <= LARGEST_ERROR[part]
        return small and bounds.relative <= LARGEST_ERROR[part]

    # Parts ----------------------------------------------------------------------------------------------------------

    def add(self, op: Primitive, *inputs: int) -> int:
        """Adds a node with its bounds, and returns its position.

        Raises `Impossible` if its values could be too large.
        """
        sources = [self.recorder.spec(each) for each in inputs]
        result = op.infer(*sources)
        if result.size > self.max_elements or len(result.shape) > MOST_DIMENSIONS + 1:
            raise Impossible
        position = self.recorder.add(op, *inputs, spec=result)
        if position == len(self.bounds):
            self.bounds.append(bounds_after(op, result, sources, [self.bounds[each] for each in inputs]))
        if not self._is_small(position):
            raise Impossible
        self.used.update(inputs)
        return position

    def _is_small(self, position: int) -> bool:
        """Whether a value stays within its type: a clip cannot make good a number that was too large for it."""
        dtype = self.recorder.spec(position).dtype
        return not is_inexact(dtype) or self.bounds[position].magnitude <= LARGEST[REAL_PART.get(dtype, dtype)]

    def spec(self, position: int) -> Spec:
        return self.recorder.spec(position)

    def dtype(self) -> DType:
        """A type at random, mostly one of the few that this program favours."""
        return (
            self.rng.choice(self.favourites)
            if self.rng.random() < 0.8
            else self.rng.choices(self.dtypes, self.weights)[0]
        )

    def shape(self, most: int = MOST_DIMENSIONS) -> Shape:
        """A shape at random, of `most` axes and `max_elements` at most."""
        dimensions = self.rng.choices(range(6), (1, 4, 5, 4, 2, 1))[0]
        shape = tuple(self.rng.choices(LENGTHS, LENGTH_WEIGHTS, k=min(dimensions, most)))
        while product(shape) > self.max_elements:
            shape = shape[1:]
        return shape

    def pick(self, fits_: Callable[[Spec], bool] = lambda spec: True, *, exact: bool = False) -> int:
        """A value from the pool, one of the last if possible. Raises `Impossible` if none fits."""
        found = [each for each in self.pool if fits_(self.spec(each)) and (not exact or self.bounds[each].exact)]
        if not found:
            raise Impossible
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def constant(self, shape: Shape, dtype: DType, values: HostArray | None = None) -> int:
        """A constant, of random values if none are given."""
        if values is None:
            values = random_values(Spec(shape, dtype), np.random.default_rng(self.rng.getrandbits(64)))
        return self.add(p.Constant(shape, dtype, np.asarray(values).astype(dtype).tobytes()))

    def number(self, number: complex, like: int) -> int:
        """One number, repeated to the shape of a value and in its type."""
        spec = self.spec(like)
        scalar = self.constant((), spec.dtype, np.array(number))
        return self.add(p.Broadcast(spec.shape), scalar) if spec.shape else scalar

    def partner(self, shape: Shape, dtype: DType, *, exact: bool = False) -> int:
        """Some value of this shape and type: one that is there, made to fit, or a new one."""

        def can_be_made(spec: Spec) -> bool:
            if spec.dtype != dtype or len(spec.shape) > len(shape):
                return False
            tail = shape[len(shape) - len(spec.shape) :]
            return all(n in (1, m) for n, m in zip(spec.shape, tail, strict=True))

        kind = self.rng.random()
        try:
            if kind < 0.85:
                found = self.pick(can_be_made, exact=exact)
            else:
                found = self.cast(self.pick(lambda spec: can_be_made(Spec(spec.shape, dtype)), exact=exact), dtype)
            if exact and not self.bounds[found].exact:
                raise Impossible
            return self.add(p.Broadcast(shape), found) if self.spec(found).shape != shape else found
        except Impossible:
            pass
        if product(shape) <= 32 and kind < 0.7:
            return self.constant(shape, dtype)
        if shape and dtype != "bool" and shape[-1] <= 100 and kind > 0.9:
            line = self.add(p.Iota(shape[-1], dtype))
            return self.add(p.Broadcast(shape), line) if len(shape) > 1 else line
        scalar = self.constant((), dtype)
        return self.add(p.Broadcast(shape), scalar) if shape else scalar

    def clip(self, position: int, low: float, high: float) -> int:
        """The value, moved into a range if it could lie outside of it. Complex numbers: both parts."""
        if KIND[self.spec(position).dtype] == "complex":
            return self.clip_complex(position, low, high, low, high)
        if self.bounds[position].low < low:
            position = self.add(p.Binary("maximum"), position, self.number(low, position))
        if self.bounds[position].high > high:
            position = self.add(p.Binary("minimum"), position, self.number(high, position))
        return position

    def clip_complex(self, position: int, low: float, high: float, imag_low: float, imag_high: float) -> int:
        """The value with both parts moved into their ranges, if they could lie outside."""
        bounds = self.bounds[position]
        if low <= bounds.low and bounds.high <= high and imag_low <= bounds.imag_low and bounds.imag_high <= imag_high:
            return position
        real = self.clip(self.add(p.Unary("real"), position), low, high)
        imaginary = self.clip(self.add(p.Unary("imag"), position), imag_low, imag_high)
        return self.add(p.Binary("complex"), real, imaginary)

    def nonzero(self, position: int) -> int:
        """The value, moved away from 0: by half a step if it is known to have steps, or else to one side."""
        spec, bounds = self.spec(position), self.bounds[position]
        if bounds.least > max(2 * bounds.error, 2.0**-5):
            return position
        if KIND[spec.dtype] == "complex":
            return self.clip_complex(position, 0.5, 8, -8, 8)
        if is_integer(spec.dtype):
            if KIND[spec.dtype] == "signed" and self.rng.random() < 0.3:
                return self.clip(position, -WHOLE_LIMIT, -1)
            return self.clip(position, 1, whole_range(spec.dtype)[1])
        step = bounds.step
        if bounds.exact and step is not None and step <= 5 and fits(spec.dtype, bounds.magnitude + 1, step + 1):
            return self.add(p.Binary("add"), position, self.number(2.0 ** -(step + 1), position))
        if self.rng.random() < 0.3:
            return self.clip(position, -LARGEST[spec.dtype], -0.25)
        return self.clip(position, 0.25, LARGEST[spec.dtype])

    def signed(self, position: int) -> int:
        """The value, but never 0 and on both sides of it where that can be."""
        spec, bounds = self.spec(position), self.bounds[position]
        if bounds.has_a_sign:
            return position
        if bounds.exact and bounds.step is not None and fits(spec.dtype, bounds.magnitude + 1, bounds.step + 1):
            return self.add(p.Binary("add"), position, self.number(2.0 ** -(bounds.step + 1), position))
        return self.clip(position, 0.25, LARGEST[spec.dtype])

    def cast(self, position: int, dtype: DType) -> int:
        """Cast to a type, clipped to its range first."""
        source = self.spec(position).dtype
        if source == dtype:
            return position
        if is_inexact(source):
            if not is_inexact(dtype) and dtype != "bool":
                lowest, highest = (max(whole_range(dtype)[0], -100), min(whole_range(dtype)[1], 100))
                position = self.clip(position, lowest, highest)
            elif is_inexact(dtype):
                largest = LARGEST[REAL_PART.get(dtype, dtype)] / 2
                position = self.clip(position, -largest, largest)
        elif is_inexact(dtype):
            largest = min(LARGEST[REAL_PART.get(dtype, dtype)] / 2, whole_range(source)[1])
            position = self.clip(position, 0 if KIND[source] == "unsigned" else -largest, largest)
        return self.add(p.Cast(dtype), position)

    def indices(self, shape: Shape, length: int) -> int:
        """Positions inside an axis of that length: a constant, or a value clipped or reduced to it.

        Raises `Impossible` for an axis without elements, and if no integer type holds the length.
        """
        if length == 0 and product(shape):
            raise Impossible
        whole = [each for each in self.dtypes if is_integer(each) and whole_range(each)[1] >= length]
        if not whole:
            raise Impossible
        dtype = self.rng.choice(whole)
        if self.rng.random() < 0.4 or length == 0:
            generator = np.random.default_rng(self.rng.getrandbits(64))
            return self.constant(shape, dtype, generator.integers(0, max(length, 1), shape))
        some = self.partner(shape, dtype)
        bounds = self.bounds[some]
        if bounds.low >= 0 and bounds.high < length:
            return some
        if self.rng.random() < 0.5:
            return self.clip(some, 0, length - 1)
        found = self.add(p.Binary("remainder"), some, self.number(length, some))
        return self.clip(found, 0, length - 1)

    def axis(self, position: int, least: int = 0) -> int:
        """An axis of at least that length. Raises `Impossible` if there is none."""
        axes = [axis for axis, length in enumerate(self.spec(position).shape) if length >= least]
        if not axes:
            raise Impossible
        return self.rng.choice(axes)


def random_values(spec: Spec, generator: np.random.Generator) -> HostArray:
    """Random values as inputs and constants have them: small whole numbers, and fractions exact in binary."""
    match KIND[spec.dtype]:
        case "bool":
            values: Any = generator.integers(0, 2, spec.shape)
        case "signed":
            values = generator.integers(-WHOLE_LIMIT, WHOLE_LIMIT + 1, spec.shape)
        case "unsigned":
            values = generator.integers(0, 2 * WHOLE_LIMIT + 1, spec.shape)
        case "float":
            values = _random_fractions(spec.dtype, spec.shape, generator)
        case "complex":
            real, imaginary = (_random_fractions(REAL_PART[spec.dtype], spec.shape, generator) for _ in range(2))
            values = real + 1j * imaginary
    return np.asarray(values).astype(spec.dtype)


def _random_fractions(dtype: DType, shape: Shape, generator: np.random.Generator) -> HostArray:
    """Multiples of a power of two, which few operations round."""
    scale = 2 ** INPUT_STEP[dtype]
    return np.asarray(generator.integers(-INPUT_LIMIT * scale, INPUT_LIMIT * scale + 1, shape) / scale)
