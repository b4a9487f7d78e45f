"""Products of matrices and their generalisation, decompositions, systems of equations, Fourier transforms.

`Contract` sums products over pairs of axes, of which matrix products are a case. `Attend` is attention as one
primitive, so that engines may use kernels of their own. `Linear` has several results, of which a node picks one;
`Fourier` is one transform along one axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX_OF, KIND, REAL_PART, DType, is_inexact
from anygpu.program.functions import FourierFunction, LinearFunction
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    PerAxis,
    Primitive,
    RowWise,
    Shape,
    Spec,
    ceil_log2,
    checked,
    complex_weight,
    distinct_axes,
    free_axes,
    hash_of_bits,
    next_axes,
    on_lines,
    on_squares,
    product,
    require_inputs,
    same_bits,
    with_length,
)

if TYPE_CHECKING:
    from anygpu.program.transforms import Batched, Stack

__all__ = ["LINEAR_PARTS", "Attend", "Contract", "Fourier", "Linear"]

# -- products of matrices and their generalisation


class Contract(Primitive, frozen=True):
    """Products summed over pairs of axes. The result has the batch axes, then what is left of each side."""

    left: PerAxis
    right: PerAxis
    left_batch: PerAxis = ()
    right_batch: PerAxis = ()

    family = "contraction"

    def infer(self, *inputs: Spec) -> Spec:
        """Batch axes, then the free axes of the left side, then those of the right.

        Raises `InvalidProgram` where types or paired lengths differ.
        """
        require_inputs(self, inputs, 2)
        x, y = inputs
        if x.dtype != y.dtype:
            raise InvalidProgram(f"contract: {x.dtype} and {y.dtype} differ; cast one of them first.")
        distinct_axes(self, (*self.left, *self.left_batch), x)
        distinct_axes(self, (*self.right, *self.right_batch), y)
        if len(self.left) != len(self.right) or len(self.left_batch) != len(self.right_batch):
            raise InvalidProgram("contract: axes come in pairs, one of each side.")
        pairs = zip((*self.left, *self.left_batch), (*self.right, *self.right_batch), strict=True)
        for one, other in pairs:
            if x.shape[one] != y.shape[other]:
                raise InvalidProgram(f"contract: axis {one} of {x} and axis {other} of {y} differ in length.")
        batch = tuple(x.shape[axis] for axis in self.left_batch)
        rows = tuple(x.shape[axis] for axis in free_axes(x.shape, self.left, self.left_batch))
        columns = tuple(y.shape[axis] for axis in free_axes(y.shape, self.right, self.right_batch))
        return checked(Spec(batch + rows + columns, x.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        """For each side the axes that the result has as well."""
        x, y = inputs
        rows, columns = free_axes(x, self.left, self.left_batch), free_axes(y, self.right, self.right_batch)
        left, right = (*self.left_batch, *rows), (*self.right_batch, *columns)
        stack = len(self.left_batch)
        places = [*range(stack), *range(stack + len(rows), len(result))]
        return [
            [left.index(axis) if axis in left else None for axis in range(len(x))],
            [places[right.index(axis)] if axis in right else None for axis in range(len(y))],
        ]

    def batched(self, stack: Stack, *given: Batched) -> int:
        """The product for all calls at once: one more batch axis, or one more free axis of the side that has it."""
        x, y = given
        left, left_batch = next_axes(self.left), next_axes(self.left_batch)
        right, right_batch = next_axes(self.right), next_axes(self.right_batch)
        if x.stacked and y.stacked:
            whole = Contract(left, right, (0, *left_batch), (0, *right_batch))
            return stack.add(whole, x.position, y.position)
        if x.stacked:  # the new axis is one more free axis of that side, and the first of them
            one = Contract(left, self.right, left_batch, self.right_batch)
            return stack.to_front(stack.add(one, x.position, y.position), len(self.left_batch))
        rows = len(free_axes(stack.shape(x), self.left, self.left_batch))
        other = Contract(self.left, right, self.left_batch, right_batch)
        return stack.to_front(stack.add(other, x.position, y.position), len(self.left_batch) + rows)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        inner = product(tuple(inputs[0].shape[axis] for axis in self.left))
        return 2 * result.size * inner * complex_weight(result)

    def details(self, inputs: Sequence[Spec]) -> str:
        over = ", ".join(f"{left}×{right}" for left, right in zip(self.left, self.right, strict=True)) or "no axes"
        batch = ", ".join(f"{left}×{right}" for left, right in zip(self.left_batch, self.right_batch, strict=True))
        return f"over {over}" + (f", batch {batch}" if batch else "")

    @property
    def may_raise_flags(self) -> bool:
        return True

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        if self.left_batch:
            return Contract((2,), (1,), (0,), (0,)), tuple(Spec((2, 2, 2), spec.dtype) for spec in inputs)
        return Contract((1,), (0,)), on_squares(inputs)


# -- attention as one primitive
#
# So that engines can compute it without ever storing the scores.


class Attend(Primitive, frozen=True):
    """softmax(q · kᵀ · scale + bias) · v over the last two axes; all axes before them go together.

    q is [..., n, d], k [..., m, d], v [..., m, e], and bias, if there is one, [..., n, m]. With `causal` the last query
    sees all keys, the one before it all but the last, and so on. A query that sees no key has NaN for its result.
    """

    scale: float
    causal: bool = False

    family = "contraction"
    has_own_kernels = True

    __eq__ = same_bits
    __hash__ = hash_of_bits

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of queries with the width of the values.

        Raises `InvalidProgram` where shapes or types do not match.
        """
        if len(inputs) not in (3, 4):
            raise InvalidProgram(f"attend: takes 3 or 4 inputs, not {len(inputs)}.")
        if not math.isfinite(self.scale):
            raise InvalidProgram(f"attend: {self.scale} is not a scale.")
        q, _, v = inputs[:3]
        if any(each.dtype != q.dtype for each in inputs) or KIND[q.dtype] != "float":
            raise InvalidProgram(
                f"attend: takes floats of one type, not {', '.join(each.dtype for each in inputs)}; cast them first."
            )
        if min(len(each.shape) for each in inputs) < 2:
            raise InvalidProgram("attend: every input has at least two axes.")
        stack = q.shape[:-2]
        (n, d), (m, e) = q.shape[-2:], v.shape[-2:]
        wanted = ((*stack, n, d), (*stack, m, d), (*stack, m, e), (*stack, n, m))
        for name, spec, shape in zip(("q", "k", "v", "bias"), inputs, wanted, strict=False):
            if spec.shape != shape:
                raise InvalidProgram(
                    f"attend: {name} must have the shape {shape} to match the others, not {spec.shape}."
                )
        return checked(Spec((*stack, n, e), q.dtype))

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        """Queries are independent of one another, unless how many keys one sees depends on where it is."""
        stack = list(range(len(result) - 2))
        row = None if self.causal else len(result) - 2
        of_all = [[*stack, row, None], [*stack, None, None], [*stack, None, len(result) - 1], [*stack, row, None]]
        return of_all[: len(inputs)]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(self, *(stack.lifted(each) for each in given))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        scores = inputs[0].size // max(inputs[0].shape[-1], 1) * inputs[1].shape[-2]
        return 2 * scores * (inputs[0].shape[-1] + result.shape[-1]) // (2 if self.causal else 1)

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"scaled by {self.scale:g}" + (", causal" if self.causal else "")

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return self, on_squares(inputs)


# -- linear algebra: decompositions, systems of equations, determinants


#: The names of the results of each decomposition; `part` picks one.
_PARTS: dict[LinearFunction, tuple[str, ...]] = {
    "slogdet": ("sign", "logabsdet"),
    "qr": ("Q", "R"),
    "svd": ("U", "S", "Vh"),
    "eigh": ("eigenvalues", "eigenvectors"),
    "eig": ("eigenvalues", "eigenvectors"),
}
#: How many results each decomposition has.
LINEAR_PARTS: dict[LinearFunction, int] = {fn: len(parts) for fn, parts in _PARTS.items()}


class Linear(Primitive, frozen=True):
    """Linear algebra on matrices in the last two axes. Of several results, `part` picks one."""

    fn: LinearFunction
    part: int = 0
    #: Full square factors of `qr` and `svd`.
    full: bool = False

    family = "linear"
    has_own_kernels = True
    scratch_copies = 2

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of the chosen part. Raises `InvalidProgram` for types and shapes that the function does not take."""
        require_inputs(self, inputs, 2 if self.fn == "solve" else 1)
        a = inputs[0]
        if len(a.shape) < 2 or a.dtype not in ("float32", "float64", "complex64", "complex128"):
            raise InvalidProgram(f"{self.fn}: needs matrices of float32, float64 or complex numbers, not {a}.")
        *stack, rows, columns = a.shape
        if self.fn not in ("qr", "svd", "svdvals") and rows != columns:
            raise InvalidProgram(f"{self.fn}: needs square matrices, not {a}.")
        if not 0 <= self.part < LINEAR_PARTS.get(self.fn, 1):
            raise InvalidProgram(f"{self.fn}: has no part {self.part}.")
        if self.fn == "solve":
            b = inputs[1]
            if b.dtype != a.dtype or b.shape[:-1] != a.shape[:-1] or len(b.shape) != len(a.shape):
                raise InvalidProgram(f"solve: {b} does not fit to {a}.")
            return b
        return checked(Spec((*stack, *self._shape(rows, columns)), self._dtype(a.dtype)))

    def _shape(self, rows: int, columns: int) -> Shape:
        """The last axes of the chosen part for matrices of this size."""
        least = min(rows, columns)
        match self.fn:
            case "cholesky" | "inv":
                return (rows, rows)
            case "det" | "slogdet":
                return ()
            case "svdvals":
                return (least,)
            case "eigvalsh":
                return (rows,)
            case "eigh" | "eig":
                return (rows,) if self.part == 0 else (rows, rows)
            case "qr":
                inner = rows if self.full else least
                return (rows, inner) if self.part == 0 else (inner, columns)
            case "svd":
                sides = ((rows, rows if self.full else least), (least,), (columns if self.full else least, columns))
                return sides[self.part]
        raise InvalidProgram(f"{self.fn}: is not known.")

    def _dtype(self, dtype: DType) -> DType:
        if self.fn == "eig":
            return COMPLEX_OF.get(dtype, "complex128") if dtype not in REAL_PART else dtype
        real = {("svd", 1), ("svdvals", 0), ("eigh", 0), ("eigvalsh", 0), ("slogdet", 1)}
        return REAL_PART.get(dtype, dtype) if (self.fn, self.part) in real else dtype

    @property
    def label(self) -> str:
        return f"{self.fn}.{_PARTS[self.fn][self.part]}" if self.fn in _PARTS else self.fn

    @property
    def first_result(self) -> Primitive | None:
        return msgspec.structs.replace(self, part=0)

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        stack = list(range(len(inputs[0]) - 2))
        if self.fn == "solve":  # every right-hand side is a problem of its own
            return [[*stack, None, None], [*stack, None, len(result) - 1]]
        return [[*stack, None, None]]

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(self, *(stack.lifted(each) for each in given))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        """The usual counts of textbooks (Golub and Van Loan), for matrices of m × n with m ≥ n."""
        *stack, rows, columns = inputs[0].shape
        n, m = sorted((rows, columns))
        each = {
            "cholesky": n**3 // 3,
            "inv": 2 * n**3,
            "solve": 2 * n**3 // 3 + 2 * n**2 * (inputs[-1].shape[-1]),
            "det": 2 * n**3 // 3,
            "slogdet": 2 * n**3 // 3,
            "qr": 4 * m**2 * n if self.full else 4 * m * n**2,
            "svd": 4 * m**2 * n + 22 * n**3 if self.full else 14 * m * n**2 + 8 * n**3,
            "svdvals": 4 * m * n**2,
            "eigh": 9 * n**3,
            "eigvalsh": 4 * n**3 // 3,
            "eig": 25 * n**3,
        }
        return each[self.fn] * product(tuple(stack)) * complex_weight(inputs[0])

    def details(self, inputs: Sequence[Spec]) -> str:
        return "full" if self.full else ""

    @property
    def may_raise_flags(self) -> bool:
        return True

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return msgspec.structs.replace(self, part=0), on_squares(inputs)


# -- discrete Fourier transforms


#: From such a prime factor on, a transform is computed as a convolution.
_LARGE_PRIME = 50


class Fourier(RowWise, frozen=True):
    """The discrete Fourier transform along an axis. Forward is unscaled, inverse is divided by the length.

    `length` is that of the result for "irfft", where the input does not tell, and of the input otherwise.
    """

    fn: FourierFunction
    axis: int
    length: int

    family = "fourier"
    scratch_copies = 2

    def infer(self, *inputs: Spec) -> Spec:
        """The spec of the transform: complex for "rfft", with half of the frequencies, and real for "irfft".

        Raises `InvalidProgram` where the length does not fit the axis.
        """
        require_inputs(self, inputs, 1)
        (x,) = inputs
        distinct_axes(self, (self.axis,), x)
        given = x.shape[self.axis]
        wanted = self.length // 2 + 1 if self.fn == "irfft" else self.length
        if self.length < 1 or given != wanted:
            raise InvalidProgram(f"{self.fn}: a transform of length {self.length} does not fit {x}.")
        if (KIND[x.dtype] == "complex") == (self.fn == "rfft") or not is_inexact(x.dtype):
            raise InvalidProgram(f"{self.fn}: is not defined for {x.dtype}; cast it first.")
        length = self.length // 2 + 1 if self.fn == "rfft" else self.length
        dtype = x.dtype
        if self.fn == "rfft":
            dtype = COMPLEX_OF.get(x.dtype, "complex128")
        elif self.fn == "irfft":
            dtype = REAL_PART[x.dtype]
        return checked(Spec(with_length(x.shape, self.axis, length), dtype))

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        half = 2 if self.fn in ("rfft", "irfft") else 1
        whole = max(inputs[0], result, key=lambda spec: spec.shape[self.axis]).size
        return 5 * whole * ceil_log2(self.length) // half

    def weight(self, dtype: DType) -> float:
        # A length with a large prime factor makes it a convolution of more than twice that length.
        return 4.0 if _largest_prime(self.length) > _LARGE_PRIME else 1.0

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"of length {self.length} along axis {self.axis}"

    @property
    def may_raise_flags(self) -> bool:
        return True

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Fourier(self.fn, 0, 2), on_lines(inputs)


def _largest_prime(number: int) -> int:
    """The largest prime factor."""
    factor = 2
    while factor * factor <= number:
        number, factor = (number // factor, factor) if number % factor == 0 else (number, factor + 1)
    return number
