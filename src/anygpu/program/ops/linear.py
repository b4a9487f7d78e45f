"""Linear algebra: decompositions, systems of equations, determinants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import COMPLEX_OF, KIND, REAL_PART, DType, is_inexact
from anygpu.program.functions import FourierFunction, LinearFunction
from anygpu.program.primitive import (
    Miniature,
    PassedAxes,
    Primitive,
    Shape,
    Spec,
    all_but,
    ceil_log2,
    checked,
    complex_weight,
    distinct_axes,
    on_lines,
    on_squares,
    product,
    require_inputs,
    with_length,
)

if TYPE_CHECKING:
    from anygpu.program.batching import Batched, Stack

__all__ = ["LINEAR_PARTS", "Fourier", "Linear"]


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


class Fourier(Primitive, frozen=True):
    """The discrete Fourier transform along an axis. Forward is unscaled, inverse is divided by the length.

    `length` is that of the result for "irfft", where the input does not tell, and of the input otherwise.
    """

    fn: FourierFunction
    axis: int
    length: int

    family = "fourier"
    has_own_kernels = True
    scratch_copies = 2

    def infer(self, *inputs: Spec) -> Spec:
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

    @property
    def row_axis(self) -> int:
        return self.axis

    def passed_axes(self, result: Shape, inputs: Sequence[Shape]) -> PassedAxes:
        return all_but(self.axis, inputs)

    def batched(self, stack: Stack, *given: Batched) -> int:
        return stack.add(Fourier(self.fn, self.axis + 1, self.length), given[0].position)

    def flops(self, inputs: Sequence[Spec], result: Spec) -> int:
        half = 2 if self.fn in ("rfft", "irfft") else 1
        whole = max(inputs[0], result, key=lambda spec: spec.shape[self.axis]).size
        return 5 * whole * ceil_log2(self.length) // half

    def details(self, inputs: Sequence[Spec]) -> str:
        return f"of length {self.length} along axis {self.axis}"

    @property
    def may_raise_flags(self) -> bool:
        return True

    def miniature(self, inputs: Sequence[Spec]) -> Miniature | None:
        return Fourier(self.fn, 0, 2), on_lines(inputs)
