from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import anygpu as ag
from anygpu.base import events
from anygpu.engines.torch.engine import is_out_of_memory
from anygpu.pytorch import Step
from anygpu.pytorch.forms import halving_for
from anygpu.pytorch.planning import planner_for
from tests.pytorch.modules import assert_same_gradients, contrastive, mlp, plain

torch.manual_seed(0)
X, VALUES = torch.randn(33, 8), torch.randn(33, 3)

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("could not create a primitive"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allo"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


class Greedy(nn.Module):
    """Has memory for `most` rows with a gradient; a forward pass changes a buffer and draws random numbers."""

    def __init__(self, most: int, error: Exception, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or mlp()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("count", torch.tensor(0))
        self.most = most
        self.error = error
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.before: list[tuple[int, torch.Tensor]] = []
        self.is_checkpointed_enough: Any = lambda: False

    def forward(self, x: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            assert not any(each() is not None for each in self.alive), "an attempt that failed is still in memory"
            self.before.append((int(self.count), torch.get_rng_state()))
        self.count += 1
        made = self.dropout(self.inner(x))
        if torch.is_grad_enabled() and len(x) > self.most and not self.is_checkpointed_enough():
            activations = made * 2
            self.alive.append(weakref.ref(activations))
            raise self.error
        return made


def stepping(model: nn.Module, loss: Any = F.mse_loss, **options: Any) -> Step:
    """Planned by halving, so that what is tried is known; predictions have tests of their own."""
    options = {"make_planner": halving_for, **options}
    return Step(model, torch.optim.SGD(model.parameters(), 0.1), loss, precision="float32", **options)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__ + str(error)[-12:])
@pytest.mark.parametrize("loss", [F.mse_loss, contrastive])
def test_out_of_memory_repeats_the_step_smaller(error: Exception, loss: Any) -> None:
    assert is_out_of_memory(error)
    model = Greedy(10, error)
    model.dropout.p = 0.0
    expected, value = plain(model.inner, loss, X, VALUES)
    step = stepping(model, loss)
    result = step((X, VALUES))
    assert_same_gradients(model.inner, expected)
    assert torch.allclose(result.loss, value, rtol=1e-5)
    assert [each.error for each in result.receipt.failures] == ["OutOfMemory"] * 2
    assert f"torch raised {type(error).__name__}" in str(result.receipt.failures[0].message)
    assert "33 rows at once" in str(result.receipt.failures[0].message)
    assert result.receipt.how == "in 4 micro-batches of at most 9 rows, float32"
    assert not step((X, VALUES)).receipt.failures  # it has learned


def test_predictions_that_were_wrong_are_repeated_smaller() -> None:
    model = Greedy(10, MemoryError())
    model.dropout.p = 0.0
    expected, _ = plain(model.inner, F.mse_loss, X, VALUES)
    step = stepping(model, make_planner=planner_for)
    result = step((X, VALUES))
    assert_same_gradients(model.inner, expected)
    assert result.receipt.failures
    assert step.plan is not None
    assert step.plan.micro_batch <= 10


def test_each_attempt_begins_where_the_first_did() -> None:
    model = Greedy(10, MemoryError())
    stepping(model)((X, VALUES))
    first, second, third, *_ = model.before
    assert first[0] == second[0] == third[0] == 0
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[1], third[1])
    assert int(model.count) == 1


def test_layers_are_checkpointed_when_single_rows_do_not_fit() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    model = Greedy(0, MemoryError(), Blocks())
    model.is_checkpointed_enough = lambda: "forward" in vars(model.inner.blocks[0])
    result = stepping(model)((X[:2], X[:2]))
    assert result.receipt.how == "in 2 micro-batches of at most 1 row, 2 layers recomputed, float32"
    assert len(result.receipt.failures) == 2


def test_with_nothing_smaller_left_it_says_what_to_do() -> None:
    model = Greedy(0, MemoryError())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    with pytest.raises(ag.errors.OutOfMemory, match=r"nothing smaller is left. Use smaller inputs") as raised:
        stepping(model, checkpoint=())((X, VALUES))
    assert isinstance(raised.value, MemoryError)
    assert raised.value.device == "torch:cpu"
    assert raised.value.__context__ is None
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_that_may_not_be_cut_is_not() -> None:
    model = Greedy(10, MemoryError(), nn.Sequential(mlp(), nn.BatchNorm1d(3)))
    with pytest.raises(ag.errors.OutOfMemory, match=r"cannot be cut: BatchNorm1d 'inner.1' takes its statistics"):
        stepping(model, checkpoint=())((X, VALUES))
    assert int(model.inner[1].num_batches_tracked) == 0


class Failing(nn.Module):
    def __init__(self, raised: BaseException, after: int) -> None:
        super().__init__()
        self.inner, self.dropout = mlp(), nn.Dropout()
        self.register_buffer("count", torch.tensor(0))
        self.raised, self.after = raised, after

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        made = self.dropout(self.inner(x))
        if torch.is_grad_enabled():
            self.after -= 1
            if self.after < 0:
                raise self.raised
        return made


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 2])
def test_after_any_other_error_nothing_of_the_step_is_left(raised: BaseException, after: int) -> None:
    model = Failing(raised, after)
    step = stepping(model, micro_batch=8, accumulate=2, checkpoint=("inner.2",))
    model.after = 100
    step((X, VALUES))
    model.after = after
    waiting = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    random = torch.get_rng_state()
    with pytest.raises(type(raised)):
        step((X, VALUES))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    for parameter, gradient in zip(model.parameters(), waiting, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)
    model.after = 100
    assert step((X, VALUES)).stepped


def test_gradients_that_wait_survive_a_failed_attempt() -> None:
    model = Greedy(10, MemoryError())
    model.dropout.p = 0.0
    step = stepping(model, accumulate=2)
    step((X[:8], VALUES[:8]))
    first = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    step((X, VALUES))
    expected, _ = plain(mlp(), lambda o, t: F.mse_loss(o, t) / 2, X, VALUES)
    for parameter, before, other in zip(model.parameters(), first, expected.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.allclose(parameter.grad, before + other.grad, atol=1e-6)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("std::bad_alloc"), OSError(12)):
        assert not is_out_of_memory(error)


class Looking(nn.Module):
    """Some calls without a gradient have no memory for more than `most` rows, and none with one for more than 10."""

    def __init__(self, most: int, times: int) -> None:
        super().__init__()
        self.inner, self.most, self.times = mlp(), most, [times]  # an attribute itself is put back after a look

    def forward(self, x: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            if len(x) > 10:
                raise MemoryError
        elif len(x) > self.most and self.times[0]:
            self.times[0] -= 1
            raise RuntimeError("could not create a primitive")
        return self.inner(x)


@pytest.mark.parametrize("loss", [F.mse_loss, contrastive])
def test_where_memory_runs_out_while_rows_are_looked_at_fewer_are(loss: Any) -> None:
    model = Looking(2, times=1)
    expected, _ = plain(model.inner, loss, X, VALUES)
    result = stepping(model, loss)((X, VALUES))
    assert result.receipt.how == "in 4 micro-batches of at most 9 rows, float32"
    assert_same_gradients(model.inner, expected)


def test_where_no_rows_can_be_looked_at_a_later_step_looks_again() -> None:
    model = Looking(0, times=2)
    step = stepping(model)
    before = [each.clone() for each in model.parameters()]
    with pytest.raises(
        ag.errors.OutOfMemory, match=r"for two rows of the batch, even without gradients.*Nothing was changed"
    ):
        step((X, VALUES))
    assert all(map(torch.equal, before, model.parameters()))
    assert step((X, VALUES)).receipt.how == "in 4 micro-batches of at most 9 rows, float32"


class ForeignSGD(torch.optim.SGD):
    """Of somebody else, who may write where nobody counts."""

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["params"][0].data.add_(1.0)
        raise MemoryError


def test_the_step_of_a_foreign_optimizer_is_not_repeated() -> None:
    model = mlp()
    with pytest.raises(
        ag.errors.OutOfMemory, match=r"the step of ForeignSGD .*; parameters may have changed in part: load them"
    ):
        Step(model, ForeignSGD(model.parameters(), 0.1), F.mse_loss, precision="float32")((X, VALUES))


def failing_adam(monkeypatch: pytest.MonkeyPatch, times: int, *, changes: bool = False) -> list[Any]:
    """torch's Adam, whose state exists by then, runs out of memory before it changes parameters; what it was given."""
    module = sys.modules["torch.optim.adam"]
    real = module.adam
    seen: list[Any] = []

    def adam(params: Any, grads: Any, exp_avgs: Any, *args: Any, **options: Any) -> Any:
        if isinstance(params[0], FakeTensor):  # a prediction
            return real(params, grads, exp_avgs, *args, **options)
        seen.append(options["foreach"])
        exp_avgs[0].add_(1.0)
        if changes:
            params[0].add_(1.0)
        if len(seen) <= times:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        exp_avgs[0].sub_(1.0)
        return real(params, grads, exp_avgs, *args, **options)

    monkeypatch.setattr(module, "adam", adam)
    return seen


def test_the_first_step_of_adam_is_repeated_because_its_state_was_new(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = mlp(), mlp()
    other.load_state_dict(model.state_dict())
    expected = torch.optim.Adam(other.parameters(), 0.1)
    F.mse_loss(other(X), VALUES).backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    expected.step()
    seen = failing_adam(monkeypatch, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1, foreach=True)
    result = Step(model, optimizer, F.mse_loss, precision="float32", clip_norm=0.1)((X, VALUES))
    assert seen == [True, False]
    assert optimizer.param_groups[0]["foreach"] is True
    assert "made its step parameter by parameter" in result.receipt.reason
    for parameter, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(parameter, wanted, atol=1e-6)


def test_a_first_step_that_does_not_fit_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_adam(monkeypatch, 2)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    before = [each.clone() for each in model.parameters()]
    step = Step(model, optimizer, F.mse_loss, precision="float32")
    with pytest.raises(
        ag.errors.OutOfMemory, match=r"the step of Adam .*; parameters and the optimizer's state are as before"
    ):
        step((X, VALUES))
    assert not optimizer.state
    assert all(each.grad is None for each in model.parameters())
    assert all(map(torch.equal, before, model.parameters()))
    assert step((X, VALUES)).stepped


def test_a_step_that_has_changed_parameters_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    step = Step(model, optimizer, F.mse_loss, precision="float32")
    step((X, VALUES))
    failing_adam(monkeypatch, 1, changes=True)
    count = len(list(model.parameters()))
    with pytest.raises(
        ag.errors.OutOfMemory, match=rf"; 1 of {count} parameters and the state of 1 have changed: load the"
    ):
        step((X, VALUES))


def test_with_float16_the_scaler_can_go_on_after_a_step_that_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_adam(monkeypatch, 2)
    model = mlp()
    step = Step(model, torch.optim.Adam(model.parameters(), 0.1), F.mse_loss, precision="float16")
    with pytest.raises(ag.errors.OutOfMemory, match="are as before"):
        step((X, VALUES))
    step((X, VALUES))


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    found: list[Any] = []

    def note(each: Any, origin: Any) -> None:
        found.append(each)

    events.calls.append(note)
    yield found
    events.calls.remove(note)


def test_observers_see_steps_and_failures(seen: list[Any]) -> None:
    result = stepping(mlp())((X, VALUES))
    with pytest.raises(ag.errors.OutOfMemory):
        stepping(Greedy(0, MemoryError()), checkpoint=())((X, VALUES))
    assert seen[0] == result.receipt
    assert (seen[1].task, seen[1].device, seen[1].error) == ("train Greedy", "torch:cpu", "OutOfMemory")
