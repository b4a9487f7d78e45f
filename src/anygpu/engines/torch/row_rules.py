"""How rows of a batch pass through torch's operators: the axis that they lie along, before and after each of them.

An operator without a rule here is not known to keep rows apart. Every rule says where the rows of a result lie, or
raises `NotProved` with the reason.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from anygpu.program.functions import TRANSCENDENTAL


class NotProved(BaseException):
    """Rows are not known to be independent. Not an `Exception`: the function that is looked at may catch those."""

    reason: str

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RowAxis(NamedTuple):
    """The axis along which rows lie.

    Its size is the product of `outer`, the number of rows, and `inner`: reshaping merges axes, and rows may lie between
    an outer and an inner part of an axis.
    """

    axis: int
    inner: int = 1
    outer: int = 1

    def at(self, axis: int) -> RowAxis:
        return self._replace(axis=axis)


class Operand(NamedTuple):
    """A tensor that an operator takes."""

    value: torch.Tensor
    #: `None` if it does not come from the rows.
    rows: RowAxis | None
    #: Whether it was made with one value everywhere.
    is_even: bool = False

    def is_same_along(self, axis: int) -> bool:
        """Whether it is the same for all places along an axis, which may be one that it gets by broadcasting."""
        if axis < 0 or self.value.size(axis) == 1 or self.is_even:
            return True
        return bool(self.value.stride(axis) == 0)


class Operation(NamedTuple):
    """One use of an operator, with what it has returned."""

    name: str
    #: Its arguments by name, tensors as operands.
    given: dict[str, Any]
    result: Any
    #: How many rows there are.
    rows: int

    def operands(self) -> list[Operand]:
        return list(_operands(self.given.values()))

    def refuse(self, why: str) -> NotProved:
        return NotProved(f"{self.name} {why}")

    def only(self, name: str = "self") -> RowAxis:
        """The rows of that argument; no other one may have any, nor differ between rows."""
        found: Operand = self.given[name]
        if found.rows is None or any(each.rows is not None and each is not found for each in self.operands()):
            raise self.refuse("takes rows where it mixes them")
        return found.rows


Where: TypeAlias = RowAxis | None
Rule: TypeAlias = Callable[[Operation], "Where | list[Where]"]

RULES: dict[str, Rule] = {}
#: Arguments that are sizes, and so may hold the number of rows: their rule has looked at them.
SIZES: dict[str, frozenset[str]] = {}


def rule(*names: str, sizes: Iterable[str] = ()) -> Callable[[Rule], Rule]:
    """Decorate the rule of operators. `sizes` are arguments that may differ with the number of rows."""

    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
            SIZES[name] = frozenset(sizes)
        return function

    return add


def _operands(values: Iterable[Any]) -> Iterable[Operand]:
    """The operands among arguments, in lists too."""
    for each in values:
        if isinstance(each, Operand):
            yield each
        elif isinstance(each, list | tuple):
            yield from _operands(each)


def _axis(axis: int, dimensions: int) -> int:
    return axis + dimensions if axis < 0 else axis


def _aligned(operation: Operation, operands: Sequence[Operand], result: torch.Tensor) -> RowAxis:
    """Where rows lie when operands are broadcast against each other."""
    found = {each.rows.at(each.rows.axis - each.value.dim()) for each in operands if each.rows is not None}
    if len(found) != 1:
        raise operation.refuse("combines rows with other rows")
    (aligned,) = found
    from_end = aligned.axis
    axis = result.dim() + from_end
    if axis < 0 or result.size(axis) != aligned.outer * operation.rows * aligned.inner:
        raise operation.refuse("combines rows with other rows")
    for each in operands:
        if each.rows is None and not each.is_same_along(each.value.dim() + from_end):
            raise operation.refuse("takes a tensor that has another value for each row and does not come from the rows")
    return aligned.at(axis)


#: Beside `TRANSCENDENTAL`, of which those that torch has have the same names there.
_ELEMENTWISE = (
    "_prelu_kernel _to_copy abs add addcdiv addcmul alias bitwise_and bitwise_left_shift bitwise_not bitwise_or "
    "bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clone copy copysign detach div elu "
    "empty_like eq erfc fill floor fmax fmin frac full_like ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf "
    "isnan le leaky_relu lerp lift_fresh log_sigmoid_forward logaddexp logical_and logical_not logical_or logical_xor "
    "logit lt masked_fill maximum minimum mish mul nan_to_num ne neg ones_like pow reciprocal relu relu6 round rsqrt "
    "rsub selu sgn sigmoid sign signbit silu sinc softplus softshrink special_erf square sub threshold trunc where "
    "xlogy zero zeros_like"
)


@rule(*TRANSCENDENTAL, *_ELEMENTWISE.split(), sizes=("memory_format", "device", "layout", "pin_memory"))
def _elementwise(operation: Operation) -> Where | list[Where]:
    """Rows after an elementwise operation, where all operands have them at the same place."""
    if isinstance(operation.result, torch.Tensor):
        return _aligned(operation, operation.operands(), operation.result)
    return [_aligned(operation, operation.operands(), each) for each in operation.result]


# -- products


@rule("mm", "addmm")
def _product(operation: Operation) -> Where:
    """Rows of a product of two matrices: of the left one's rows, or of the right one's columns."""
    one: Operand = operation.given["mat1" if "mat1" in operation.given else "self"]
    other: Operand = operation.given["mat2"]
    if one.rows is not None and one.rows.axis == 0 and other.rows is None:
        where = one.rows
    elif other.rows is not None and other.rows.axis == 1 and one.rows is None:
        where = other.rows
    else:
        raise operation.refuse("multiplies and adds over the rows, or rows with rows")
    if operation.name == "addmm":
        # The bias is broadcast to the product.
        bias: Operand = operation.given["self"]
        _aligned(operation, [bias, Operand(operation.result, where)], operation.result)
    return where


@rule("bmm", "baddbmm")
def _batched_product(operation: Operation) -> Where:
    """Rows of a stack of products: a matrix for each row, or rows within all matrices."""
    names = ("batch1", "batch2") if operation.name == "baddbmm" else ("self", "mat2")
    one, other = (operation.given[name] for name in names)
    places = {each.rows for each in (one, other) if each.rows is not None}
    if len(places) != 1:
        raise operation.refuse("multiplies rows with other rows")
    where: RowAxis = places.pop()
    if where.axis == 0:
        if not all(each.rows is not None or each.is_same_along(0) for each in (one, other)):
            raise operation.refuse("takes another matrix for each row that does not come from the rows")
    elif one.rows is not None and other.rows is not None:
        raise operation.refuse("multiplies rows with other rows")
    elif (one.rows is not None and where.axis != 1) or (other.rows is not None and where.axis != 2):
        raise operation.refuse("adds over the rows")
    if operation.name == "baddbmm":
        _aligned(operation, [operation.given["self"], Operand(operation.result, where)], operation.result)
    return where


# -- movements


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", sizes=("size", "shape", "stride"))
def _reshaped(operation: Operation) -> Where:
    """Rows after a reshape, where an axis of the result still counts them. Refuses to mix rows."""
    where = operation.only()
    shape, new = operation.given["self"].value.shape, operation.result.shape
    before = where.outer * math.prod(shape[: where.axis])
    rest = where.inner * math.prod(shape[where.axis + 1 :])
    for axis, size in enumerate(new):
        outer, no_outer = divmod(before, math.prod(new[:axis]) or 1)
        inner, no_inner = divmod(rest, math.prod(new[axis + 1 :]) or 1)
        if size and not no_outer and not no_inner and size == outer * operation.rows * inner:
            return RowAxis(axis, inner, outer)
    raise operation.refuse("puts values of different rows into one")


@rule("expand", sizes=("size",))
def _expanded(operation: Operation) -> Where:
    """Rows after a broadcast that does not repeat them."""
    where = operation.only()
    given: torch.Tensor = operation.given["self"].value
    axis = where.axis + operation.result.dim() - given.dim()
    if operation.result.size(axis) != given.size(where.axis):
        raise operation.refuse("repeats rows")
    return where.at(axis)


@rule("repeat")
def _repeated(operation: Operation) -> Where:
    """Rows after repeats of other axes."""
    where = operation.only()
    axis = where.axis + operation.result.dim() - operation.given["self"].value.dim()
    if operation.given["repeats"][axis] != 1:
        raise operation.refuse("repeats rows")
    return where.at(axis)


@rule("permute")
def _permuted(operation: Operation) -> Where:
    """Rows after a permutation."""
    where = operation.only()
    dims = [_axis(each, operation.result.dim()) for each in operation.given["dims"]]
    return where.at(dims.index(where.axis))


@rule("transpose", "t")
def _transposed(operation: Operation) -> Where:
    """Rows after two axes are exchanged."""
    where, dimensions = operation.only(), operation.result.dim()
    one, other = (_axis(operation.given.get(name, default), dimensions) for name, default in (("dim0", 0), ("dim1", 1)))
    swapped = {one: other, other: one}
    return where.at(swapped.get(where.axis, where.axis))


@rule("unsqueeze")
def _unsqueezed(operation: Operation) -> Where:
    """Rows after a new axis."""
    where = operation.only()
    axis = _axis(operation.given["dim"], operation.result.dim())
    return where.at(where.axis + (axis <= where.axis))


@rule("squeeze")
def _squeezed(operation: Operation) -> Where:
    """Rows after axes of length 1 are dropped. The rows' own axis must stay, also for a single row."""
    where = operation.only()
    given: torch.Tensor = operation.given["self"].value
    asked = operation.given.get("dim")
    among = range(given.dim()) if asked is None else [asked] if isinstance(asked, int) else asked
    gone = {axis for axis in (_axis(each, given.dim()) for each in among) if given.size(axis) == 1}
    if where.axis in gone:
        raise operation.refuse("removes the axis of the rows when there is one row")
    return where.at(where.axis - sum(each < where.axis for each in gone))


@rule("slice")
def _sliced(operation: Operation) -> Where:
    """Rows after a slice of other axes; a slice of some rows is refused."""
    where = operation.only()
    if _axis(operation.given.get("dim", 0), operation.result.dim()) == where.axis:
        # A number that is beyond these rows may not be beyond more of them.
        begin, end, step = (operation.given.get(name) for name in ("start", "end", "step"))
        if begin or (end is not None and end < sys.maxsize) or step not in (None, 1):
            raise operation.refuse("takes some of the rows")
    return where


@rule("select", "unbind")
def _selected(operation: Operation) -> Where | list[Where]:
    """Rows after one position of another axis is taken."""
    where = operation.only()
    axis = _axis(operation.given.get("dim", 0), operation.given["self"].value.dim())
    if axis == where.axis:
        raise operation.refuse("takes rows by their place in the batch")
    found = where.at(where.axis - (axis < where.axis))
    return found if isinstance(operation.result, torch.Tensor) else [found] * len(operation.result)


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unsafe_chunk")
def _split(operation: Operation) -> list[Where]:
    """Rows after a split of another axis."""
    where = operation.only()
    if _axis(operation.given.get("dim", 0), operation.given["self"].value.dim()) == where.axis:
        raise operation.refuse("splits the rows")
    return [where] * len(operation.result)


@rule("cat")
def _concatenated(operation: Operation) -> Where:
    """Rows after a concatenation along another axis, with tensors that are the same for all rows."""
    dimensions = operation.result.dim()
    axis = _axis(operation.given.get("dim", 0), dimensions)
    operands: list[Operand] = list(operation.given["tensors"])
    places = {each.rows for each in operands if each.rows is not None}
    if len(places) != 1 or axis == next(iter(places)).axis:
        raise operation.refuse("puts rows after other rows")
    (where,) = places
    if not all(each.rows is not None or each.is_same_along(where.axis) for each in operands):
        raise operation.refuse("takes a tensor that has another value for each row and does not come from the rows")
    return where


@rule("stack")
def _stacked(operation: Operation) -> Where:
    """Rows after a stack along a new axis."""
    axis = _axis(operation.given.get("dim", 0), operation.result.dim())
    operands: list[Operand] = list(operation.given["tensors"])
    where = _aligned(operation, operands, operands[0].value)
    return where.at(where.axis + (axis <= where.axis))


@rule("constant_pad_nd", *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def _padded(operation: Operation) -> Where:
    """Rows after padding other axes."""
    where = operation.only()
    pad = operation.given.get("pad", operation.given.get("padding", ()))
    if where.axis >= operation.result.dim() - len(pad) // 2:
        raise operation.refuse("pads the rows")
    return where


@rule("tril", "triu")
def _triangle(operation: Operation) -> Where:
    return _before_last(operation, 2)


@rule("pixel_shuffle", "pixel_unshuffle")
def _shuffled(operation: Operation) -> Where:
    return _before_last(operation, 3)


def _before_last(operation: Operation, dimensions: int, name: str = "self") -> RowAxis:
    """Rows that are not among the last axes, along which an operation works."""
    where = operation.only(name)
    if where.axis >= operation.given[name].value.dim() - dimensions:
        raise operation.refuse("works across the rows")
    return where


# -- along an axis


@rule(
    *("sum", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "max", "min", "var", "std", "var_mean"),
    *("std_mean", "logsumexp", "linalg_vector_norm", "median", "norm", "count_nonzero"),
)
def _reduced(operation: Operation) -> Where | list[Where]:
    """Rows after a reduction over other axes."""
    where = operation.only()
    dimensions = operation.given["self"].value.dim()
    asked = operation.given.get("dim")
    if asked is None or asked == []:
        raise operation.refuse("takes all rows together")
    gone = {_axis(each, dimensions) for each in ([asked] if isinstance(asked, int) else asked)}
    if where.axis in gone:
        raise operation.refuse("takes all rows together")
    shift = 0 if operation.given.get("keepdim") else sum(each < where.axis for each in gone)
    found = where.at(where.axis - shift)
    return found if isinstance(operation.result, torch.Tensor) else [found] * len(operation.result)


@rule("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "sort", "topk", "argsort", "flip", "glu", "roll")
def _along(operation: Operation) -> Where | list[Where]:
    """Rows after an operation along other axes, such as a sort."""
    where = operation.only()
    dimensions = operation.given["self"].value.dim()
    asked = operation.given.get("dim", operation.given.get("dims", -1))
    axes = [asked] if isinstance(asked, int) else asked
    if not axes or where.axis in {_axis(each, dimensions) for each in axes}:
        raise operation.refuse("works along the rows")
    return where if isinstance(operation.result, torch.Tensor) else [where] * len(operation.result)


@rule("index_select")
def _index_selected(operation: Operation) -> Where:
    """Rows after a selection along another axis."""
    where = operation.only()
    if _axis(operation.given["dim"], operation.result.dim()) == where.axis:
        raise operation.refuse("takes rows by their place in the batch")
    return where


@rule("gather")
def _gathered(operation: Operation) -> Where:
    """Rows after a gather along another axis, by an index of the same rows."""
    given, index = operation.given["self"], operation.given["index"]
    if given.rows is None or given.rows != index.rows:
        raise operation.refuse("takes rows by their place in the batch")
    if _axis(operation.given["dim"], operation.result.dim()) == given.rows.axis:
        raise operation.refuse("takes rows by their place in the batch")
    where: RowAxis = given.rows
    return where


@rule("index")
def _indexed(operation: Operation) -> Where:
    """Rows after indexing axes behind them."""
    where = operation.only()
    indices = operation.given["indices"]
    first = next((axis for axis, each in enumerate(indices) if each is not None), len(indices))
    if where.axis >= first:
        raise operation.refuse("takes rows by their place in the batch")
    return where


@rule("embedding")
def _embedded(operation: Operation) -> Where:
    return operation.only("indices")


# -- layers


@rule("native_layer_norm", "_fused_rms_norm", "rms_norm")
def _layer_norm(operation: Operation) -> Where | list[Where]:
    where = _before_last(operation, len(operation.given["normalized_shape"]), "input")
    return where if isinstance(operation.result, torch.Tensor) else [where] * len(operation.result)


@rule("native_group_norm", sizes=("N",))
def _group_norm(operation: Operation) -> list[Where]:
    """Rows after a group norm: the batch axis alone."""
    where = operation.only("input")
    if where.axis != 0:
        raise operation.refuse("works across the rows")
    return [where] * 3


@rule(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    *("miopen_batch_norm", "_batch_norm_no_update"),
)
def _batch_norm(operation: Operation) -> list[Where]:
    """Rows after a batch norm with fixed statistics; with those of the batch only as an instance norm."""
    where = operation.only("input")
    trains = operation.given.get("training", operation.given.get("train", False))
    if trains or operation.given.get("running_mean") is None:
        if where.axis != 1:
            raise operation.refuse("takes its statistics over all rows, as the module is in training mode")
        return [where] * len(operation.result)  # an instance norm: a row's channels are channels of its own
    if where.axis == 1:
        raise operation.refuse("takes the rows for channels")
    return [where, *[None] * (len(operation.result) - 1)]


@rule("convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution", "miopen_convolution")
def _convolved(operation: Operation) -> Where:
    """Rows after a convolution: the batch axis alone."""
    where = operation.only("input" if "input" in operation.given else "self")
    if where.axis != 0:
        raise operation.refuse("takes the rows for channels or places")
    return where


@rule(
    *(f"{kind}{n}d" for kind in ("avg_pool", "_adaptive_avg_pool", "adaptive_avg_pool") for n in (1, 2, 3)),
    *(
        f"{kind}{n}d"
        for kind in ("upsample_nearest", "_upsample_nearest_exact", "adaptive_max_pool")
        for n in (1, 2, 3)
    ),
    *(f"max_pool{n}d_with_indices" for n in (2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
)
def _pooled(operation: Operation) -> Where | list[Where]:
    """Rows after pooling: axes before channels and places."""
    spatial = next(int(letter) for letter in operation.name if letter.isdigit())
    where = _before_last(operation, spatial + 1)
    return where if isinstance(operation.result, torch.Tensor) else [where] * len(operation.result)


@rule(
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    "_scaled_dot_product_attention_math",
)
def _attention(operation: Operation) -> list[Where]:
    """Rows after attention within each row: the rows are a batch axis."""
    parts: list[Operand] = [operation.given[name] for name in ("query", "key", "value")]
    places = {each.rows for each in parts if each.rows is not None}
    result: torch.Tensor = operation.result[0]
    if len(places) != 1 or next(iter(places)).axis >= result.dim() - 2:
        raise operation.refuse("lets rows attend to other rows")
    if operation.given.get("dropout_p"):
        raise operation.refuse("drops values at random")
    mask = operation.given.get("attn_mask", operation.given.get("attn_bias"))
    where = _aligned(operation, parts if mask is None else [*parts, mask], result)
    # The others are for a backward pass.
    return [where, *[None] * (len(operation.result) - 1)]
