from __future__ import annotations

import copy
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import anygpu as ag
from anygpu.errors import InvalidOption, Unsupported
from anygpu.pytorch import Step, measuring
from anygpu.pytorch.forms import halving_for
from tests.pytorch.modules import Centred, assert_same_gradients, contrastive, mlp, plain

torch.manual_seed(0)
X, CLASSES, VALUES = torch.randn(33, 8), torch.randint(0, 3, (33,)), torch.randn(33, 3)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def float32(model: nn.Module, loss: Any, optimizer: Any = None, **options: Any) -> Step:
    """Not predicted, which takes a moment; `predicted` is."""
    return predicted(model, loss, optimizer, **{"make_planner": halving_for, **options})


def predicted(model: nn.Module, loss: Any, optimizer: Any = None, **options: Any) -> Step:
    return Step(model, optimizer or sgd(model), loss, precision="float32", **options)


# -- what is called with what


class Outputs(UserDict[str, torch.Tensor]):
    """As Hugging Face's: a mapping of a class of its own."""


class Named(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor, scale: Any = 1.0, labels: Any = None) -> Any:
        return self.inner(x * scale)


class Mappings(TwoInputs):
    def forward(self, x: torch.Tensor, scale: Any = 1.0, labels: Any = None) -> Any:
        return Outputs(scores=self.inner(x * scale))


SCALES = torch.rand(33, 1) + 0.5


@pytest.mark.parametrize("micro_batch", ["auto", 11])
@pytest.mark.parametrize(
    ("batch", "loss", "forward"),
    [
        ((X, CLASSES), F.cross_entropy, None),
        ([X, CLASSES], F.cross_entropy, None),
        (((X, SCALES), CLASSES), F.cross_entropy, None),
        (({"x": X, "scale": SCALES}, CLASSES), F.cross_entropy, None),
        (((X, torch.tensor(1.5)), CLASSES), F.cross_entropy, None),
        ({"x": X, "labels": CLASSES}, lambda outputs, batch: F.cross_entropy(outputs, batch["labels"]), None),
        (Named(X, CLASSES), lambda o, batch: F.cross_entropy(o, batch.y), lambda model, batch: model(batch.x)),
        (X, lambda loss, batch: loss, lambda model, batch: model(batch).square().mean()),
    ],
)
def test_batches_of_every_kind(batch: Any, loss: Any, forward: Any, micro_batch: Any) -> None:
    model = TwoInputs()
    expected = copy.deepcopy(model)
    if forward is not None:
        loss(forward(expected, batch), batch).backward()
    elif isinstance(batch, dict):
        loss(expected(**batch), batch).backward()
    else:
        inputs, targets = batch
        outputs = (
            expected(**inputs) if isinstance(inputs, dict) else expected(*inputs) if type(inputs) is tuple else None
        )
        loss(expected(inputs) if outputs is None else outputs, targets).backward()
    step = float32(model, loss, forward=forward, micro_batch=micro_batch)
    assert step(batch).stepped
    assert step.plan is not None
    assert step.plan.micro_batch == (33 if micro_batch == "auto" else 11)
    assert_same_gradients(model, expected)


@pytest.mark.parametrize("loss", [lambda o, t: F.mse_loss(o["scores"], t), lambda o, t: contrastive(o["scores"], t)])
def test_outputs_of_any_class(loss: Any) -> None:
    model = Mappings()
    expected, value = plain(model, loss, X, VALUES)
    result = float32(model, loss, micro_batch=10)((X, VALUES))
    assert_same_gradients(model, expected)
    assert torch.allclose(result.loss, value)
    assert "not those of the whole" not in result.receipt.reason


@pytest.mark.parametrize("batch", [X, (X, X, X), None, (X,)])
def test_a_batch_of_another_kind_says_what_to_pass(batch: Any) -> None:
    with pytest.raises(InvalidOption, match="pass forward="):
        float32(mlp(), F.mse_loss)(batch)


def test_a_loss_of_many_values_is_refused() -> None:
    model = mlp()
    with pytest.raises(InvalidOption, match=r"tensor of shape \(33, 3\).*reduction"):
        predicted(model, nn.MSELoss(reduction="none"))((X, VALUES))
    assert all(parameter.grad is None for parameter in model.parameters())


# -- gradients


@pytest.mark.parametrize("micro_batch", [1, 16, 32, 50])
@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.MSELoss(reduction="sum"),
        lambda o, t: (o - t).abs().mean(),
        lambda o, t: (o - t).abs().sum(),
        lambda o, t: (o - t).square().mean().sqrt(),
        contrastive,
    ],
)
@pytest.mark.parametrize("checkpoint", [(), ("0", "2")])
def test_gradients_are_those_of_the_whole_batch(loss: Any, micro_batch: int, checkpoint: Any) -> None:
    model = mlp()
    expected, value = plain(model, loss, X, VALUES)
    result = float32(model, loss, micro_batch=micro_batch, checkpoint=checkpoint)((X, VALUES))
    assert_same_gradients(model, expected)
    assert torch.allclose(result.loss, value, rtol=1e-5)
    assert not result.loss.requires_grad


@pytest.mark.parametrize("micro_batch", [4, 16])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 3.0, 0.5])])
@pytest.mark.parametrize("is_known", [True, False])
def test_targets_that_do_not_count(weight: Any, micro_batch: int, is_known: bool) -> None:
    targets = CLASSES.clone()
    targets[:20] = -100  # so that whole micro-batches have none that do
    known = nn.CrossEntropyLoss(weight=weight)
    loss = known if is_known else lambda o, t: known(o, t)
    model = mlp()
    expected, value = plain(model, loss, X, targets)
    step = float32(model, loss, micro_batch=micro_batch)
    step((X, CLASSES))  # none is left out here
    model.load_state_dict(expected.state_dict())
    result = step((X, targets))
    assert_same_gradients(model, expected)
    assert torch.allclose(result.loss, value)


def test_a_loss_that_turns_out_otherwise_is_computed_otherwise() -> None:
    # Looked at on four rows, it is a mean: those do not show what it does with large values.
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = (outputs - targets).square().mean(1)
        return each.mean() if len(each) <= 4 else each.mean().sqrt()

    model = mlp()
    expected, _ = plain(model, loss, X, VALUES)
    result = float32(model, loss, micro_batch=4)((X, VALUES))
    assert_same_gradients(model, expected)
    assert "goes through twice" in result.receipt.reason
    assert not result.receipt.failures


class Regularised(nn.Module):
    def __init__(self, model: nn.Module, reduction: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self._model = [model]
        self._reduction = reduction

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        size = sum((each.square().sum() for each in self._model[0].parameters()), torch.tensor(0.0))
        return self.scale * F.mse_loss(outputs, targets, reduction=self._reduction) + size


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_with_parameters(reduction: str) -> None:
    model = mlp()
    loss = Regularised(model, reduction)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.0)
    loss(model(X), VALUES).backward()
    expected = [each.grad.clone() for each in (*model.parameters(), *loss.parameters()) if each.grad is not None]
    predicted(model, loss, optimizer, micro_batch=8)((X, VALUES))
    found = [each.grad for each in (*model.parameters(), *loss.parameters())]
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(found, expected, strict=True) if a is not None
    )


def test_frozen_and_unused_parameters_have_no_gradients() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = mlp(), nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> Any:
            return self.frozen(self.used(x))

    for loss in (F.mse_loss, contrastive):
        model = Half()
        expected, _ = plain(model, loss, X, VALUES)
        float32(model, loss, micro_batch=8)((X, VALUES))
        assert_same_gradients(model, expected)
        assert model.unused.weight.grad is None
        assert model.frozen.weight.grad is None


def test_several_groups_and_parameters_that_are_not_optimised() -> None:
    model = mlp()
    optimizer = torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}])
    expected, _ = plain(model, F.mse_loss, X, VALUES)
    step = float32(model, F.mse_loss, optimizer)
    step((X, VALUES))
    assert_same_gradients(model, expected)
    before = model[3].weight.grad.clone()
    model.load_state_dict(expected.state_dict())
    step((X, VALUES))
    assert torch.allclose(model[3].weight.grad, 2 * before)


def test_dropout_draws_each_number_once() -> None:
    """Micro-batches draw one after the other, also for a loss that needs all of them twice."""
    for loss in (F.mse_loss, contrastive):
        model = nn.Sequential(nn.Dropout(0.5), mlp(), nn.Dropout(0.5))
        state = torch.get_rng_state()
        outputs = torch.cat([model(X[begin : begin + 11]) for begin in (0, 11, 22)])
        loss(outputs, VALUES).backward()
        expected = copy.deepcopy(model)
        for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
            other.grad, parameter.grad = parameter.grad, None
        after = torch.get_rng_state()
        step = float32(model, loss, micro_batch=11)
        torch.set_rng_state(state)
        step((X, VALUES))
        assert_same_gradients(model, expected)
        assert torch.equal(torch.get_rng_state(), after)


def test_buffers_change_once_for_a_batch() -> None:
    def made() -> nn.Module:
        torch.manual_seed(1)
        return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3))

    for loss in (F.mse_loss, contrastive):
        model, other = made(), made()
        loss(other(X), VALUES).backward()
        float32(model, loss, micro_batch=5)((X, VALUES))
        assert_same_gradients(model, other)
        for ours, theirs in zip(model.buffers(), other.buffers(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


# -- rows that depend on each other


def test_a_batch_that_may_not_be_cut_is_whole_and_says_why() -> None:
    model = nn.Sequential(mlp(), Centred())
    expected, _ = plain(model, F.mse_loss, X, VALUES)
    result = float32(model, F.mse_loss)((X, VALUES))
    assert_same_gradients(model, expected)
    assert result.receipt.how == "33 rows at once, float32"


def test_what_the_user_sets_is_done_and_the_difference_is_said() -> None:
    model = nn.Sequential(mlp(), nn.BatchNorm1d(3))
    expected = copy.deepcopy(model)
    for part in (slice(0, 16), slice(16, 32), slice(32, 33)):
        if part.stop == 33:
            break
        (F.mse_loss(expected(X[part]), VALUES[part]) / 2).backward()
    result = float32(model, F.mse_loss, micro_batch=16)((X[:32], VALUES[:32]))
    assert_same_gradients(model, expected)
    assert torch.allclose(model[1].running_mean, expected[1].running_mean)
    assert "not those of the whole batch: BatchNorm1d '1'" in result.receipt.reason
    assert result.receipt.how == "in 2 micro-batches of at most 16 rows, float32"


def test_a_loss_that_sees_more_than_outputs_is_not_cut() -> None:
    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()
            self.size = torch.tensor(0.0)

        def forward(self, x: torch.Tensor) -> Any:
            made = self.inner(x)
            self.size = made.square().sum()
            return made

    model = Noted()
    result = predicted(model, lambda o, t: F.mse_loss(o, t) + model.size.sqrt(), micro_batch=8)((X, VALUES))
    assert "depends on more than the module's outputs" in result.receipt.reason


# -- the optimiser


def test_clipping_is_of_the_whole_gradient() -> None:
    model = mlp()
    expected, _ = plain(model, F.mse_loss, X, VALUES)
    norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.01)
    result = float32(model, F.mse_loss, clip_norm=0.01, micro_batch=8)((X, VALUES))
    assert result.grad_norm is not None
    assert torch.allclose(result.grad_norm, norm)
    assert_same_gradients(model, expected)


def test_batches_accumulate_to_one_step() -> None:
    model = mlp()
    expected = copy.deepcopy(model)
    before = copy.deepcopy(model.state_dict())
    parts = [(X[:8], VALUES[:8]), (X[8:20], VALUES[8:20]), (X[20:], VALUES[20:])]
    for x, y in parts:
        (F.mse_loss(expected(x), y) / 3).backward()
    step = float32(model, F.mse_loss, accumulate=3, micro_batch=5)
    results = [step(part) for part in parts]
    assert [each.stepped for each in results] == [False, False, True]
    assert "batch 1 of 3 that accumulate" in results[0].receipt.reason
    assert_same_gradients(model, expected)
    assert not torch.equal(model.state_dict()["0.weight"], before["0.weight"])
    step(parts[0])
    (F.mse_loss(model(parts[0][0]), parts[0][1]) / 3).backward()  # twice what is pending
    assert step.state_dict()["pending"] == 1


def test_an_optimizer_that_asks_several_times() -> None:
    model, other = mlp(), mlp()
    ours, theirs = (torch.optim.LBFGS(each.parameters(), max_iter=5) for each in (model, other))

    def closure() -> torch.Tensor:
        theirs.zero_grad()
        loss = F.mse_loss(other(X), VALUES)
        loss.backward()
        return loss

    theirs.step(closure)
    result = float32(model, F.mse_loss, ours, micro_batch=8)((X, VALUES))
    assert result.stepped
    for found, expected in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(InvalidOption, match="LBFGS computes gradients several times"):
        float32(model, F.mse_loss, ours, accumulate=2)


def test_schedulers_work_beside_it() -> None:
    model = mlp()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    step = float32(model, F.mse_loss, optimizer)
    for _ in range(3):
        step((X, VALUES))
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)


# -- what is said


def test_the_receipt() -> None:
    model = mlp()
    step = float32(model, F.mse_loss, micro_batch=11, checkpoint=["2"])
    nothing: Any = step.plan
    assert nothing is None
    measuring.add_data_wait("loader", 0.25)
    with ag.collect_receipts() as receipts:
        result = step((X, VALUES))
    assert receipts == [result.receipt] == [ag.last_receipt()]
    receipt = result.receipt
    assert (receipt.task, receipt.device, receipt.kind) == ("train Sequential", "torch:cpu", "cpu")
    assert receipt.how == "in 3 micro-batches of at most 11 rows, 1 layer recomputed, float32"
    assert set(receipt.parts) == {"forward", "backward", "optimizer"}
    assert sum(receipt.parts.values()) <= receipt.phases.run
    assert receipt.phases.queue == pytest.approx(0.25)
    assert receipt.attempts[-1].succeeded
    assert type(receipt).from_json(receipt.to_json()) == receipt
    assert step.plan is not None
    assert step.plan.micro_batch == 11
    assert float32(mlp(), F.mse_loss, name="mine")((X, VALUES)).receipt.task == "mine"


def test_a_module_is_left_as_it_was() -> None:
    model = nn.Sequential(mlp(), nn.Dropout())
    names = {name: set(vars(module)) for name, module in model.named_modules()}
    float32(model, contrastive, micro_batch=4, checkpoint=("0.2",))((X, VALUES))
    assert {name: set(vars(module)) for name, module in model.named_modules()} == names
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


# -- across runs


def test_the_state_is_saved_and_restored(tmp_path: Path) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer, Step]:
        model = nn.Sequential(nn.Dropout(0.5), mlp())
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        step = Step(
            model, optimizer, F.mse_loss, precision="float16", accumulate=2, micro_batch=10, make_planner=halving_for
        )
        return model, optimizer, step

    model, optimizer, step = made()
    for _ in range(3):
        step((X, VALUES))
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step.state_dict()}
    torch.save(states, tmp_path / "states.pt")
    losses = [float(step((X, VALUES)).loss) for _ in range(4)]

    model, optimizer, step = made()
    torch.rand(7)
    states = torch.load(tmp_path / "states.pt", weights_only=True)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    step.load_state_dict(states["step"])
    assert step.plan is not None
    assert [float(step((X, VALUES)).loss) for _ in range(4)] == losses


def test_a_state_of_another_module_is_refused() -> None:
    step = float32(mlp(), F.mse_loss, accumulate=2)
    step((X, VALUES))
    other = nn.Linear(8, 3)
    with pytest.raises(InvalidOption, match=r"\d gradients for 2 parameters"):
        float32(other, F.mse_loss).load_state_dict(step.state_dict())
    with pytest.raises(InvalidOption, match="version"):
        step.load_state_dict({"version": 0})


# -- what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"micro_batch": 0}, "micro_batch=0"),
        ({"micro_batch": True}, "micro_batch=True"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"checkpoint": "2"}, "sequence of names"),
        ({"checkpoint": ["7"]}, "names '7', which the module does not have"),
        ({"checkpoint": [0, "1"]}, "takes names, not objects of type int. Names are those of model.named_modules"),
        ({"checkpoint": [nn.ReLU()]}, "takes names, not objects of type ReLU"),
        ({"checkpoint": ["1:3", "0:2"]}, "names '0:2' and '1:3', which have layers in common"),
        ({"checkpoint": ["", "1:3"]}, "names '' and '1:3', which have layers in common"),
        ({"precision": "float8"}, "none of 'auto'"),
    ],
)
def test_options_that_are_wrong(options: Any, words: str) -> None:
    model = mlp()
    with pytest.raises(InvalidOption, match=words):
        Step(model, sgd(model), F.mse_loss, **options)


def test_several_optimizers_and_devices_are_refused() -> None:
    model = mlp()
    with pytest.raises(InvalidOption, match="one optimizer"):
        Step(model, [sgd(model), sgd(model)], F.mse_loss)
    model[0].to("meta")
    with pytest.raises(Unsupported, match="on cpu, meta, and a Step trains on one device"):
        Step(model, sgd(model), F.mse_loss)
    with pytest.raises(Unsupported, match="does not train a DataParallel"):
        Step(nn.DataParallel(mlp()), sgd(model), F.mse_loss)


def test_torch_is_not_loaded_by_anygpu() -> None:
    code = "import anygpu, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


def test_a_plain_sequential_is_checkpointed_by_segments() -> None:
    """With rows that depend on each other nothing else can save memory."""
    torch.manual_seed(0)
    widths = [nn.Linear(64, 64) if place % 2 else nn.Tanh() for place in range(16)]
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), *widths, nn.Linear(64, 3))
    inputs, targets = torch.randn(2048, 8), torch.randn(2048, 3)
    expected, _ = plain(model, F.mse_loss, inputs, targets)
    step = Step(model, torch.optim.SGD(model.parameters(), 0.0), F.mse_loss, precision="float32", memory=4 << 20)
    step((inputs, targets))
    assert step.plan is not None
    assert step.plan.checkpoint
    assert all(":" in name for name in step.plan.checkpoint)
    assert step.plan.predicted_bytes is not None
    assert step.plan.predicted_bytes <= 4 << 20
    assert_same_gradients(model, expected)


def test_a_loss_that_is_a_view_does_not_keep_what_it_is_a_view_of() -> None:
    def in_a_large_tensor(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.cat([(output - target).square().mean().reshape(1), torch.zeros(1000)])[0]

    model = nn.Linear(4, 3)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.0), in_a_large_tensor, precision="float32")
    loss = step((torch.ones(8, 4), torch.ones(8, 3))).loss
    assert loss.untyped_storage().nbytes() == loss.element_size()
