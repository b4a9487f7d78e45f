"""The gradients of a whole batch, from micro-batches.

A loss that is a mean or a sum over rows is weighted, and each micro-batch goes through the module once. For all others,
each goes through twice: first without gradients, for the loss and its gradient with respect to the outputs of all rows,
then with that gradient, on the same random numbers. Both give the gradients of the whole batch.

The first half finds out how a loss combines (`Combining`): `known` for torch's own, `found_by_values` for others. The
second half computes: `StepCalling` calls the module and the loss with a batch, and `Passes` runs it forward and back.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from anygpu.engines.torch.engine import is_out_of_memory
from anygpu.errors import InvalidOption
from anygpu.pytorch.batches import all_have_rows, bounds, joined, leaves, mapped, part_of
from anygpu.pytorch.measuring import Laps
from anygpu.pytorch.undoing import Buffers, random_state, set_random_state

# -- how the loss of a batch is made of the losses of its parts
#
# torch's own losses say it. Others are asked: the loss of a few rows is compared with the losses of their parts, also
# with some of the targets changed to what losses are known to leave out. A loss that is neither a mean nor a sum of its
# rows' losses is still computed exactly, on the outputs of all parts.


LossKind = Literal["mean", "sum", "unknown"]
#: The relative tolerance of a loss in float32, and how far parts may be from it.
_TOLERANCE = 1e-4
#: Of the targets' tensors, those that are changed one after the other.
_MOST_CHANGED = 8
#: What stands in targets for "this one does not count": torch's own sign, padding, and one that some use.
_SIGNS = (-100, 0, -1)


class Counted(NamedTuple):
    """A mean whose divisor depends on the targets."""

    #: The sum of what the mean is of.
    summed: Callable[[Any, Any], torch.Tensor]
    #: The number that the mean divides by.
    divisor: Callable[[Any, Any], torch.Tensor]


class Combining(NamedTuple):
    """How the losses of parts make that of the whole."""

    kind: LossKind
    reason: str
    counted: Counted | None = None
    #: Whether values have shown it, and not torch: then it is compared on every batch where that costs little.
    by_values: bool = False
    #: Integers in targets that do not count, or count otherwise: a batch that has one is not a mean, or sum, over rows.
    unless: tuple[int, ...] = ()


UNKNOWN = "its value is neither the mean nor the sum of those of parts"

# -- torch's own

_ELEMENTWISE: dict[Any, Any] = {
    nn.MSELoss: F.mse_loss,
    nn.L1Loss: F.l1_loss,
    nn.SmoothL1Loss: F.smooth_l1_loss,
    nn.HuberLoss: F.huber_loss,
    nn.SoftMarginLoss: F.soft_margin_loss,
    nn.KLDivLoss: F.kl_div,
    nn.PoissonNLLLoss: F.poisson_nll_loss,
    nn.BCELoss: F.binary_cross_entropy,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
}
_BY_CLASS: dict[Any, Any] = {nn.CrossEntropyLoss: F.cross_entropy, nn.NLLLoss: F.nll_loss}
_FUNCTIONS = {**_ELEMENTWISE, **_BY_CLASS}
_OPTIONS = ("reduction", "weight", "pos_weight", "ignore_index", "label_smoothing")


def known(loss: Callable[..., Any], outputs: Any, targets: Any) -> Combining | None:
    """How a loss of torch's own combines, by its reduction; `None` for others, and where shapes would be broadcast."""
    described = _described(loss)
    if described is None or not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return None
    function, options = described
    name, reduction = function.__name__, options.get("reduction", "mean")
    if function in _BY_CLASS.values():
        return _by_class(function, name, reduction, options, outputs, targets)
    if outputs.shape != targets.shape or outputs.dim() == 0:
        return None
    if options.get("weight") is not None or options.get("pos_weight") is not None:
        # They may have a row for each row of the batch.
        return None
    if reduction in ("mean", "batchmean"):
        return Combining("mean", f"{name} is a mean over rows")
    return Combining("sum", f"{name} is a sum over rows") if reduction == "sum" else None


def _by_class(
    function: Any, name: str, reduction: str, options: Mapping[str, Any], outputs: torch.Tensor, targets: torch.Tensor
) -> Combining | None:
    """How losses of parts are combined for a loss over classes: by rows, or by the weights of the targets' classes."""
    if outputs.dim() < 2 or targets.dim() == 0 or outputs.size(0) != targets.size(0):
        return None
    if reduction == "sum":
        return Combining("sum", f"{name} is a sum over rows")
    if reduction != "mean":
        return None
    if targets.is_floating_point():
        return Combining("mean", f"{name} of probabilities is a mean over rows")
    others = {key: value for key, value in options.items() if key != "reduction"}
    weight, ignored = options.get("weight"), options.get("ignore_index", -100)

    def summed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = function(outputs, targets, reduction="sum", **others)
        return found

    def divisor(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        left_out = targets == ignored
        if weight is None:
            return targets.numel() - left_out.sum()
        weights: torch.Tensor = weight[targets.masked_fill(left_out, 0)]
        return weights.masked_fill(left_out, 0).sum()

    return Combining("mean", f"{name} is a mean over the targets that count", Counted(summed, divisor))


def _described(loss: Callable[..., Any]) -> tuple[Any, dict[str, Any]] | None:
    """The function that computes it, and its options."""
    if isinstance(loss, nn.Module):
        # By its very type: a subclass may do anything. Hooks may too.
        function = _FUNCTIONS.get(type(loss))
        if function is None or loss._forward_hooks or loss._forward_pre_hooks:
            return None
        return function, {name: getattr(loss, name) for name in _OPTIONS if hasattr(loss, name)}
    options: dict[str, Any] = {}
    if isinstance(loss, functools.partial):
        if loss.args or not set(loss.keywords) <= set(_OPTIONS):
            return None
        options, loss = dict(loss.keywords), loss.func
    return (loss, options) if any(loss is each for each in _FUNCTIONS.values()) else None


# -- all others


def fits(whole: float, parts: Sequence[tuple[int, float]]) -> set[LossKind]:
    """The kinds that the losses of parts, each with its rows, could combine as: "mean", "sum", both or none.

    Compared with a relative tolerance; none if a loss is not finite.
    """
    if not all(map(math.isfinite, (whole, *(loss for _, loss in parts)))):
        return set()
    rows = sum(count for count, _ in parts)
    size = max(abs(whole), *(abs(loss) for _, loss in parts))
    found: set[LossKind] = set()
    if abs(sum(count * loss for count, loss in parts) / rows - whole) <= _TOLERANCE * size:
        found.add("mean")
    if abs(sum(loss for _, loss in parts) - whole) <= _TOLERANCE * size:
        found.add("sum")
    return found


def found_by_values(loss_of: Callable[[Any], torch.Tensor], tree: Any, rows: int, *, changed: Any) -> Combining:
    """Finds out how `loss_of(tree)` combines, where `tree` has `rows` rows, by cutting them in several ways.

    The tensors of `changed` are then altered too, to values that losses are known to leave out (`_SIGNS`). The kind is
    "unknown" unless every case agrees with one kind and at least one case tells the two apart. Raises if memory runs
    out.
    """
    if rows < 2:
        return Combining("unknown", "one row shows nothing of how losses combine")
    possible: set[LossKind] = {"mean", "sum"}
    unless: list[int] = []
    told = False
    for place, (case, sign) in enumerate(_cases(tree, rows, changed)):
        try:
            whole, *again = [float(loss_of(case)) for _ in range(2 if place == 0 else 1)]
            if again and again[0] != whole and math.isfinite(whole):
                return Combining("unknown", "its value differs from call to call", by_values=True)
            fitting: set[LossKind] = {"mean", "sum"}
            for cut in sorted({1, rows - 1, rows // 2}):
                bounds = ((0, cut), (cut, rows))
                parts = [(end - begin, float(loss_of(part_of(case, rows, begin, end)))) for begin, end in bounds]
                fitting &= fits(whole, parts)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if place == 0:
                return Combining("unknown", f"it cannot be computed for a few rows ({type(error).__name__})")
            continue  # it does not take such targets, so none will come
        if not math.isfinite(whole):
            continue
        if sign is not None and not possible & fitting:
            unless.append(sign)
            continue
        told = told or len(fitting) < 2
        possible &= fitting
        if not possible:
            return Combining("unknown", UNKNOWN, by_values=True)
    if not told or len(possible) != 1:
        return Combining("unknown", "its values do not tell how it combines", by_values=True)
    kind = possible.pop()
    reason = f"it is the {kind} of the losses of rows, by its values"
    return Combining(kind, reason, by_values=True, unless=tuple(dict.fromkeys(unless)))


def has_any(targets: Any, values: Sequence[int]) -> bool:
    """Whether integers among the targets have one of these values."""
    return any(
        bool((leaf == value).any())
        for leaf in leaves(targets)
        if not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool)
        for value in values
    )


def _cases(tree: Any, rows: int, changed: Any) -> Iterator[tuple[Any, int | None]]:
    """The rows as they are, then with some of one tensor's values changed, to the integer that comes along."""
    yield tree, None
    random = torch.Generator().manual_seed(0)
    candidates = [leaf for leaf in leaves(changed) if leaf.dim() and leaf.size(0) == rows and leaf.numel() >= rows]
    for leaf in candidates[:_MOST_CHANGED]:
        # More in the first rows than in the last, so that parts differ in what counts.
        share = torch.linspace(0.8, 0.2, rows).reshape(-1, *(1,) * (leaf.dim() - 1)).expand(leaf.shape)
        mask = torch.rand(leaf.shape, generator=random) < share
        mask.view(rows, -1)[0, 0] = True
        mask.view(rows, -1)[-1, -1] = False
        mask = mask.to(leaf.device)
        if leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool:
            yield _replaced(tree, leaf, leaf.masked_fill(mask, 0)), None
            continue
        for sign in _SIGNS if leaf.dtype.is_signed else (0,):
            yield _replaced(tree, leaf, leaf.masked_fill(mask, sign)), sign


def _replaced(tree: Any, leaf: torch.Tensor, other: torch.Tensor) -> Any:
    """The tree with one of its tensors replaced by another."""
    return mapped(tree, lambda each: other if each is leaf else each)


# -- how a batch goes through a module and back


class StepCalling:
    """The calls of a step: `model` with a batch's inputs, `loss` with outputs and targets.

    ========================  =====================  ==========================
    batch                     outputs                loss
    ========================  =====================  ==========================
    a pair, inputs a tensor   `model(inputs)`        `loss(outputs, targets)`
    a pair, inputs a tuple    `model(*inputs)`       `loss(outputs, targets)`
    a pair, inputs a mapping  `model(**inputs)`      `loss(outputs, targets)`
    a mapping                 `model(**batch)`       `loss(outputs, batch)`
    anything, with forward=   `forward(model, ...)`  `loss(outputs, batch)`
    ========================  =====================  ==========================
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[[Any, Any], torch.Tensor],
        forward: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self._forward = forward

    def forward(self, batch: Any) -> Any:
        """The outputs of the module for a batch, called as the table says."""
        if self._forward is not None:
            return self._forward(self.model, batch)
        if isinstance(batch, Mapping):
            return self.model(**batch)
        inputs = batch[0]
        if isinstance(inputs, Mapping):
            return self.model(**inputs)
        if isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
            return self.model(*inputs)
        return self.model(inputs)

    def loss_of(self, outputs: Any, batch: Any) -> torch.Tensor:
        """The loss of outputs, with the targets of a batch."""
        return self.loss(outputs, self.targets(batch))

    def loss_by(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The loss of that module instead, which may be a copy on fake tensors."""
        return self.loss_of(self.outputs_by(model, batch), batch)

    def outputs_by(self, model: torch.nn.Module, batch: Any) -> Any:
        """The outputs of that module instead."""
        return StepCalling(model, self.loss, self._forward).forward(batch)

    def uncompiled(self) -> StepCalling:
        """The same with the module as it was before it was compiled, so that nothing is compiled anew."""
        return StepCalling(getattr(self.model, "_orig_mod", self.model), self.loss, self._forward)

    def named_modules(self) -> list[tuple[str, torch.nn.Module]]:
        """Every module that a backward pass goes through: the model's, and the loss's if it is one."""
        losses = self.loss.named_modules(prefix="loss") if isinstance(self.loss, torch.nn.Module) else ()
        return [*self.model.named_modules(), *losses]

    def targets(self, batch: Any) -> Any:
        """The part of a batch that the loss gets beside the outputs."""
        return batch if self._forward is not None or isinstance(batch, Mapping) else batch[1]

    def check(self, batch: Any) -> None:
        """Raises `InvalidOption` for a batch that is none of the table's."""
        if self._forward is not None or isinstance(batch, Mapping):
            return
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InvalidOption(
                f"a batch of a Step is a pair of inputs and targets, or a mapping, and this is {_type_of(batch)}. "
                "For any other, pass forward=, a function of the model and the batch that returns the outputs."
            )


def _type_of(batch: Any) -> str:
    """The type of a batch, and the length of a tuple or list, for an error."""
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"


#: Outputs up to this size are kept, to compare the loss of the whole with what its parts were taken for.
_MOST_COMPARED = 16 << 20
#: How far the two may differ: rounding, by the type in which the module computes.
_FAR = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}


class Disagreement(Exception):
    """The loss of a batch is not what values had shown: the gradients so far are wrong, and computed otherwise."""


@dataclass(frozen=True)
class Passes:
    """How one batch goes through a module and back; gradients are left in the parameters.

    Each method returns the loss of the whole batch, without its graph.
    """

    calling: StepCalling
    _: KW_ONLY
    #: Backward from a loss: scaled where the precision needs it, and divided where batches accumulate.
    backward: Callable[[torch.Tensor], None]
    cast: Callable[[], AbstractContextManager[Any]]
    device: torch.device
    laps: Laps
    #: Those that each micro-batch has to find as the first one did.
    buffers: Buffers | None = None

    def whole(self, batch: Any) -> torch.Tensor:
        """Runs the batch at once."""
        with self.cast():
            loss = scalar(self.calling.loss_of(self.calling.forward(batch), batch))
        self.laps.lap("forward")
        self.backward(loss)
        self.laps.lap("backward")
        return _number(loss)

    def weighted(self, batch: Any, rows: int, size: int, combining: Combining, precision: str) -> torch.Tensor:
        """Runs the parts one after the other, for a loss that is a mean or a sum of theirs.

        Where only values have shown that, and outputs are small, the loss of all outputs is compared at the end;
        `Disagreement` is raised if it differs, and the gradients are wrong then.
        """
        counted = combining.counted
        total: torch.Tensor | None = None
        losses: list[torch.Tensor] = []
        kept: list[Any] | None = [] if combining.by_values else None
        for begin, end in bounds(rows, size):
            part = part_of(batch, rows, begin, end)
            self._same_buffers(begin)
            with self.cast():
                outputs = self.calling.forward(part)
                if counted is not None:
                    if total is None:
                        total = counted.divisor(outputs, self.calling.targets(batch))
                    loss = counted.summed(outputs, self.calling.targets(part)) / total
                else:
                    loss = scalar(self.calling.loss_of(outputs, part))
                    if combining.kind == "mean":
                        loss = loss * ((end - begin) / rows)
            if kept is not None:
                kept.append(mapped(outputs, torch.Tensor.detach))
                kept = _small(kept, end - begin)
            del outputs
            self.laps.lap("forward")
            self.backward(loss)
            losses.append(_number(loss))
            del loss
            self.laps.lap("backward")
        found = torch.stack(losses).sum()
        if kept:
            self._compare(found, joined(kept), batch, precision)
        return found

    def _compare(self, found: torch.Tensor, outputs: Any, batch: Any, precision: str) -> None:
        """Raises `Disagreement` if the loss of all outputs differs from the one that parts gave. Random states stay."""
        state = random_state(self.device)
        with torch.no_grad(), self.cast():
            expected = self.calling.loss_of(outputs, batch)
        set_random_state(state, self.device)
        self.laps.lap("forward")
        far = float((expected - found).abs())
        if far > _FAR[precision] * max(float(expected.abs()), float(found.abs())):
            raise Disagreement

    def twice(self, batch: Any, rows: int, size: int) -> torch.Tensor:
        """Runs all parts twice, for any loss of outputs that have rows.

        Only the outputs of all rows are alive at once, not their activations. Each part sees the random numbers of its
        first pass again.
        """
        states, parts = [], []
        cuts = bounds(rows, size)
        for begin, end in cuts:
            self._same_buffers(begin)
            states.append(random_state(self.device))
            with torch.no_grad(), self.cast():
                parts.append(self.calling.forward(part_of(batch, rows, begin, end)))
        leaf_outputs = mapped(joined(parts), _as_leaf)
        del parts
        with self.cast():
            loss = scalar(self.calling.loss_of(leaf_outputs, batch))
        self.laps.lap("forward")
        # Parameters that the loss uses itself get their gradients here.
        self.backward(loss)
        self.laps.lap("backward")
        after = random_state(self.device)
        gradients = [leaf.grad for leaf in leaves(leaf_outputs)]
        found = _number(loss)
        del loss, leaf_outputs
        for (begin, end), state in zip(cuts, states, strict=True):
            self._same_buffers(1)
            set_random_state(state, self.device)
            with self.cast():
                outputs = leaves(self.calling.forward(part_of(batch, rows, begin, end)))
            self.laps.lap("forward")
            pairs = [
                (output, gradient[begin:end])
                for output, gradient in zip(outputs, gradients, strict=True)
                if gradient is not None and output.requires_grad
            ]
            del outputs
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
            del pairs
            self.laps.lap("backward")
        set_random_state(after, self.device)
        return found

    def cut(self, batch: Any, rows: int, size: int, combining: Combining, precision: str) -> torch.Tensor:
        """Runs the batch in parts of `size` rows.

        `weighted` if the loss combines and no target forbids it, else `twice`.
        """
        if combining.kind == "unknown" or (combining.unless and has_any(self.calling.targets(batch), combining.unless)):
            return self.twice(batch, rows, size)
        return self.weighted(batch, rows, size, combining, precision)

    def _same_buffers(self, begin: int) -> None:
        """Restore buffers between parts: what changes whatever the rows are changes once for a batch."""
        if begin and self.buffers is not None:
            self.buffers.restore()


def scalar(loss: Any) -> torch.Tensor:
    """The loss without axes. Raises `InvalidOption` unless it is a tensor of one value."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidOption(
            f"the loss of a Step has to be a tensor with one value, and this one returned {shape}. Give it a "
            "reduction, such as .mean(); if the batch is neither a pair nor a mapping, pass forward=."
        )
    return loss.reshape(())


def _as_leaf(output: torch.Tensor) -> torch.Tensor:
    """The output cut off from its graph, so that a backward pass leaves its gradient in it."""
    output = output.detach()
    return output.requires_grad_() if output.is_floating_point() or output.is_complex() else output


def _small(kept: list[Any], rows: int) -> list[Any] | None:
    """`None` when outputs have no rows, or are too large to keep."""
    if not all_have_rows(kept[-1], rows) or sum(leaf.nbytes for each in kept for leaf in leaves(each)) > _MOST_COMPARED:
        return None
    return kept


def _number(loss: torch.Tensor) -> torch.Tensor:
    """The value alone. Some of torch's means are views of memory for all their elements, which it would keep."""
    return loss.detach().clone()
