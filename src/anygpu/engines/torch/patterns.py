"""Finds what torch has one function for: linear layers, layer norms, gelu and softmax that a program spells out.

Only forms that mean the same within the published tolerances are found, and only where nothing else needs the steps
between: a value that is wanted anyway is not computed twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch

from anygpu.engines.codegen.value_analysis import uniform_numbers
from anygpu.engines.torch.elementwise import Step
from anygpu.program.graph import Program
from anygpu.program.primitives import Binary, Broadcast, Contract, Primitive, Reduce, Reshape, Unary

_DTYPES = ("float32", "float64")
#: Of shorter rows the difference between torch's way to a norm and NumPy's may be more than what sums allow.
_SHORTEST_ROW = 8


class LinearPattern(NamedTuple):
    """x [..., in] times a matrix, plus a bias [out]. The matrix is [out, in], or [in, out] if `turned`."""

    x: int
    matrix: int
    bias: int
    turned: bool


class LayerNorm(NamedTuple):
    """The last axes with mean 0 and variance 1, times a weight and plus a bias of their shape."""

    x: int
    shape: tuple[int, ...]
    eps: float
    weight: int | None = None
    bias: int | None = None


class Gelu(NamedTuple):
    """The activation gelu, in one of torch's two forms."""

    x: int
    #: As torch has it.
    approximate: Literal["none", "tanh"]


class Softmax(NamedTuple):
    x: int
    axis: int


Pattern = LinearPattern | LayerNorm | Gelu | Softmax


def found(program: Program) -> dict[int, Pattern]:
    """The patterns by the node that they compute; the longest, where one is a part of another."""
    reader = _Reader(program)
    result: dict[int, Pattern] = {}
    taken: set[int] = set()
    for node in reversed(range(len(program.nodes))):
        if node in taken or program.specs[node].dtype not in _DTYPES or not program.specs[node].size:
            continue
        for find in (_layer_norm, _linear, _gelu, _softmax):
            reader.inside = set()
            pattern = find(reader, node)
            if pattern is not None and reader.are_private(node):
                result[node] = pattern
                taken |= reader.inside
                break
    return result


def needed(program: Program, patterns: dict[int, Pattern]) -> set[int]:
    """The nodes that the outputs need, if patterns are computed from their sources."""
    result: set[int] = set()
    waiting = [*program.outputs]
    while waiting:
        node = waiting.pop()
        if node not in result:
            result.add(node)
            waiting += sources(patterns[node]) if node in patterns else program.nodes[node].inputs
    return result


def sources(pattern: Pattern) -> tuple[int, ...]:
    """The nodes that a pattern reads."""
    match pattern:
        case LinearPattern():
            return pattern.x, pattern.matrix, pattern.bias
        case LayerNorm():
            return tuple(each for each in (pattern.x, pattern.weight, pattern.bias) if each is not None)
        case Gelu() | Softmax():
            return (pattern.x,)


class _Reader:
    """Walks up a program from a node, and notes the nodes that a pattern would do away with."""

    def __init__(self, program: Program) -> None:
        """Read a program. `inside` collects the steps that a pattern would replace."""
        self.program = program
        self.inside: set[int] = set()
        self._numbers = uniform_numbers(program)
        self._consumers: dict[int, list[int]] = {}
        for node, (_, inputs) in enumerate(program.nodes):
            for source in inputs:
                self._consumers.setdefault(source, []).append(node)
        for output in program.outputs:
            self._consumers.setdefault(output, []).append(-1)

    def are_private(self, root: int) -> bool:
        """Whether nothing but the pattern itself needs the steps between."""
        inner = self.inside - {root}
        return all(user in inner or user == root for node in inner for user in self._consumers[node])

    def number(self, node: int) -> Any:
        return self._numbers.get(node)

    def is_number(self, node: int, wanted: float) -> bool:
        """Whether it is a number everywhere: the wanted one as its type has it."""
        value = self.number(node)
        return value is not None and math.isclose(value, wanted, rel_tol=1e-7, abs_tol=0.0)

    def op(self, node: int) -> Primitive:
        return self.program.nodes[node].op

    def shape(self, node: int) -> tuple[int, ...]:
        return self.program.specs[node].shape

    def unary(self, node: int, fn: str) -> int | None:
        """The operand of a function."""
        op = self.op(node)
        if not isinstance(op, Unary) or op.fn != fn:
            return None
        self.inside.add(node)
        return self.program.nodes[node].inputs[0]

    def binary(self, node: int, fn: str) -> tuple[int, int] | None:
        """The operands of a function of two, and note the step; `None` where the node is something else."""
        op = self.op(node)
        if not isinstance(op, Binary) or op.fn != fn:
            return None
        self.inside.add(node)
        first, second = self.program.nodes[node].inputs
        return first, second

    def either_way(self, node: int, fn: str) -> Iterator[tuple[int, int]]:
        """The operands of a function that does not mind their order, both ways round."""
        pair = self.binary(node, fn)
        if pair is not None:
            yield pair
            yield pair[::-1]

    def plus(self, node: int, wanted: float) -> int | None:
        """The operand that a number is added to."""
        return next((rest for number, rest in self.either_way(node, "add") if self.is_number(number, wanted)), None)

    def factors(self, node: int) -> tuple[float, list[int]]:
        """A product of several: the numbers among its factors, multiplied, and the others."""
        if self.number(node) is not None:
            return float(self.number(node)), []
        pair = self.binary(node, "multiply") if self.shape(node) else None
        if pair is None:
            return 1.0, [node]
        (one, first), (two, second) = (self.factors(each) for each in pair)
        return one * two, [*first, *second]

    def repeated(self, node: int) -> int | None:
        """The value, with 1 for the length of what was reduced, that is repeated along the last axes."""
        if not isinstance(self.op(node), Broadcast):
            return None
        self.inside.add(node)
        return self.program.nodes[node].inputs[0]

    def reduced(self, node: int, fn: str) -> tuple[int, tuple[int, ...]] | None:
        """The operand and the axes of a reduction that keeps them with length 1."""
        if not isinstance(self.op(node), Reshape):
            return None
        (inner,) = self.program.nodes[node].inputs
        op = self.op(inner)
        if not isinstance(op, Reduce) or op.fn != fn:
            return None
        (source,) = self.program.nodes[inner].inputs
        kept = tuple(1 if axis in op.axes else length for axis, length in enumerate(self.shape(source)))
        if self.shape(node) != kept:
            return None
        self.inside |= {node, inner}
        return source, op.axes

    def mean(self, node: int) -> tuple[int, tuple[int, ...]] | None:
        """The operand and the axes of a mean."""
        pair = self.binary(node, "divide")
        total = self.reduced(pair[0], "sum") if pair is not None else None
        if pair is None or total is None:
            return None
        lengths = [self.shape(total[0])[axis] for axis in total[1]]
        return total if self.is_number(pair[1], math.prod(lengths)) else None

    def along_the_end(self, node: int, lengths: tuple[int, ...]) -> int | None:
        """The value of a shape that is repeated along all axes in front."""
        if not isinstance(self.op(node), Broadcast):
            return None
        (source,) = self.program.nodes[node].inputs
        if isinstance(self.op(source), Reshape) and self.shape(source)[-len(lengths) :] == lengths:
            (before,) = self.program.nodes[source].inputs
            if self.shape(before) == lengths and math.prod(self.shape(source)) == math.prod(lengths):
                return before
        return source if self.shape(source) == lengths else None


def _linear(reader: _Reader, node: int) -> LinearPattern | None:
    """A product with a matrix plus a vector, as `torch.nn.functional.linear`; `None` where it is none."""
    for product, added in reader.either_way(node, "add"):
        op = reader.op(product)
        if not isinstance(op, Contract) or op.left_batch or op.right_batch:
            continue
        x, matrix = reader.program.nodes[product].inputs
        last = len(reader.shape(x)) - 1
        if op.left != (last,) or last < 1 or len(reader.shape(matrix)) != 2 or len(op.right) != 1:
            continue
        bias = reader.along_the_end(added, reader.shape(node)[-1:])
        if bias is not None:
            reader.inside.add(product)
            return LinearPattern(x, matrix, bias, turned=op.right == (0,))
    return None


def _layer_norm(reader: _Reader, node: int) -> LayerNorm | None:
    """A layer norm with weight and bias, or without one of them; `None` where it is none."""
    for scaled, shift in reader.either_way(node, "add"):
        norm = _weighted(reader, scaled)
        bias = reader.along_the_end(shift, norm.shape) if norm is not None else None
        if norm is not None and bias is not None:
            return norm._replace(bias=bias)
    reader.inside = set()
    return _weighted(reader, node)


def _weighted(reader: _Reader, node: int) -> LayerNorm | None:
    """A layer norm times a weight along the end, or a bare one."""
    before = set(reader.inside)
    for inner, factor in reader.either_way(node, "multiply"):
        norm = _normalised(reader, inner)
        weight = reader.along_the_end(factor, norm.shape) if norm is not None else None
        if norm is not None and weight is not None:
            return norm._replace(weight=weight)
    reader.inside = before
    return _normalised(reader, node)


def _normalised(reader: _Reader, node: int) -> LayerNorm | None:
    """(x - mean) / sqrt(variance + eps), or times 1 / sqrt(…)."""
    pair = reader.binary(node, "divide")
    if pair is not None:
        return _centred_over(reader, pair[0], reader.repeated(pair[1]))
    for centred, factor in reader.either_way(node, "multiply"):
        inverse = reader.repeated(factor)
        parts = reader.binary(inverse, "divide") if inverse is not None else None
        if parts is not None and reader.is_number(parts[0], 1.0):
            return _centred_over(reader, centred, parts[1])
    return None


def _centred_over(reader: _Reader, centred: int, deviation: int | None) -> LayerNorm | None:
    """A layer norm without weights: centred values over the root of their variance plus a constant.

    Only over the last axes, and over rows that are long enough for torch's function to pay.
    """
    variance = reader.unary(deviation, "sqrt") if deviation is not None else None
    centring = reader.binary(centred, "subtract")
    if variance is None or centring is None:
        return None
    mean = reader.repeated(centring[1])
    average = reader.mean(mean) if mean is not None else None
    if average is None or average[0] != centring[0]:
        return None
    x, axes = average
    shape = reader.shape(x)
    length = math.prod(shape[axis] for axis in axes)
    if axes != tuple(range(len(shape) - len(axes), len(shape))) or length < _SHORTEST_ROW:
        return None
    for square, eps in reader.either_way(variance, "add"):
        spread = reader.mean(square)
        if reader.number(eps) is None or spread is None or spread[1] != axes:
            continue
        if reader.binary(spread[0], "multiply") == (centred, centred) and reader.number(eps) > 0:
            return LayerNorm(x, shape[len(shape) - len(axes) :], float(reader.number(eps)))
    return None


def _gelu(reader: _Reader, node: int) -> Gelu | None:
    """x times the normal distribution of x, exactly or by the cubic formula; `None` where it is neither."""
    constant, factors = reader.factors(node)
    if constant != 0.5 or len(factors) != 2:
        return None
    for x, share in (factors, factors[::-1]):
        function = reader.plus(share, 1.0)
        if function is None:
            continue
        inner = reader.unary(function, "erf")
        if inner is not None and _is_scaled(reader, inner, x, math.sqrt(0.5)):
            return Gelu(x, "none")
        inner = reader.unary(function, "tanh")
        if inner is not None and _is_gelu_cubic(reader, inner, x):
            return Gelu(x, "tanh")
    return None


def _is_scaled(reader: _Reader, node: int, x: int, scale: float) -> bool:
    """Whether a node is x times a constant, or divided by its inverse."""
    pair = reader.binary(node, "divide")
    if pair is not None:
        return pair[0] == x and reader.is_number(pair[1], 1 / scale)
    constant, factors = reader.factors(node)
    return factors == [x] and math.isclose(constant, scale, rel_tol=1e-7)


def _is_gelu_cubic(reader: _Reader, node: int, x: int) -> bool:
    """sqrt(2 / pi) * (x + 0.044715 * x * x * x)."""
    scale, factors = reader.factors(node)
    if len(factors) != 1 or not math.isclose(scale, math.sqrt(2 / math.pi), rel_tol=1e-7):
        return False
    for own, rest in reader.either_way(factors[0], "add"):
        small, powers = reader.factors(rest)
        if own == x and powers == [x, x, x] and math.isclose(small, 0.044715, rel_tol=1e-7):
            return True
    return False


def _softmax(reader: _Reader, node: int) -> Softmax | None:
    """Match exp(x - max) over its sum."""
    pair = reader.binary(node, "divide")
    below = reader.repeated(pair[1]) if pair is not None else None
    total = reader.reduced(below, "sum") if below is not None else None
    if pair is None or total is None or total[0] != pair[0] or len(total[1]) != 1:
        return None
    shifted = reader.unary(pair[0], "exp")
    parts = reader.binary(shifted, "subtract") if shifted is not None else None
    most = reader.repeated(parts[1]) if parts is not None else None
    greatest = reader.reduced(most, "max") if most is not None else None
    if parts is None or greatest != (parts[0], total[1]):
        return None
    return Softmax(parts[0], total[1][0])


# -- patterns of a program as calls of torch's own functions, which do many steps at once


_torch_linear: Step = torch.nn.functional.linear


def fused(pattern: Pattern) -> Step:
    """The step from the pattern's sources to its result."""
    match pattern:
        case LinearPattern():
            return _torch_turned_linear if pattern.turned else _torch_linear
        case LayerNorm():
            return _torch_layer_norm(pattern)
        case Gelu(approximate="none"):
            return _torch_gelu
        case Gelu():
            return functools.partial(torch.nn.functional.gelu, approximate=pattern.approximate)
        case Softmax():
            return functools.partial(torch.softmax, dim=pattern.axis)


def _torch_gelu(x: torch.Tensor) -> torch.Tensor:
    """On a processor torch may take oneDNN's, which makes NaN of infinity: a sum tells whether there is one."""
    result = torch.nn.functional.gelu(x)
    if x.is_cpu and not math.isfinite(result.sum().item()):
        return torch.where(x == torch.inf, x, result)
    return result


def _torch_turned_linear(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, matrix.t(), bias)


def _torch_layer_norm(pattern: LayerNorm) -> Step:
    """torch's call of a layer norm with the weights that it has."""
    normalise = torch.nn.functional.layer_norm
    shape, eps = list(pattern.shape), pattern.eps
    if pattern.weight is None and pattern.bias is not None:
        return lambda x, bias: normalise(x, shape, None, bias, eps)
    return lambda x, *parts: normalise(x, shape, *parts, eps=eps)
