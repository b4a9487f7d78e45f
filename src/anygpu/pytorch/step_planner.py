"""The planner of a step: predictions on fake tensors, the budget of its device, and what earlier runs found out."""

from __future__ import annotations

import torch

from anygpu.base.disturbance import DisturbanceWatch
from anygpu.engines.torch.memory import meter_for
from anygpu.pytorch.batch_tensors import tensors_of
from anygpu.pytorch.checkpointing import candidates, select
from anygpu.pytorch.fitting import Fitting
from anygpu.pytorch.footprint import CannotPredict, predict, predict_outputs
from anygpu.pytorch.forms import StepPlanner, Work, halving_for
from anygpu.pytorch.planning import Kept, Planner
from anygpu.pytorch.records import Footprint, Precision
from anygpu.pytorch.remembered import recall, remember, step_key
from anygpu.pytorch.undoing import without_gradients

#: The budget where nobody knows how much memory there is: the first lack of it tells.
_UNKNOWN = 1 << 50


def planner_for(work: Work) -> StepPlanner:
    """Plans by predictions; for a module that cannot run without data, by halving what does not fit."""
    layers = candidates(work.model)
    options = (work.rows, work.precisions, bool(work.whole), work.micro_batch, work.checkpoint)
    key = step_key(work.model, work.optimizer, list(tensors_of(work.batch)), *options)

    def predicted(rows: int, checkpoint: tuple[str, ...], precision: Precision) -> Footprint:
        # A loss with parameters of its own, or of the module, is not copied: fakes must not stay in their gradients.
        with without_gradients(work.parameters):
            return predict(
                work.model,
                work.loss_of,
                work.batch,
                rows=rows,
                checkpoint=checkpoint,
                precision=precision,
                optimizer=work.optimizer,
                accumulate=rows < work.rows,
            )

    def outputs(rows: int) -> int:
        return predict_outputs(work.model, work.outputs_of, work.batch, rows)

    def keep(kept: Kept) -> None:
        remember(key, kept, layers)

    try:
        return Planner(
            Fitting(predicted, select, budget_of(work), predict_outputs=outputs),
            work.rows,
            precisions=work.precisions,
            whole=work.whole,
            micro_batch=work.micro_batch,
            checkpoint=work.checkpoint,
            kept=recall(key, layers),
            keep=keep,
            watch=DisturbanceWatch(),
        )
    except CannotPredict as error:
        return halving_for(work, error.reason)


def budget_of(work: Work) -> int:
    """Bytes for the whole of a training step, parameters included: the user's, or what there is and what it has."""
    if work.memory is not None:
        return work.memory
    free = meter_for(work.device).free()
    return _UNKNOWN if free is None else free + bytes_of(work.model, work.optimizer)


def bytes_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """What is allocated for parameters, buffers, gradients and the optimiser's state, each storage once."""
    found: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        _count(tensor, found)
        if tensor.grad is not None:
            _count(tensor.grad, found)
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                _count(value, found)
    return sum(found.values())


def _count(tensor: torch.Tensor, found: dict[int, int]) -> None:
    storage = tensor.untyped_storage()
    found[storage.data_ptr()] = storage.nbytes()
