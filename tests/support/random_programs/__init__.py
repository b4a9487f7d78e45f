"""Random programs with one right answer, for comparing engines and transforms with each other.

Every operation is well defined on what `random_inputs` makes: where an operand could leave a function's domain, a clip
is put before it, and a program whose right answers could lie too far apart is not made (`intervals`).

There is one generator of nodes for each primitive. It picks operands from the values that the program has, makes them
fit, adds the node and returns its position, or raises `Impossible`. `NODE_GENERATORS` lists them with their weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidProgram
from anygpu.program import primitives as p
from anygpu.program.dtypes import DTYPES, KIND, REAL_PART, DType, is_inexact, is_integer
from anygpu.program.functions import BINARY, COMPARISONS, UNARY, binary_dtype, unary_dtype
from anygpu.program.graph import Program
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import Primitive, Shape, Spec, product
from anygpu.testing.cases import REFERENCE_DTYPES
from tests.support.random_programs.intervals import (
    POWER,
    POWER_COMPLEX,
    SMOOTH,
    SMOOTH_COMPLEX,
    WHOLE_LIMIT,
    whole_range,
)
from tests.support.random_programs.program_generator import LENGTHS, Impossible, ProgramGenerator, random_values


def _takes(fn: str, dtype: DType, *, binary: bool) -> bool:
    """Whether a function is defined for a dtype."""
    try:
        if binary:
            binary_dtype(fn, dtype, "int32" if fn == "ldexp" else dtype)  # type: ignore[arg-type]
        else:
            unary_dtype(fn, dtype)  # type: ignore[arg-type]
    except InvalidProgram:
        return False
    return True


UNARY_OF = {dtype: [fn for fn in UNARY if _takes(fn, dtype, binary=False)] for dtype in DTYPES}
BINARY_OF = {dtype: [fn for fn in BINARY if _takes(fn, dtype, binary=True)] for dtype in DTYPES}
#: These have one right answer only for exact inputs.
STEP_FUNCTIONS = {"floor", "ceil", "trunc", "rint", "sign", "signbit", "mantissa", "exponent", "nextafter",
                   "floor_divide", "remainder", "fmod", *COMPARISONS}  # fmt: skip


def _constant(w: ProgramGenerator) -> int:
    return w.constant(w.shape(2), w.dtype())


def _iota(w: ProgramGenerator) -> int:
    dtype = w.dtype()
    if dtype == "bool":
        raise Impossible
    return w.add(p.Iota(w.rng.choice(LENGTHS), dtype))


def _unary(w: ProgramGenerator) -> int:
    """A function of one value, clipped to its domain; functions with steps get exact values only."""
    x = w.pick()
    spec = w.spec(x)
    fn = w.rng.choice(UNARY_OF[spec.dtype])
    if fn in STEP_FUNCTIONS and not w.bounds[x].exact:
        x = w.pick(lambda other: other.dtype == spec.dtype, exact=True)
    if fn in SMOOTH and KIND[spec.dtype] == "float":
        low = 0.0 if fn in ("sqrt", "cbrt") and w.bounds[x].exact else SMOOTH[fn].low
        x = w.clip(x, low, SMOOTH[fn].high)
    elif fn in SMOOTH_COMPLEX and KIND[spec.dtype] == "complex":
        x = w.clip_complex(x, *SMOOTH_COMPLEX[fn][:4])
    elif fn == "reciprocal":
        x = w.nonzero(x)
    elif fn == "signbit":
        x = w.signed(x)
    return w.add(p.Unary(fn), x)


def _binary(w: ProgramGenerator) -> int:
    """A function of two values, with divisors that are not 0, and shifts and exponents in their range."""
    x = w.pick()
    spec = w.spec(x)
    dtype = spec.dtype
    fn = w.rng.choice(BINARY_OF[dtype])
    exact = fn in STEP_FUNCTIONS or (KIND[dtype] == "complex" and fn in ("minimum", "maximum"))
    if exact and not w.bounds[x].exact:
        x = w.pick(lambda other: other.dtype == dtype, exact=True)
    y = w.partner(w.spec(x).shape, "int32" if fn == "ldexp" else dtype, exact=exact)
    if w.rng.random() < 0.3 and fn != "ldexp":
        x, y = y, x
    match fn:
        case "ldexp":
            y = w.clip(y, -3, 3)
        case "divide" | "floor_divide" | "remainder" | "fmod":
            y = w.nonzero(y)
        case "atan2":
            x, y = w.signed(x), w.signed(y)
        case "copysign":
            y = w.signed(y)
        case "nextafter":
            x = w.nonzero(x)
        case "gcd":
            x, y = w.clip(x, -WHOLE_LIMIT, 2 * WHOLE_LIMIT), w.clip(y, -WHOLE_LIMIT, 2 * WHOLE_LIMIT)
        case "left_shift" | "right_shift":
            y = w.clip(y, 0, w.rng.choice((3, whole_range(dtype)[1].bit_length() - 1)))
        case "power" if is_integer(dtype):
            y = w.clip(y, 0, 3)
        case "power" if KIND[dtype] == "complex":
            x, y = (w.clip_complex(each, *box) for each, box in zip((x, y), POWER_COMPLEX[:2], strict=True))
        case "power":
            x, y = (w.clip(each, box[0], box[1]) for each, box in zip((x, y), POWER[:2], strict=True))
    return w.add(p.Binary(fn), x, y)


def _select(w: ProgramGenerator) -> int:
    """A choice between two values, by a condition that is there or by a new comparison."""
    a = w.pick()
    shape, dtype = w.spec(a)
    try:
        condition = w.pick(lambda spec: spec == Spec(shape, "bool"))
    except Impossible:
        compared: DType = w.rng.choice([each for each in w.dtypes if each != "bool"] or ["bool"])
        one, other = (w.partner(shape, compared, exact=True) for _ in range(2))
        condition = w.add(p.Binary(w.rng.choice(COMPARISONS)), one, other)
    return w.add(p.Select(), condition, a, w.partner(shape, dtype))


def _cast(w: ProgramGenerator) -> int:
    x = w.pick()
    dtype = w.dtype()
    if is_inexact(w.spec(x).dtype) and not is_inexact(dtype) and not w.bounds[x].exact:
        x = w.pick(exact=True)
    return w.cast(x, dtype)


def _reduce(w: ProgramGenerator) -> int:
    """A reduction over one or several axes; positions and products only of values that have one right answer."""
    x = w.pick()
    spec = w.spec(x)
    fns = ["max", "min", "argmax", "argmin"] + (["any", "all"] if spec.dtype == "bool" else ["sum", "prod", "sum"])
    fn = w.rng.choice(fns)
    if fn in ("argmax", "argmin") and not w.bounds[x].exact:
        x = w.pick(lambda other: other.dtype == spec.dtype, exact=True)
    shape = w.spec(x).shape
    if fn in ("argmax", "argmin"):
        axes: tuple[int, ...] = (w.axis(x, 1),)
    else:
        least = 1 if fn in ("max", "min") else 0
        possible = [axis for axis, length in enumerate(shape) if length >= least]
        axes = tuple(sorted(w.rng.sample(possible, w.rng.randint(min(1, len(possible)), len(possible)))))
    if fn == "prod" and is_inexact(spec.dtype):
        x = _small_factors(w, x, product(tuple(shape[axis] for axis in axes)))
    return w.add(p.Reduce(fn, axes), x)  # type: ignore[arg-type]


def _small_factors(w: ProgramGenerator, x: int, count: int) -> int:
    """The value, clipped so that the product of `count` of its elements cannot be large."""
    side = 2.0 if count <= 5 else 1.0
    return w.clip(x, -side, side) if KIND[w.spec(x).dtype] != "complex" else w.clip(x, -side / 2, side / 2)


def _scan(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: spec.dtype != "bool" and bool(spec.shape))
    axis = w.axis(x)
    fn = w.rng.choice(("sum", "sum", "prod", "max", "min"))
    if fn == "prod" and is_inexact(w.spec(x).dtype):
        x = _small_factors(w, x, w.spec(x).shape[axis])
    return w.add(p.Scan(fn, axis), x)  # type: ignore[arg-type]


def _reshape(w: ProgramGenerator) -> int:
    """Another shape of the same elements: axes joined, split, added and removed at random."""
    x = w.pick()
    shape = list(w.spec(x).shape)
    for _ in range(w.rng.randint(1, 3)):
        at = w.rng.randint(0, len(shape))
        kind = w.rng.random()
        if kind < 0.4 and at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif kind < 0.7 and at < len(shape) and shape[at] > 3:
            divisor = next((each for each in (2, 3, 5, 7) if shape[at] % each == 0), shape[at])
            shape[at : at + 1] = [divisor, shape[at] // divisor]
        elif kind < 0.85:
            shape.insert(at, 1)
        elif at < len(shape) and shape[at] == 1:
            del shape[at]
    if w.rng.random() < 0.15:
        shape = [product(tuple(shape))]
    return w.add(p.Reshape(tuple(shape)), x)


def _permute(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: len(spec.shape) > 1 or w.rng.random() < 0.1)
    axes = list(range(len(w.spec(x).shape)))
    w.rng.shuffle(axes)
    return w.add(p.Permute(tuple(axes)), x)


def _broadcast(w: ProgramGenerator) -> int:
    x = w.pick()
    shape = [w.rng.choice((1, 2, 3, 5)) if n == 1 and w.rng.random() < 0.7 else n for n in w.spec(x).shape]
    new = w.rng.choices((0, 1, 2), (3, 4, 1))[0]
    return w.add(p.Broadcast((*w.rng.choices((1, 2, 3, 5, 7), k=new), *shape)), x)


def _stretch(w: ProgramGenerator, length: int) -> tuple[int, int, int]:
    """The start, stop and step of a slice of an axis; often all of it."""
    if w.rng.random() < 0.4:
        return 0, length, 1
    start, stop = sorted((w.rng.randint(0, length), w.rng.randint(0, length)))
    return start, stop, w.rng.choice((1, 1, 2, 3))


def _slice(w: ProgramGenerator) -> int:
    x = w.pick()
    stretches = [_stretch(w, length) for length in w.spec(x).shape]
    starts, stops, steps = zip(*stretches, strict=True) if stretches else ((), (), ())
    return w.add(p.Slice(starts, stops, steps), x)


def _update(w: ProgramGenerator) -> int:
    x = w.pick()
    shape, dtype = w.spec(x)
    stretches = [_stretch(w, length) for length in shape]
    counts = tuple(-(-(stop - start) // step) for start, stop, step in stretches)
    new = w.partner(counts, dtype)
    return w.add(p.Update(tuple(each[0] for each in stretches), tuple(each[2] for each in stretches)), x, new)


def _flip(w: ProgramGenerator) -> int:
    x = w.pick()
    axes = range(len(w.spec(x).shape))
    return w.add(p.Flip(tuple(sorted(w.rng.sample(axes, w.rng.randint(min(1, len(axes)), len(axes)))))), x)


def _pad(w: ProgramGenerator) -> int:
    x = w.pick()
    shape, dtype = w.spec(x)
    low, high = (tuple(w.rng.choice((0, 0, 1, 2)) for _ in shape) for _ in range(2))
    return w.add(p.Pad(low, high), x, w.partner((), dtype))


def _concatenate(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: bool(spec.shape))
    shape, dtype = w.spec(x)
    axis = w.axis(x)
    parts = [x]
    for _ in range(w.rng.choices((0, 1, 2), (1, 6, 2))[0]):
        length = w.rng.choice((shape[axis], 1, 2, 3))
        parts.append(w.partner((*shape[:axis], length, *shape[axis + 1 :]), dtype))
    w.rng.shuffle(parts)
    return w.add(p.Concatenate(axis), *parts)


def _windows(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: any(spec.shape))
    axis = w.axis(x, 1)
    return w.add(p.Windows(axis, w.rng.randint(1, min(4, w.spec(x).shape[axis])), w.rng.choice((1, 1, 2, 3))), x)


def _contract(w: ProgramGenerator) -> int:
    """A contraction with shuffled batch, contracted and free axes, and a second operand that fits."""
    x = w.pick(lambda spec: spec.dtype != "bool")
    shape, dtype = w.spec(x)
    axes = list(range(len(shape)))
    w.rng.shuffle(axes)
    batch_count = w.rng.choices((0, 1, 2), (5, 2, 1))[0]
    left_batch = tuple(axes[:batch_count])
    left = tuple(axes[batch_count : batch_count + w.rng.choices((0, 1, 2), (1, 7, 2))[0]])
    free = w.rng.choices((1, 2, 3, 5), k=w.rng.choices((0, 1, 2), (2, 5, 1))[0])
    lengths = [shape[axis] for axis in (*left_batch, *left)] + free
    order = list(range(len(lengths)))
    w.rng.shuffle(order)
    y = w.partner(tuple(lengths[each] for each in order), dtype)
    places = [order.index(each) for each in range(len(left_batch) + len(left))]
    right_batch, right = tuple(places[: len(left_batch)]), tuple(places[len(left_batch) :])
    if w.rng.random() < 0.3:
        return w.add(p.Contract(right, left, right_batch, left_batch), y, x)
    return w.add(p.Contract(left, right, left_batch, right_batch), x, y)


def _axis_batch_and_index_shape(w: ProgramGenerator, x: int) -> tuple[int, int, Shape]:
    """An axis to index, how many axes before it are a batch, and the shape of the indices."""
    shape = w.spec(x).shape
    axis = w.axis(x, 0 if w.rng.random() < 0.1 else 1)
    batch = w.rng.randint(0, axis) if w.rng.random() < 0.5 else 0
    return axis, batch, shape[:batch] + w.shape(2)


def _gather(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: bool(spec.shape))
    axis, batch, index_shape = _axis_batch_and_index_shape(w, x)
    return w.add(p.Gather(axis, batch), x, w.indices(index_shape, w.spec(x).shape[axis]))


def _scatter(w: ProgramGenerator) -> int:
    fn = w.rng.choice(("set", "add", "multiply", "maximum", "minimum"))
    x = w.pick(lambda spec: bool(spec.shape) and (fn == "set" or spec.dtype != "bool"))
    axis, batch, index_shape = _axis_batch_and_index_shape(w, x)
    shape, dtype = w.spec(x)
    indices = w.indices(index_shape, shape[axis])
    updates = w.partner((*shape[:axis], *index_shape[batch:], *shape[axis + 1 :]), dtype)
    if fn == "multiply" and is_inexact(dtype):
        x, updates = (_small_factors(w, each, 1 + product(index_shape[batch:])) for each in (x, updates))
    return w.add(p.Scatter(fn, axis, batch), x, indices, updates)  # type: ignore[arg-type]


def _sort(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: bool(spec.shape))
    return w.add(p.Sort(w.axis(x)), x)


def _argsort(w: ProgramGenerator) -> int:
    x = w.pick(lambda spec: bool(spec.shape), exact=True)
    return w.add(p.Argsort(w.axis(x)), x)


def _search(w: ProgramGenerator) -> int:
    """Positions in a sorted line, for exact values: near a tie any rounding changes the answer."""
    line = w.pick(exact=True)
    shape, dtype = w.spec(line)
    if len(shape) != 1:
        line = w.add(p.Reshape((product(shape),)), line)
    line = w.add(p.Sort(0), line)
    values = w.partner(w.shape(), dtype, exact=True)
    return w.add(p.Search(w.rng.choice(("left", "right"))), line, values)


def _fourier(w: ProgramGenerator) -> int:
    """A transform along one axis: real values forward, complex ones in any direction."""
    x = w.pick(lambda spec: is_inexact(spec.dtype) and any(spec.shape))
    axis = w.axis(x, 1)
    length = w.spec(x).shape[axis]
    if KIND[w.spec(x).dtype] == "float":
        return w.add(p.Fourier("rfft", axis, length), x)
    fn = w.rng.choice(("fft", "ifft", "irfft"))
    if fn == "irfft":
        length = max(1, 2 * (length - 1) + w.rng.randint(0, 1))
    return w.add(p.Fourier(fn, axis, length), x)  # type: ignore[arg-type]


def _linear(w: ProgramGenerator) -> int:
    """Linear algebra on x·xᴴ + 1, which is well conditioned.

    Factors that are not unique are multiplied together again.
    """
    possible = [each for each in ("float32", "float64", "complex64", "complex128") if each in w.dtypes]
    x = w.pick(lambda spec: spec.dtype in possible and len(spec.shape) >= 2 and min(spec.shape[-2:]) >= 1)
    x = w.clip(x, -1, 1)
    a = _positive_definite(w, x)
    spec = w.spec(a)
    fn = w.rng.choice(("cholesky", "inv", "solve", "det", "slogdet", "qr", "svd", "svdvals", "eigh", "eigvalsh", "eig"))
    match fn:
        case "solve":
            right_side = (*spec.shape[:-1], w.rng.choice((1, 2, 3)))
            return w.add(p.Linear("solve"), a, w.partner(right_side, spec.dtype))
        case "slogdet":
            return w.add(p.Linear("slogdet", w.rng.randint(0, 1)), a)
        case "qr":
            full = w.rng.random() < 0.3
            return _matmul(w, *(w.add(p.Linear("qr", part, full), x) for part in (0, 1)))
        case "svd":
            vectors, sizes, others = (w.add(p.Linear("svd", part), x) for part in range(3))
            return _matmul(w, _scaled_columns(w, vectors, sizes), others)
        case "eigh":
            sizes, vectors = (w.add(p.Linear("eigh", part), a) for part in range(2))
            return _matmul(w, _scaled_columns(w, vectors, sizes), _adjoint(w, vectors))
        case "eig":
            sizes, vectors = (w.add(p.Linear("eig", part), a) for part in range(2))
            return _matmul(w, _scaled_columns(w, vectors, sizes), w.add(p.Linear("inv"), vectors))
    return w.add(p.Linear(fn), a if fn != "svdvals" else x)  # type: ignore[arg-type]


def _attend(w: ProgramGenerator) -> int:
    """Attention in which every query sees a key: what nobody sees is NaN everywhere, which agrees with anything."""
    q = w.pick(lambda spec: KIND[spec.dtype] == "float" and len(spec.shape) >= 2)
    (*stack, n, d), dtype = w.spec(q)
    m, e = max(n, 1) + w.rng.choice((0, 0, 1, 3)), w.rng.choice((1, 2, 5))
    shapes = [(*stack, m, d), (*stack, m, e), (*stack, n, m)][: w.rng.choice((2, 3))]
    given = [q, *(w.partner(shape, dtype) for shape in shapes)]
    return w.add(Attend(w.rng.choice((0.0625, 0.25)), w.rng.random() < 0.5), *(w.clip(each, -4, 4) for each in given))


def _adjoint(w: ProgramGenerator, x: int) -> int:
    """The value with its last two axes swapped, and conjugated if it is complex."""
    axes = list(range(len(w.spec(x).shape)))
    axes[-2:] = axes[:-3:-1]
    swapped = w.add(p.Permute(tuple(axes)), x)
    return w.add(p.Unary("conj"), swapped) if w.spec(x).dtype in REAL_PART else swapped


def _matmul(w: ProgramGenerator, x: int, y: int) -> int:
    """The product of two stacks of matrices."""
    last = len(w.spec(x).shape) - 1
    stack = tuple(range(last - 1))
    return w.add(p.Contract((last,), (last - 1,), stack, stack), x, y)


def _scaled_columns(w: ProgramGenerator, vectors: int, sizes: int) -> int:
    """The matrix with each column multiplied by one of `sizes`."""
    shape, dtype = w.spec(vectors)
    row = w.add(p.Reshape((*shape[:-2], 1, shape[-1])), sizes)
    row = w.add(p.Broadcast(shape), row) if w.spec(row).shape != shape else row
    row = w.add(p.Cast(dtype), row) if w.spec(row).dtype != dtype else row
    return w.add(p.Binary("multiply"), vectors, row)


def _positive_definite(w: ProgramGenerator, x: int) -> int:
    """x·xᴴ + 1: a Hermitian matrix whose eigenvalues are at least 1."""
    squared = _matmul(w, x, _adjoint(w, x))
    spec = w.spec(squared)
    one = w.constant(spec.shape[-2:], spec.dtype, np.eye(spec.shape[-1]))
    return w.add(p.Binary("add"), squared, w.add(p.Broadcast(spec.shape), one) if len(spec.shape) > 2 else one)


#: How a random program uses each primitive, and how often it tries to. Linear algebra is left out unless it is asked
#: for: its answers agree less well. So is attention, which takes more than most programs have.
NODE_GENERATORS: dict[type[Primitive], tuple[Callable[[ProgramGenerator], int], float]] = {
    p.Constant: (_constant, 1),
    p.Iota: (_iota, 1),
    p.Unary: (_unary, 8),
    p.Binary: (_binary, 10),
    p.Select: (_select, 2),
    p.Cast: (_cast, 3),
    p.Reduce: (_reduce, 4),
    p.Scan: (_scan, 1.5),
    p.Reshape: (_reshape, 3),
    p.Permute: (_permute, 2),
    p.Broadcast: (_broadcast, 3),
    p.Slice: (_slice, 2),
    p.Update: (_update, 1.5),
    p.Flip: (_flip, 1),
    p.Pad: (_pad, 1.5),
    p.Concatenate: (_concatenate, 1.5),
    p.Windows: (_windows, 1.5),
    p.Contract: (_contract, 3),
    p.Gather: (_gather, 2),
    p.Scatter: (_scatter, 2),
    p.Sort: (_sort, 1),
    p.Argsort: (_argsort, 1),
    p.Search: (_search, 1),
    p.Fourier: (_fourier, 1.5),
    p.Linear: (_linear, 0),
    Attend: (_attend, 0),
}


#: How often each primitive is tried.
WEIGHTS: dict[type[Primitive], float] = {primitive: weight for primitive, (_, weight) in NODE_GENERATORS.items()}


def random_program(
    source: random.Random | int,
    *,
    dtypes: Sequence[DType] = REFERENCE_DTYPES,
    max_nodes: int = 24,
    max_elements: int = 512,
    primitives: Mapping[type[Primitive], float] | Iterable[type[Primitive]] | None = None,
) -> Program:
    """A program of at most `max_nodes` nodes, no value of which has more than `max_elements`, in these types only.

    `primitives` are weights that take the place of `WEIGHTS`, or a selection from it. Clips and the like are made of
    other primitives, which come along as they are needed. The same source gives the same program.
    """
    rng = random.Random(source) if isinstance(source, int) else source
    if primitives is None:
        weights: Mapping[type[Primitive], float] = WEIGHTS
    elif isinstance(primitives, Mapping):
        weights = primitives
    else:
        weights = {each: WEIGHTS[each] or 1 for each in primitives}
    generators = {primitive: generator for primitive, (generator, _) in NODE_GENERATORS.items()}
    return ProgramGenerator(rng, tuple(dtypes), max_nodes, max_elements).write(weights, generators)


def random_inputs(program: Program, rng: random.Random) -> list[HostArray]:
    """Inputs for a program: small whole numbers, and fractions that are exact in binary."""
    generator = np.random.default_rng(rng.getrandbits(64))
    return [random_values(spec, generator) for spec in program.inputs]
