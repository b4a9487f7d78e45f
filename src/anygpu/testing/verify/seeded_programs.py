"""Random programs with their inputs, made from a seed.

Each node is computed on NumPy as it is added, and kept if its values are finite and small. So every operation is well
defined on these inputs, and right results lie close together. A seed makes the same program on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.numpy.lowering import run_node
from anygpu.errors import InvalidProgram
from anygpu.program import primitives as p
from anygpu.program.dtypes import DType
from anygpu.program.functions import BINARY, UNARY, is_defined
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Primitive, Spec, product
from anygpu.program.transforms import without_dead_code
from anygpu.testing.cases import REFERENCE_DTYPES, tame

_MOST_NODES = 24
_MOST_ELEMENTS = 512
#: The largest value: beyond it, integers wrap and float errors grow.
_LARGEST = 1000
_LENGTHS = (1, 2, 3, 5, 7, 13)
#: Floats more often than the others, as in programs of users.
_DTYPES: tuple[DType, ...] = (*("float32",) * 8, *("float64",) * 5, "float16", "complex64", *REFERENCE_DTYPES)


class Seeded(NamedTuple):
    """A program and what it is run on."""

    program: Program
    inputs: tuple[HostArray, ...]


def seeded_program(seed: int) -> Seeded:
    """Return the program of a seed, with its inputs."""
    return _Writer(random.Random(seed)).write()


class _Impossible(Exception):
    """The node cannot be added; another one is tried."""


class _Writer:
    """A program in the making, with the values of its nodes."""

    def __init__(self, rng: random.Random) -> None:
        """A program of one to three inputs of the same shape, in one or two dtypes."""
        self.rng = rng
        self.recorder = Recorder()
        self.values: list[HostArray] = []
        self.used: set[int] = set()
        self.dtypes = rng.choices(_DTYPES, k=2)
        shape = tuple(rng.choices(_LENGTHS, k=rng.randint(1, 3)))
        for number in range(rng.randint(1, 3)):
            array = tame(rng.choice(self.dtypes), *shape, seed=number)
            self.recorder.input(Spec(array.shape, array.dtype.name))  # type: ignore[arg-type]
            self.values.append(array)
        self.count = len(self.values)

    def write(self) -> Seeded:
        """Add nodes until there are enough; the last unused ones are the results."""
        wanted = self.rng.randint(2, _MOST_NODES)
        for _ in range(4 * _MOST_NODES):
            if len(self.values) >= wanted + self.count:
                break
            try:
                self.rng.choice(_NODES)(self)
            except (_Impossible, InvalidProgram, ValueError, IndexError):
                continue
        # Unused values, so that little code is dead.
        ends = [position for position in range(len(self.values)) if position not in self.used]
        program = without_dead_code(self.recorder.program(ends[-3:]))
        return Seeded(program, tuple(self.values[: self.count]))

    def add(self, op: Primitive, *sources: int) -> int:
        """Add a node, and return its position. Raises `_Impossible` where its values are too many or too large."""
        spec = op.infer(*(self.recorder.spec(each) for each in sources))
        if spec.size > _MOST_ELEMENTS or spec.dtype not in REFERENCE_DTYPES:
            raise _Impossible
        value = run_node(op, [self.values[each] for each in sources])
        if not bool(np.all(np.abs(value.astype(np.complex128)) <= _LARGEST)):
            raise _Impossible
        position = self.recorder.add(op, *sources, spec=spec)
        if position == len(self.values):
            self.values.append(value)
        self.used.update(sources)
        return position

    def constant(self, array: HostArray) -> int:
        return self.add(p.Constant(array.shape, array.dtype.name, array.tobytes()))  # type: ignore[arg-type]

    def pick(self, fits: Callable[[HostArray], bool] = lambda value: True) -> int:
        """Return one of the latest values that fit. Raises `_Impossible` if there is none."""
        found = [position for position, value in enumerate(self.values) if fits(value)]
        if not found:
            raise _Impossible
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def number(self) -> int:
        """Return a value for a function, mostly floats or complex numbers, which most functions take."""
        if self.rng.random() < 0.3:
            return self.pick()
        return self.pick(lambda value: value.dtype.kind in "fc")

    def partner(self, x: int, dtype: Any = None) -> int:
        """Return a value of the same shape, and of the same dtype if no other is given."""
        one = self.values[x]
        return self.pick(lambda other: other.shape == one.shape and other.dtype == (dtype or one.dtype))

    def line(self) -> tuple[int, int, int]:
        """Return a value with an axis that is not empty, that axis, and its length."""
        x = self.pick(lambda value: value.ndim > 0 and value.size > 0)
        axis = self.rng.randrange(self.values[x].ndim)
        return x, axis, self.values[x].shape[axis]


# -- nodes of each kind


def _unary(w: _Writer) -> None:
    x = w.number()
    w.add(p.Unary(w.rng.choice([fn for fn in UNARY if is_defined(fn, w.recorder.spec(x).dtype)])), x)


def _binary(w: _Writer) -> None:
    x = w.number()
    fn = w.rng.choice([fn for fn in BINARY if is_defined(fn, w.recorder.spec(x).dtype)])
    w.add(p.Binary(fn), x, w.partner(x, "int32" if fn == "ldexp" else None))


def _select(w: _Writer) -> None:
    x = w.pick()
    w.add(p.Select(), w.partner(x, "bool"), x, w.partner(x))


def _cast(w: _Writer) -> None:
    """Add a cast. C leaves it to the processor what a number that does not fit into an integer becomes."""
    x, dtype = w.pick(), w.rng.choice(w.dtypes)
    if np.dtype(dtype).kind in "iu":
        limits, whole = np.iinfo(dtype), np.trunc(w.values[x].real.astype(np.float64))
        if not bool(np.all((whole >= float(limits.min)) & (whole <= float(limits.max)))):
            raise _Impossible
    w.add(p.Cast(dtype), x)


def _along(w: _Writer) -> None:
    """Add a reduction, a scan, a sort or a transform along an axis."""
    x, axis, length = w.line()
    fn = w.rng.choice(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"))
    ops = (
        p.Reduce(fn, (axis,)),  # type: ignore[arg-type]
        p.Scan(fn, axis),  # type: ignore[arg-type]
        p.Sort(axis),
        p.Argsort(axis),
        p.Fourier(w.rng.choice(("fft", "ifft", "rfft")), axis, length),
    )
    op = w.rng.choice(ops)
    if isinstance(op, p.Scan) and fn not in ("sum", "prod", "max", "min"):
        raise _Impossible
    w.add(op, x)


def _moved(w: _Writer) -> None:
    """Add an operation that moves elements: another shape or order, a part, windows, repeated or padded."""
    x, axis, length = w.line()
    shape = w.values[x].shape
    axes = list(range(len(shape)))
    starts, steps = [0] * len(shape), [1] * len(shape)
    starts[axis], steps[axis] = w.rng.randrange(length), 2
    low = tuple(w.rng.choice((0, 0, 1, 2)) for _ in shape)
    ops: tuple[Primitive, ...] = (
        p.Reshape((*shape[:axis], 1, *shape[axis:])),
        p.Reshape((product(shape),)),
        p.Permute(tuple(w.rng.sample(axes, len(axes)))),
        p.Broadcast((w.rng.choice((2, 3)), *shape)),
        p.Flip((axis,)),
        p.Windows(axis, w.rng.randint(1, length), w.rng.choice((1, 2))),
        p.Slice(tuple(starts), shape, tuple(steps)),
        p.Pad(low, low[::-1]),
    )
    op = w.rng.choice(ops)
    w.add(op, x, *([w.constant(tame(w.recorder.spec(x).dtype))] if isinstance(op, p.Pad) else []))


def _concatenate(w: _Writer) -> None:
    x, axis, _ = w.line()
    w.add(p.Concatenate(axis), x, w.partner(x))


def _contract(w: _Writer) -> None:
    """Add the products of all rows of a matrix with all rows of another one."""
    x = w.pick(lambda value: value.ndim >= 2)
    last = w.values[x].ndim - 1
    stack = tuple(range(last - 1))
    w.add(p.Contract((last,), (last,), stack, stack), x, w.partner(x))


def _indexed(w: _Writer) -> None:
    """Add a pick of elements along an axis, or an update; several updates may meet in one element."""
    x, axis, length = w.line()
    shape, dtype = w.values[x].shape, w.recorder.spec(x).dtype
    chosen = np.array([w.rng.randrange(length) for _ in range(w.rng.randint(1, 5))], w.rng.choice(("int32", "int64")))
    if w.rng.random() < 0.6:
        w.add(p.Gather(axis), x, w.constant(chosen))
    else:
        updates = w.constant(tame(dtype, *shape[:axis], len(chosen), *shape[axis + 1 :]))
        fn = w.rng.choice(("set", "add", "multiply", "maximum", "minimum"))
        w.add(p.Scatter(fn, axis), x, w.constant(chosen), updates)  # type: ignore[arg-type]


#: The most common kinds in users' programs are listed several times.
_NODES = (
    *(_unary,) * 6, *(_binary,) * 8, _select, _cast, _cast, *(_along,) * 4, *(_moved,) * 6, _concatenate, _contract,
    _contract, _indexed, _indexed,
)  # fmt: skip
