"""A `Step` in the loops of others: Accelerate's and Lightning's, and of a module that torch has compiled.

`pip install accelerate lightning` is needed, which the gate does not have: `scripts/test -m slow` runs these.
"""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anygpu.errors import InvalidOption
from anygpu.pytorch import Step
from tests.pytorch.modules import assert_same_gradients, mlp, plain

pytestmark = pytest.mark.long

torch.manual_seed(0)
X, VALUES = torch.randn(64, 8), torch.randn(64, 3)


def loader() -> Any:
    return DataLoader(TensorDataset(X, VALUES), batch_size=16)


def trained_plainly(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    optimizer = torch.optim.Adam(other.parameters(), 0.01)
    for inputs, targets in loader():
        optimizer.zero_grad()
        F.mse_loss(other(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        optimizer.step()
    return other


def assert_same_parameters(found: nn.Module, expected: nn.Module) -> None:
    for (name, ours), theirs in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), name


def test_in_a_loop_of_accelerate() -> None:
    from accelerate import Accelerator

    model = mlp()
    expected = trained_plainly(model)
    accelerator = Accelerator(cpu=True)
    prepared, optimizer, batches = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.01), loader())
    step = Step(prepared, optimizer, F.mse_loss, precision="float32", micro_batch=5, clip_norm=0.5)
    for batch in batches:
        result = step(batch)
        assert result.stepped
        assert not result.receipt.failures
    assert result.receipt.how == "in 4 micro-batches of at most 4 rows, float32"
    assert_same_parameters(accelerator.unwrap_model(prepared), expected)


def test_in_a_module_of_lightning_with_manual_optimization(tmp_path: Path) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net = mlp()
            self.step_of_ours: Step | None = None
            self.how: list[str | None] = []

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.net.parameters(), 0.01)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if self.step_of_ours is None:
                optimizer: Any = self.optimizers(use_pl_optimizer=False)
                self.step_of_ours = Step(
                    self.net, optimizer, F.mse_loss, precision="float32", micro_batch=5, clip_norm=0.5
                )
            result = self.step_of_ours(batch)
            self.how.append(result.receipt.how)
            return result.loss

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = Module()
    expected = trained_plainly(module.net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its hints about workers of loaders
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loader())
    assert module.how == ["in 4 micro-batches of at most 4 rows, float32"] * 4
    assert_same_parameters(module.net, expected)


def test_a_compiled_module_is_cut_and_its_layers_are_left_to_its_compiler() -> None:
    model = mlp()
    expected, value = plain(model, F.mse_loss, X, VALUES)
    # Without code for the processor, which is not ours to test.
    compiled: Any = torch.compile(model, backend="eager")
    step = Step(compiled, torch.optim.SGD(compiled.parameters(), 0.0), F.mse_loss, precision="float32", micro_batch=10)
    for _ in range(2):
        result = step((X, VALUES))
        assert torch.allclose(result.loss, value, rtol=1e-5)
        assert_same_gradients(model, expected)
    assert result.receipt.task == "train Sequential"
    assert step.plan is not None
    assert step.plan.checkpoint == ()
    with pytest.raises(InvalidOption, match=r"layers of a module that torch\.compile made"):
        Step(compiled, step.optimizer, F.mse_loss, checkpoint=["_orig_mod.2"])
