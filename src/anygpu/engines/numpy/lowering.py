"""Every primitive in NumPy. This is the reference: what a program means is what happens here.

`LOWER` has the function of each primitive. `prepare` makes steps of a program, and `run` computes them and lets go of
values early; `run_node` and `evaluate_constant` compute single nodes. `NumpyEngine`, at the end, is the engine made of
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from anygpu.base.interrupts import float_errors_ignored
from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import HostArrays
from anygpu.engines.protocol import verified
from anygpu.errors import Unsupported
from anygpu.hardware.device import Device, Unavailable, VerifiedType
from anygpu.program import primitives as p
from anygpu.program.dtypes import KIND, REAL_PART
from anygpu.program.functions import FUNCTIONS
from anygpu.program.graph import Program, last_uses
from anygpu.program.ops.custom import Custom, reference_of, with_references
from anygpu.program.ops.linear import Attend
from anygpu.program.primitive import RuleTable

# -- attention


def attended(
    q: HostArray, k: HostArray, v: HostArray, bias: HostArray | None = None, *, scale: float, causal: bool
) -> HostArray:
    """The result of `Attend`; axes in front of the last two broadcast. The caller silences NumPy's warnings."""
    # float16 is summed up in float32, as every engine does.
    wide = np.result_type(q.dtype, np.float32)
    q_wide, k_wide, v_wide = (each.astype(wide, copy=False) for each in (q, k, v))
    scores = np.matmul(q_wide, np.swapaxes(k_wide, -1, -2)) * wide.type(scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        n, m = scores.shape[-2:]
        scores = np.where(np.tri(n, m, m - n, dtype=bool), scores, wide.type(-np.inf))
    if scores.size:
        scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    return np.asarray(np.matmul(weights, v_wide) / weights.sum(axis=-1, keepdims=True), q.dtype)


# -- the error function, which NumPy itself does not have


#: x · P(x²) / Q(x²) is erf(x) for |x| <= 4 within 2.1e-9 of its value; both from the highest power. Fitted by least
#: squares on Chebyshev nodes, weighted anew until the largest relative error stopped falling.
_ABOVE = (
    -1.3202290191287716e-08,
    4.684790306346598e-06,
    0.00037960923456966777,
    0.0038496084590021406,
    0.054316908482114776,
    0.18520311005212492,
    1.1283791693792438,
)
_BELOW = (6.311069851714495e-05, 0.0013075697257066878, 0.015462085081161595, 0.11395838051470077, 0.49746539667094497)
#: Elements at a time: what is needed for them stays in the processor's cache.
_STRETCH = 1 << 14


def erf(x: HostArray) -> HostArray:
    """The error function of floats. In single precision and less it is at most 0.54 of a last digit away."""
    if x.dtype.itemsize > 4:
        return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)
    result = np.empty(x.shape, x.dtype)
    given, made = x.reshape(-1), result.reshape(-1)
    for start in range(0, x.size, _STRETCH):
        made[start : start + _STRETCH] = _quotient(given[start : start + _STRETCH].astype(np.float64))
    return result


def _quotient(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """`erf` on [-4, 4] as a quotient of polynomials, in float64; `x` is overwritten."""
    np.clip(x, -4, 4, out=x)
    square = x * x
    above, below = np.full_like(x, _ABOVE[0]), np.full_like(x, _BELOW[0])
    for coefficient in _ABOVE[1:]:
        above *= square
        above += coefficient
    for coefficient in (*_BELOW[1:], 1.0):
        below *= square
        below += coefficient
    above *= x
    above /= below
    return above


# -- primitives


class PreparedProgram(NamedTuple):
    """A program, and what is the same in each of its runs."""

    program: Program
    #: Of each node what is known before a run: constants, and what shows them in another shape, both read-only.
    known: list[Any]
    #: The nodes that are computed: what does it, the primitive, its sources, and the values that are not needed then.
    steps: list[tuple[int, Callable[..., Any] | None, p.Primitive, tuple[int, ...], list[int]]]


_PREPARED: LRUCache[PreparedProgram] = LRUCache()


def prepare(program: Program) -> PreparedProgram:
    """The program as steps: constants and what only repeats them are computed once, and last uses are known."""
    program = with_references(program, None)
    known: list[Any] = [None] * len(program.nodes)
    steps: list[tuple[int, Callable[..., Any] | None, p.Primitive, tuple[int, ...], list[int]]] = []
    released = last_uses(program)
    for position, (op, sources) in enumerate(program.nodes):
        if isinstance(op, p.Input):
            continue
        compute = None if isinstance(op, p.Linear) else LOWER[type(op)]
        shows = isinstance(op, p.Broadcast) and known[sources[0]] is not None
        if compute is not None and (shows or isinstance(op, p.Constant)):
            known[position] = np.asarray(compute(op, *[known[source] for source in sources]))
        else:
            steps.append((position, compute, op, sources, released[position]))
    return PreparedProgram(program, known, steps)


def run(program: Program, inputs: Sequence[HostArray]) -> list[HostArray]:
    """Compute a program node by node, and let go of each value after its last use."""
    return _run(_PREPARED.get(program.key, lambda: prepare(program)), inputs)


@float_errors_ignored
def _run(prepared: PreparedProgram, inputs: Sequence[HostArray]) -> list[HostArray]:
    """The results. Each value is let go of after its last use."""
    values = prepared.known.copy()
    values[: len(inputs)] = inputs
    parts: dict[Any, Any] = {}
    for position, compute, op, sources, released in prepared.steps:
        given = [values[source] for source in sources]
        if compute is not None:
            values[position] = np.asarray(compute(op, *given))
        elif isinstance(op, p.Linear):
            values[position] = _linear(op, sources, given, parts)
        del given
        for source in released:
            values[source] = None
    return [values[output] for output in prepared.program.outputs]


@float_errors_ignored
def run_node(
    op: p.Primitive,
    inputs: Sequence[HostArray],
    sources: tuple[int, ...] = (),
    parts: dict[Any, Any] | None = None,
) -> HostArray:
    """One primitive alone. With `parts`, a decomposition of the same sources is computed once for several calls."""
    if isinstance(op, p.Linear):
        return _linear(op, sources, list(inputs), {} if parts is None else parts)
    return np.asarray(LOWER[type(op)](op, *inputs))


def _unary(op: p.Unary, x: HostArray) -> HostArray:
    """A function of one operand by NumPy's function of that name."""
    match op.fn:
        case "mantissa":
            return np.asarray(np.frexp(x)[0])
        case "exponent":
            return np.frexp(x)[1]
        case "erf":
            return erf(x)
        case "real" | "imag":
            return np.array(getattr(x, op.fn))
    return getattr(np, FUNCTIONS[op.fn].numpy_name)(x)  # type: ignore[no-any-return]


def _cast(op: p.Cast, x: HostArray) -> HostArray:
    """The array in another type; of complex numbers the real part."""
    if x.dtype.kind == "c" and KIND[op.dtype] not in ("complex", "bool"):
        x = x.real
    return x.astype(op.dtype)


def _binary(op: p.Binary, x: HostArray, y: HostArray) -> HostArray:
    """A function of two operands by NumPy's function of that name.

    Raises `ValueError` for negative exponents of integers, as NumPy does for arrays.
    """
    if op.fn == "complex":
        result = np.empty(x.shape, np.complex64 if x.dtype != np.float64 else np.complex128)
        result.real, result.imag = x, y
        return result
    if op.fn == "power" and x.dtype.kind in "iu" and y.dtype.kind == "i" and y.size and y.min() < 0:
        raise ValueError("integers to negative integer powers are not allowed; convert the base to float first.")
    return getattr(np, FUNCTIONS[op.fn].numpy_name)(x, y)  # type: ignore[no-any-return]


def _reduce(op: p.Reduce, x: HostArray) -> HostArray:
    """A reduction by NumPy; totals stay in their type."""
    if op.fn in ("argmax", "argmin"):
        return getattr(np, op.fn)(x, axis=op.axes[0])  # type: ignore[no-any-return]
    if op.fn in ("sum", "prod"):
        return getattr(np, op.fn)(x, axis=op.axes, dtype=x.dtype)  # type: ignore[no-any-return]
    return getattr(np, op.fn)(x, axis=op.axes)  # type: ignore[no-any-return]


_SCANS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_SCATTERS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def _slice(op: p.Slice, x: HostArray) -> HostArray:
    return x[tuple(slice(*each) for each in zip(op.starts, op.stops, op.steps, strict=True))]


def _update(op: p.Update, x: HostArray, new: HostArray) -> HostArray:
    """A copy of the array with new values in a region."""
    result = x.copy()
    region = tuple(
        slice(start, start + (count - 1) * step + 1 if count else start, step)
        for start, step, count in zip(op.starts, op.steps, new.shape, strict=True)
    )
    result[region] = new
    return result


def _pad(op: p.Pad, x: HostArray, value: HostArray) -> HostArray:
    return np.pad(x, tuple(zip(op.low, op.high, strict=True)), constant_values=value) if x.ndim else x


def _windows(op: p.Windows, x: HostArray) -> HostArray:
    windows = np.lib.stride_tricks.sliding_window_view(x, op.size, axis=op.axis)
    return windows[(slice(None),) * op.axis + (slice(None, None, op.step),)]


def _contract(op: p.Contract, x: HostArray, y: HostArray) -> HostArray:
    """As one batched matrix product, which is what the BLAS is good at."""
    rows = p.free_axes(x.shape, op.left, op.left_batch)
    columns = p.free_axes(y.shape, op.right, op.right_batch)
    shape = (*(x.shape[axis] for axis in (*op.left_batch, *rows)), *(y.shape[axis] for axis in columns))
    stack = tuple(x.shape[axis] for axis in op.left_batch)
    inner = p.product(tuple(x.shape[axis] for axis in op.left))
    left = x.transpose(*op.left_batch, *rows, *op.left).reshape(
        *stack, p.product(tuple(x.shape[a] for a in rows)), inner
    )
    right = y.transpose(*op.right_batch, *op.right, *columns).reshape(
        *stack, inner, p.product(tuple(y.shape[a] for a in columns))
    )
    return np.asarray(np.matmul(left, right).reshape(shape))


def _gather(op: p.Gather, x: HostArray, indices: HostArray) -> HostArray:
    """Elements along an axis by index. Raises `IndexError` for indices out of range."""
    _check_indices(indices, x.shape[op.axis])
    if op.batch == 0:
        # Before NumPy 2.1, `take` refuses unsigned indices of 64 bits.
        return np.asarray(np.take(x, indices.astype(np.intp, copy=False), axis=op.axis))
    shape = (*x.shape[: op.axis], *indices.shape[op.batch :], *x.shape[op.axis + 1 :])
    blocks, rows, positions = _blocks(op, x, indices)
    # NumPy puts the axes of the two arrays of positions first; between them and the end lie the axes before `axis`.
    return blocks[rows, :, positions].swapaxes(1, 2).reshape(shape)


def _blocks(op: p.Gather | p.Scatter, x: HostArray, indices: HostArray) -> tuple[HostArray, HostArray, HostArray]:
    """The array as batch × before × axis × after, and which row and which positions go together."""
    batches = p.product(x.shape[: op.batch])
    before, after = p.product(x.shape[op.batch : op.axis]), p.product(x.shape[op.axis + 1 :])
    blocks = x.reshape(batches, before, x.shape[op.axis], after)
    return blocks, np.arange(batches)[:, None], indices.reshape(batches, p.product(indices.shape[op.batch :]))


def _check_indices(indices: HostArray, length: int) -> None:
    """Raise `IndexError` for an index out of range."""
    if indices.size and not (indices.min() >= 0 and indices.max() < length):
        worst = indices.max() if indices.max() >= length else indices.min()
        raise IndexError(f"index {worst} is out of bounds for an axis with size {length}.")


def _scatter(op: p.Scatter, x: HostArray, indices: HostArray, updates: HostArray) -> HostArray:
    """A copy of the array with updates at indices, in their order. Raises `IndexError` for indices out of range."""
    _check_indices(indices, x.shape[op.axis])
    result = np.array(x, order="C")
    blocks, rows, positions = _blocks(op, result, indices)
    new = updates.reshape(*blocks.shape[:2], positions.shape[1], blocks.shape[3]).swapaxes(1, 2)
    if op.fn == "set":
        blocks[rows, :, positions] = new
    else:
        place: Any = (rows, slice(None), positions)
        _SCATTERS[op.fn].at(blocks, place, new)
    return result


def _sort(op: p.Sort, x: HostArray) -> HostArray:
    """In order. NumPy's default sort is seven times as fast as its stable one, and differs for 0.0 and -0.0 alone."""
    is_stable = op.stable and x.dtype.kind in "fc"
    if is_stable:
        parts = (x,) if x.dtype.kind == "f" else (x.real, x.imag)
        signs = [np.signbit(part[part == 0]) for part in parts]
        is_stable = any(each.any() and not each.all() for each in signs)
    return np.sort(x, axis=op.axis, kind="stable" if is_stable else None)


def _fourier(op: p.Fourier, x: HostArray) -> HostArray:
    """A transform by NumPy, in the precision of the input: NumPy computes some of them in float64."""
    transform = getattr(np.fft, op.fn)(x, n=op.length, axis=op.axis)
    wanted = REAL_PART.get(x.dtype.name) if op.fn == "irfft" else None  # type: ignore[call-overload]
    if wanted is None:
        wanted = "complex128" if x.dtype in (np.float64, np.complex128) else "complex64"
    return transform.astype(wanted, copy=False)  # type: ignore[no-any-return]


def _linear(op: p.Linear, sources: tuple[int, ...], inputs: list[HostArray], parts: dict[Any, Any]) -> HostArray:
    """A decomposition is computed once, however many of its parts are wanted."""
    key = (op.fn, op.full, sources)
    if key not in parts:
        parts[key] = _decompose(op, *inputs)
    found = parts[key]
    return np.asarray(found[op.part] if isinstance(found, tuple) else found)


def _decompose(op: p.Linear, a: HostArray, *more: HostArray) -> Any:
    """All parts of a decomposition, or the only result of another function of linear algebra."""
    match op.fn:
        case "qr":
            return tuple(np.linalg.qr(a, mode="complete" if op.full else "reduced"))
        case "svd":
            return tuple(np.linalg.svd(a, full_matrices=op.full))
        case "svdvals":
            return np.linalg.svd(a, compute_uv=False)
        case "eig":
            values, vectors = np.linalg.eig(a)
            wanted = np.complex64 if a.dtype in (np.float32, np.complex64) else np.complex128
            return values.astype(wanted, copy=False), vectors.astype(wanted, copy=False)
        case "eigh" | "slogdet":
            return tuple(getattr(np.linalg, op.fn)(a))
    return getattr(np.linalg, op.fn)(a, *more)


def _custom(op: Custom, *inputs: HostArray) -> HostArray:
    """A user's kernel by its reference. Raises `Unsupported` where it has none."""
    if not op.reference:
        raise Unsupported(
            f"kernel {op.title}, which is written in {op.language}",
            "numpy",
            instead="Give the kernel a reference that can be traced, or use a device of its language.",
        )
    return run(reference_of(op), inputs)[op.result]


# Equal whole numbers cannot be told apart, so that the faster sort is as good; 0.0 and -0.0 can.
LOWER: RuleTable[Callable[..., Any]] = RuleTable(
    {
        p.Constant: lambda op: np.frombuffer(op.data, op.dtype).reshape(op.shape),
        p.Iota: lambda op: np.arange(op.length, dtype=op.dtype),
        p.Unary: _unary,
        p.Binary: _binary,
        p.Select: lambda op, condition, a, b: np.where(condition, a, b),
        p.Cast: _cast,
        p.Reduce: _reduce,
        p.Scan: lambda op, x: _SCANS[op.fn].accumulate(x, axis=op.axis, dtype=x.dtype),
        p.Reshape: lambda op, x: x.reshape(op.shape),
        p.Permute: lambda op, x: x.transpose(op.axes),
        p.Broadcast: lambda op, x: np.broadcast_to(x, op.shape),
        p.Slice: _slice,
        p.Update: _update,
        p.Flip: lambda op, x: np.flip(x, op.axes),
        p.Pad: _pad,
        p.Concatenate: lambda op, *parts: np.concatenate(parts, axis=op.axis),
        p.Windows: _windows,
        p.Contract: _contract,
        p.Gather: _gather,
        p.Scatter: _scatter,
        p.Sort: _sort,
        p.Argsort: lambda op, x: np.argsort(x, axis=op.axis, kind="stable" if op.stable else None),
        p.Search: lambda op, line, values: np.searchsorted(line, values, side=op.side),
        p.Fourier: _fourier,
        Attend: lambda op, *arrays: attended(*arrays, scale=op.scale, causal=op.causal),
        Custom: _custom,
    }
)


def evaluate_constant(op: p.Primitive, constants: Sequence[tuple[p.Spec, bytes]]) -> bytes | None:
    """One primitive on constants, for `anygpu.program.transforms`; what cannot be computed is left for later.

    Among that is what must raise: an index out of bounds is the user's to see when the program runs.
    """
    if any(spec.dtype == "bfloat16" for spec, _ in constants) or getattr(op, "dtype", None) == "bfloat16":
        return None
    inputs = [np.frombuffer(data, spec.dtype).reshape(spec.shape) for spec, data in constants]
    try:
        result = run_node(op, inputs)
    except (ValueError, IndexError, ArithmeticError):
        return None
    return None if _may_be_warned_of(op, inputs, result) else result.tobytes()


def _may_be_warned_of(op: p.Primitive, inputs: Sequence[HostArray], result: HostArray) -> bool:
    """Return whether NumPy may warn about a result, in each call that computes it."""
    if isinstance(op, p.Cast) and inputs[0].dtype.kind == "f" and result.dtype.kind in "iu":
        return not np.array_equal(result.astype(inputs[0].dtype), np.trunc(inputs[0]))
    return op.may_raise_flags and not np.isfinite(result).all()


# -- numPy: the reference and the floor. It is always there


class NumpyEngine(HostArrays):
    """The engine of NumPy itself: a program is run operation by operation."""

    name: ClassVar[str] = "numpy"

    def discover(self) -> list[Device | Unavailable]:
        return [self._processor("NumPy " + np.__version__)]

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        """The processor after a computation in each type."""

        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            return np.asarray(values * values + np.asarray(3, dtype) * values)

        return verified(device, compute, deep=deep)

    def compile(self, program: Program, device: Device) -> Program:
        return program

    def execute(self, executable: Program, buffers: Sequence[HostArray]) -> list[HostArray]:
        return run(executable, buffers)

    def close(self) -> None:
        pass
