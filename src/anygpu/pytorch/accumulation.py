"""The gradients of a whole batch, from micro-batches.

A loss that is a mean or a sum over rows is weighted, and each micro-batch goes through the module once. For all others,
each goes through twice: first without gradients, for the loss and its gradient with respect to the outputs of all rows,
then with that gradient, on the same random numbers. Both give the gradients of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from anygpu.pytorch.batches import all_have_rows, bounds, joined, leaves, mapped, part_of
from anygpu.pytorch.laps import Laps
from anygpu.pytorch.losses import Combining, has_any
from anygpu.pytorch.undoing import Buffers, random_state, set_random_state

#: Outputs up to this size are kept, to compare the loss of the whole with what its parts were taken for.
_MOST_COMPARED = 16 << 20
#: How far the two may differ: rounding, by the type in which the module computes.
_FAR = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}


class Disagreement(Exception):
    """The loss of a batch is not what values had shown: the gradients so far are wrong, and computed otherwise."""


class Passes:
    """How one batch goes through a module and back."""

    def __init__(
        self,
        forward: Callable[[Any], Any],
        loss: Callable[[Any, Any], torch.Tensor],
        targets: Callable[[Any], Any],
        backward: Callable[[torch.Tensor], None],
        cast: Callable[[], AbstractContextManager[Any]],
        device: torch.device,
        laps: Laps,
        buffers: Buffers | None = None,
    ) -> None:
        #: Outputs for a batch, or for a part of one.
        self.forward = forward
        #: Of outputs and targets.
        self.loss = loss
        #: Of a batch.
        self.targets = targets
        #: Backward from a loss: scaled where the precision needs it, and divided where batches accumulate.
        self.backward = backward
        self.cast = cast
        self.device = device
        self.laps = laps
        #: Those that each micro-batch has to find as the first one did.
        self.buffers = buffers

    def whole(self, batch: Any) -> torch.Tensor:
        with self.cast():
            loss = scalar(self.loss(self.forward(batch), self.targets(batch)))
        self.laps.lap("forward")
        self.backward(loss)
        self.laps.lap("backward")
        return _number(loss)

    def weighted(self, batch: Any, rows: int, size: int, combining: Combining, precision: str) -> torch.Tensor:
        """Of a loss that is a mean or a sum. Raises `Disagreement` where the batch shows that it is not."""
        counted = combining.counted
        total: torch.Tensor | None = None
        losses: list[torch.Tensor] = []
        kept: list[Any] | None = [] if combining.by_values else None
        for begin, end in bounds(rows, size):
            part = part_of(batch, rows, begin, end)
            self._same_buffers(begin)
            with self.cast():
                outputs = self.forward(part)
                if counted is not None:
                    if total is None:
                        total = counted.divisor(outputs, self.targets(batch))
                    loss = counted.summed(outputs, self.targets(part)) / total
                else:
                    loss = scalar(self.loss(outputs, self.targets(part)))
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
        state = random_state(self.device)
        with torch.no_grad(), self.cast():
            expected = self.loss(outputs, self.targets(batch))
        set_random_state(state, self.device)
        self.laps.lap("forward")
        far = float((expected - found).abs())
        if far > _FAR[precision] * max(float(expected.abs()), float(found.abs())):
            raise Disagreement

    def twice(self, batch: Any, rows: int, size: int) -> torch.Tensor:
        """Of any loss of outputs that have rows."""
        states, parts = [], []
        cuts = bounds(rows, size)
        for begin, end in cuts:
            self._same_buffers(begin)
            states.append(random_state(self.device))
            with torch.no_grad(), self.cast():
                parts.append(self.forward(part_of(batch, rows, begin, end)))
        leaf_outputs = mapped(joined(parts), _as_leaf)
        del parts
        with self.cast():
            loss = scalar(self.loss(leaf_outputs, self.targets(batch)))
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
                outputs = leaves(self.forward(part_of(batch, rows, begin, end)))
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
        if combining.kind == "unknown" or (combining.unless and has_any(self.targets(batch), combining.unless)):
            return self.twice(batch, rows, size)
        return self.weighted(batch, rows, size, combining, precision)

    def _same_buffers(self, begin: int) -> None:
        """What a forward pass changes whatever its rows are, it changes once for a batch, as the whole would."""
        if begin and self.buffers is not None:
            self.buffers.restore()


def scalar(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        from anygpu.errors import InvalidOption

        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise InvalidOption(
            f"the loss of a Step has to be a tensor with one value, and this one returned {shape}. Give it a "
            "reduction, such as .mean(); if the batch is neither a pair nor a mapping, pass forward=."
        )
    return loss.reshape(())


def _as_leaf(output: torch.Tensor) -> torch.Tensor:
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
