"""Random programs in which every primitive occurs. Small and pure: they are made and checked, and never run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import get_args

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DTYPES, ITEMSIZE, DType, is_integer
from anygpu.program.functions import (
    BINARY,
    UNARY,
    FourierFunction,
    LinearFunction,
    ReduceFunction,
    ScanFunction,
    ScatterFunction,
)
from anygpu.program.graph import Line, Node, Program
from anygpu.program.primitives import (
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Fourier,
    Gather,
    Input,
    Iota,
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Select,
    Shape,
    Slice,
    Sort,
    Spec,
    Unary,
    Update,
    Windows,
    product,
)

Proposal = tuple[Primitive, tuple[int, ...]]


class Sampler:
    """Adds random nodes to a program that grows; a proposal that breaks a rule is dropped."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[Node] = []
        self.specs: list[Spec] = []

    def add(self, op: Primitive, *inputs: int) -> int:
        spec = op.infer(*(self.specs[source] for source in inputs))
        self.nodes.append(Node(op, inputs))
        self.specs.append(spec)
        return len(self.nodes) - 1

    def grow(self) -> None:
        operand = self.rng.randrange(len(self.nodes))
        op, inputs = self.rng.choice(PROPOSALS)(self, operand)
        try:
            self.add(op, *inputs)
        except InvalidProgram:
            return

    def shape(self) -> Shape:
        return tuple(self.rng.choice((0, 1, 2, 3, 3, 4, 5, 7)) for _ in range(self.rng.randrange(4)))

    def dtype(self) -> DType:
        return self.rng.choice(DTYPES)

    def constant(self, shape: Shape, dtype: DType) -> int:
        data = self.rng.randbytes(product(shape) * ITEMSIZE[dtype])
        if dtype == "bool":
            data = bytes(byte & 1 for byte in data)
        return self.add(Constant(shape, dtype, data))

    def like(self, position: int) -> int:
        """A value with the spec of another: one that there is, or a new one."""
        same = [other for other, spec in enumerate(self.specs) if spec == self.specs[position]]
        return self.rng.choice(same) if self.rng.random() < 0.7 else self.constant(*self.specs[position])

    def fitting(self, shape: Shape, dtype: DType) -> int:
        scalar = self.constant((), dtype)
        return scalar if shape == () else self.add(Broadcast(shape), scalar)

    def axis(self, position: int) -> int:
        return self.rng.randrange(max(len(self.specs[position].shape), 1))

    def axes(self, position: int) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.specs[position].shape)) if self.rng.random() < 0.5)


def random_program(rng: random.Random, size: int = 14) -> Program:
    sampler = Sampler(rng)
    for _ in range(rng.randrange(4)):
        sampler.add(Input(sampler.shape(), sampler.dtype()))
    sampler.constant(sampler.shape(), sampler.dtype())
    for _ in range(size):
        sampler.grow()
    count = len(sampler.nodes)
    outputs = [rng.randrange(count) for _ in range(rng.randint(1, 3))]
    lines: list[Line | None] = [
        rng.choice((None, ("a.py", rng.randrange(99)), ("/home/ü/b.py", 7))) for _ in range(count)
    ]
    return Program(sampler.nodes, outputs, lines=lines if rng.random() < 0.5 else None)


def _unary(s: Sampler, x: int) -> Proposal:
    return Unary(s.rng.choice(UNARY)), (x,)


def _binary(s: Sampler, x: int) -> Proposal:
    return Binary(s.rng.choice(BINARY)), (x, s.like(x))


def _select(s: Sampler, x: int) -> Proposal:
    return Select(), (s.fitting(s.specs[x].shape, "bool"), x, s.like(x))


def _reduce(s: Sampler, x: int) -> Proposal:
    return Reduce(s.rng.choice(get_args(ReduceFunction)), s.axes(x)), (x,)


def _scan(s: Sampler, x: int) -> Proposal:
    return Scan(s.rng.choice(get_args(ScanFunction)), s.axis(x)), (x,)


def _reshape(s: Sampler, x: int) -> Proposal:
    shape = list(s.specs[x].shape)
    if len(shape) > 1 and s.rng.random() < 0.5:
        return Reshape((shape[0] * shape[1], *shape[2:])), (x,)
    shape.insert(s.rng.randint(0, len(shape)), 1)
    return Reshape(tuple(shape)), (x,)


def _permute(s: Sampler, x: int) -> Proposal:
    axes = list(range(len(s.specs[x].shape)))
    s.rng.shuffle(axes)
    return Permute(tuple(axes)), (x,)


def _broadcast(s: Sampler, x: int) -> Proposal:
    shape = tuple(s.rng.randint(1, 3) if n == 1 else n for n in s.specs[x].shape)
    return Broadcast((s.rng.randint(1, 3), *shape)), (x,)


def _slice(s: Sampler, x: int) -> Proposal:
    starts, stops, steps = [], [], []
    for n in s.specs[x].shape:
        start, stop = sorted((s.rng.randint(0, n), s.rng.randint(0, n)))
        starts.append(start)
        stops.append(stop)
        steps.append(s.rng.randint(1, 3))
    return Slice(tuple(starts), tuple(stops), tuple(steps)), (x,)


def _update(s: Sampler, x: int) -> Proposal:
    starts = tuple(s.rng.randint(0, n) for n in s.specs[x].shape)
    counts = tuple(s.rng.randint(0, n - start) for n, start in zip(s.specs[x].shape, starts, strict=True))
    return Update(starts, (1,) * len(starts)), (x, s.fitting(counts, s.specs[x].dtype))


def _pad(s: Sampler, x: int) -> Proposal:
    low, high = (tuple(s.rng.randint(0, 2) for _ in s.specs[x].shape) for _ in range(2))
    return Pad(low, high), (x, s.constant((), s.specs[x].dtype))


def _concatenate(s: Sampler, x: int) -> Proposal:
    return Concatenate(s.axis(x)), tuple(s.like(x) for _ in range(s.rng.randint(1, 4)))


def _windows(s: Sampler, x: int) -> Proposal:
    return Windows(s.axis(x), s.rng.randint(1, 3), s.rng.randint(1, 3)), (x,)


def _contract(s: Sampler, x: int) -> Proposal:
    axes = s.axes(x)
    batch = axes[: s.rng.randint(0, len(axes))]
    summed = axes[len(batch) :]
    return Contract(summed, summed, batch, batch), (x, s.like(x))


def _positions(s: Sampler) -> int:
    known = [p for p, spec in enumerate(s.specs) if is_integer(spec.dtype)]
    return s.rng.choice(known) if known and s.rng.random() < 0.5 else s.constant((s.rng.randint(0, 4),), "int64")


def _gather(s: Sampler, x: int) -> Proposal:
    return Gather(s.axis(x)), (x, _positions(s))


def _scatter(s: Sampler, x: int) -> Proposal:
    axis, positions, spec = s.axis(x), _positions(s), s.specs[x]
    shape = (*spec.shape[:axis], *s.specs[positions].shape, *spec.shape[axis + 1 :])
    fn = s.rng.choice(get_args(ScatterFunction))
    return Scatter(fn, axis), (x, positions, s.fitting(shape, spec.dtype))


def _search(s: Sampler, x: int) -> Proposal:
    line = s.constant((5,), s.specs[x].dtype)
    return Search(s.rng.choice(("left", "right"))), (line, x)


def _fourier(s: Sampler, x: int) -> Proposal:
    fn, axis = s.rng.choice(get_args(FourierFunction)), s.axis(x)
    given = s.specs[x].shape[axis] if s.specs[x].shape else 1
    return Fourier(fn, axis, 2 * (given - 1) + s.rng.randint(0, 1) if fn == "irfft" else given), (x,)


def _linear(s: Sampler, x: int) -> Proposal:
    dtype: DType = s.rng.choice(("float32", "float64", "complex64", "complex128"))
    fn = s.rng.choice(get_args(LinearFunction))
    n = s.rng.randint(1, 3)
    a = s.constant((*((2,) if s.rng.random() < 0.3 else ()), n, n), dtype)
    inputs = (a, s.like(a)) if fn == "solve" else (a,)
    return Linear(fn, s.rng.randint(0, 1), s.rng.random() < 0.5), inputs


PROPOSALS: tuple[Callable[[Sampler, int], Proposal], ...] = (
    lambda s, x: (Iota(s.rng.randint(0, 9), s.dtype()), ()),
    lambda s, x: (Cast(s.dtype()), (x,)),
    lambda s, x: (Flip(s.axes(x)), (x,)),
    lambda s, x: (Sort(s.axis(x)), (x,)),
    lambda s, x: (Argsort(s.axis(x)), (x,)),
    _unary,
    _unary,
    _binary,
    _binary,
    _select,
    _reduce,
    _scan,
    _reshape,
    _permute,
    _broadcast,
    _slice,
    _update,
    _pad,
    _concatenate,
    _windows,
    _contract,
    _gather,
    _scatter,
    _search,
    _fourier,
    _linear,
)
