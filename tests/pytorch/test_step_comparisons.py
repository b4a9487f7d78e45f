"""Batches are only cut while the gradients of their parts are those of the whole."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.nn.modules import module as torch_module

import anygpu as ag
from anygpu.pytorch import GradientsDiffer, Step
from anygpu.pytorch.forms import halving_for
from anygpu.pytorch.gradient_comparison import MOST_BETWEEN, Compared, Comparer, Comparisons, next_comparison
from tests.pytorch.modules import assert_same_gradients, contrastive, mlp, plain

torch.manual_seed(0)
X, VALUES = torch.randn(32, 8), torch.randn(32, 3)
#: Not enough for all rows of a `wide` module, and enough for some.
BUDGET = 150_000


def wide(*layers: nn.Module) -> nn.Sequential:
    """Its activations are larger than its parameters, so that a budget has it cut."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), *layers, nn.Linear(64, 3))


def stepping(model: nn.Module, loss: Any = F.mse_loss, lr: float = 0.0, **options: Any) -> Step:
    return Step(model, torch.optim.SGD(model.parameters(), lr), loss, precision="float32", **options)


def is_cut(receipt: ag.Receipt) -> bool:
    return "micro-batches" in str(receipt.how)


def test_what_may_be_cut_is_cut_within_the_budget() -> None:
    """The others here would be too, if nothing were seen."""
    model = wide()
    x, y = torch.randn(128, 8), torch.randn(128, 3)
    expected, _ = plain(model, F.mse_loss, x, y)
    receipt = stepping(model, memory=BUDGET, checkpoint=())((x, y)).receipt
    assert is_cut(receipt)
    assert_same_gradients(model, expected)
    assert "as many as fit at once, were those of their parts and the outputs of all rows" in receipt.reason
    assert receipt.reason.endswith("compared in this step")


# -- what couples rows


class Gated(nn.Module):
    """Rows attend to each other, through a gate that begins closed."""

    def __init__(self, gate: float = 0.0) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate * (torch.softmax(x @ x.T, -1) @ x)


class NormalisedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] / gradients[0].norm()


class Applied(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Experts(nn.Module):
    """Each takes some of the rows that want it, and no more than it has room for."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.router, self.room = nn.Linear(64, 4), room
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.router(x).softmax(-1)
        for number, expert in enumerate(self.experts):
            mine = (share.argmax(-1) == number).nonzero().flatten()[: self.room]
            x = x.index_add(0, mine, expert(x[mine]) * share[mine, number : number + 1])
        return x


def hidden_from_values(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(0, keepdim=True).square()
    return x + mean - mean.detach()


COUPLED: dict[str, Callable[[], nn.Module]] = {
    "gate that begins at zero": Gated,
    "function of the whole gradient": lambda: Applied(NormalisedGradient.apply),
    "experts with room for few": lambda: Experts(6),
    "hidden from values": lambda: Applied(hidden_from_values),
    "more rows than eight": lambda: Applied(lambda x: x if len(x) <= 8 else 2 * x),
    "scaled by the number of rows": lambda: Applied(lambda x: x * (1 + (len(x) > 8) * 0.01)),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_batch_whose_parts_have_other_gradients_is_said_to_be_cut(name: str) -> None:
    receipt = stepping(wide(COUPLED[name]()), micro_batch=8)((X, VALUES)).receipt
    assert is_cut(receipt)
    assert "but the gradients are not those of the whole batch" in receipt.reason


@pytest.mark.parametrize("name", COUPLED)
def test_a_batch_whose_parts_have_other_gradients_is_not_cut(name: str) -> None:
    """Of a planner that needs no predictions, which are not to be had for experts: memory ran out before."""
    model = wide(COUPLED[name](), OutOfMemoryOnce())
    expected, _ = plain(wide(*model[4:5]), F.mse_loss, X, VALUES)
    receipt = stepping(model, make_planner=halving_for)((X, VALUES)).receipt
    assert receipt.failures
    assert not is_cut(receipt)
    assert "the batch is not cut: " in receipt.reason
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)


class OutOfMemoryOnce(nn.Module):
    """In the first pass with gradients, as when something else had the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and self.left and self.left.pop():
            raise MemoryError
        return x


@pytest.mark.parametrize(
    "layer",
    [Gated(), Applied(NormalisedGradient.apply), Applied(lambda x: x if len(x) <= 100 else 2 * x)],
    ids=["gate", "gradient", "outputs of more rows"],
)
def test_where_the_whole_does_not_fit_what_does_is_compared(layer: nn.Module) -> None:
    model = wide(layer)
    x, y = torch.randn(256, 8), torch.randn(256, 3)
    expected, _ = plain(model, F.mse_loss, x, y)
    receipt = stepping(model, memory=BUDGET)((x, y)).receipt
    assert not is_cut(receipt)
    assert "the batch is not cut: " in receipt.reason
    assert_same_gradients(model, expected)


def test_a_loss_that_hides_from_its_values_is_computed_on_all_outputs() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        size = outputs.mean(0).square().sum()
        return F.mse_loss(outputs, targets) + size - size.detach()

    model = mlp()
    expected, _ = plain(model, loss, X, VALUES)
    receipt = stepping(model, loss, micro_batch=8)((X, VALUES)).receipt
    assert_same_gradients(model, expected)
    assert "goes through twice, for the loss of all: its gradient is not made of those of parts" in receipt.reason


def test_a_tensor_that_has_as_many_entries_as_the_batch_has_rows() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor, kernel: torch.Tensor) -> Any:
            return self.inner(x) * kernel.sum()

    receipt = stepping(Weighted(), micro_batch=8)(((X, torch.rand(32)), VALUES)).receipt
    assert "are not those of the whole batch" in receipt.reason


# -- hooks


def clamp(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(-0.01, 0.01)


def ignore(*_: object) -> None:
    """A hook that does nothing: whether one does, cannot be seen."""


def clamp_what_comes_back(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
    if output.requires_grad:
        output.register_hook(clamp)


HOOKS: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
    "parameter": (lambda model: model[0].weight.register_hook(clamp), "parameter '0.weight' has a hook"),
    "accumulated": (
        lambda model: model[0].bias.register_post_accumulate_grad_hook(ignore),
        "parameter '0.bias' has a hook",
    ),
    "module": (lambda model: model[2].register_full_backward_hook(ignore), "Linear '2' has a backward hook"),
    "before a module": (
        lambda model: model.register_full_backward_pre_hook(ignore),
        "a Sequential has a backward hook",
    ),
    "every module": (
        lambda model: torch_module.register_module_full_backward_hook(ignore),
        "registered for every module",
    ),
    "tensor": (
        lambda model: model[2].register_forward_hook(clamp_what_comes_back),
        "registers hooks on tensors",
    ),
}


@pytest.fixture(params=HOOKS)
def hooked(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Sequential, Any, str]]:
    register, words = HOOKS[request.param]
    model = wide()
    handle = register(model)
    yield model, handle, words
    handle.remove()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_with_a_hook_a_batch_is_not_cut(hooked: tuple[nn.Sequential, Any, str]) -> None:
    model, _, words = hooked
    x, y = torch.randn(256, 8), torch.randn(256, 3)
    receipt = stepping(model, memory=BUDGET)((x, y)).receipt
    assert not is_cut(receipt)
    assert "the batch is not cut: " in receipt.reason
    assert words in receipt.reason


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_with_a_hook_the_users_own_size_is_obeyed(hooked: tuple[nn.Sequential, Any, str]) -> None:
    model, _, words = hooked
    receipt = stepping(model, micro_batch=8)((X, VALUES)).receipt
    assert "not those of the whole batch" in receipt.reason
    assert words in receipt.reason


def test_a_hook_that_comes_and_goes() -> None:
    model = wide()
    x, y = torch.randn(512, 8), torch.randn(512, 3)
    step = stepping(model, memory=BUDGET)
    assert is_cut(step((x, y)).receipt)
    handle = model[0].weight.register_hook(clamp)
    assert not is_cut(step((x, y)).receipt)
    handle.remove()
    assert is_cut(step((x, y)).receipt)


def test_a_hook_on_a_parameter_of_the_optimiser_alone() -> None:
    model, other = mlp(), nn.Parameter(torch.zeros(3))
    other.register_hook(clamp)
    optimizer = torch.optim.SGD([*model.parameters(), other], 0.0)
    step = Step(model, optimizer, lambda o, t: F.mse_loss(o + other, t), precision="float32", micro_batch=8)
    assert "a parameter has a hook for its gradient" in step((X, VALUES)).receipt.reason


# -- looking again


class Warming(nn.Module):
    """Rows meet after some steps, and not before: a schedule that a buffer counts."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return x - x.mean(0) if int(self.steps) > self.after else x


def test_what_shows_later_is_told_and_ends_the_cutting() -> None:
    model = nn.Sequential(mlp(), Warming(5), OutOfMemoryOnce())
    step = stepping(model, lr=0.01, make_planner=halving_for)
    receipts = [step((X, VALUES)).receipt for _ in range(10)]
    assert all(map(is_cut, receipts))
    assert [each.reason.rpartition(", ")[2] for each in receipts[:4]] == [
        "compared in this step",
        "compared in this step",
        "compared 1 cut step ago",
        "compared 2 cut steps ago",
    ]
    other = copy.deepcopy(model)
    with pytest.warns(GradientsDiffer, match=r"not cut from now on. 8 steps cut since the last comparison may") as told:
        receipt = step((X, VALUES)).receipt
    assert told[0].filename == __file__
    assert not is_cut(receipt)
    assert "8 steps cut since the last comparison may have had other gradients" in receipt.reason
    F.mse_loss(other(X), VALUES).backward()
    assert_same_gradients(model, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = step((X, VALUES)).receipt
        fewer = step((X[:20], VALUES[:20])).receipt
    assert "the batch is not cut: the gradient of" in again.reason
    assert not is_cut(again)
    assert not is_cut(fewer)


def test_what_shows_later_is_told_of_a_size_that_the_user_has_set() -> None:
    step = stepping(nn.Sequential(mlp(), Warming(1)), micro_batch=8)
    assert "not those of the whole" not in step((X, VALUES)).receipt.reason
    with pytest.warns(GradientsDiffer, match=r"micro_batch= is obeyed. The steps that were cut before had been"):
        receipt = step((X, VALUES)).receipt
    assert is_cut(receipt)
    assert "not those of the whole batch" in receipt.reason
    assert "not those of the whole batch" in step((X, VALUES)).receipt.reason


def test_another_number_of_rows_is_compared_at_once() -> None:
    """Parts of eight rows are as 16 rows are, and not as 32."""
    model = nn.Sequential(mlp(), Applied(lambda x: x if len(x) <= 16 else 2 * x))
    step = stepping(model, micro_batch=8)
    assert "not those of the whole" not in step((X[:16], VALUES[:16])).receipt.reason
    with pytest.warns(GradientsDiffer):
        assert "not those of the whole" in step((X, VALUES)).receipt.reason


def test_a_layer_that_is_trained_from_now_on_is_compared_at_once() -> None:
    class Scaled(nn.Module):
        """The gradient of `size` depends on the number of rows, and nothing else does."""

        def __init__(self) -> None:
            super().__init__()
            self.size = nn.Parameter(torch.zeros(()), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.size * len(x)

    layer = Scaled()
    step = stepping(nn.Sequential(mlp(), layer), micro_batch=8)
    for _ in range(3):
        assert "not those of the whole" not in step((X, VALUES)).receipt.reason
    layer.size.requires_grad_()
    with pytest.warns(GradientsDiffer):
        assert "the gradient of '1.size'" in step((X, VALUES)).receipt.reason


@pytest.mark.parametrize(("cut", "following"), [(0, 1), (1, 10), (9, 10), (10, 100), (999, 1000), (1000, 2000)])
def test_when_to_compare_again(cut: int, following: int) -> None:
    assert next_comparison(cut) == following


def test_comparisons_of_ten_thousand_steps() -> None:
    comparisons = Comparisons()
    at = []
    for number in range(10_000):
        if comparisons.is_due:
            at.append(number)
            comparisons.agreed("all")
        comparisons.ran_cut()
    assert at[:5] == [0, 1, 10, 100, 1000]
    assert at[5:] == list(range(2 * MOST_BETWEEN, 10_000, MOST_BETWEEN))


def test_a_comparison_between_two_that_are_due_puts_none_off() -> None:
    comparisons = Comparisons()
    for number in range(10):
        if comparisons.is_due or number == 5:
            last = comparisons.agreed("all")
        comparisons.ran_cut()
    assert comparisons.sentence(last) == "all, compared 5 cut steps ago"
    assert comparisons.is_due
    assert comparisons.not_compared().startswith("4 steps cut since")


# -- nothing is disturbed


class Busy(nn.Module):
    """Draws every kind of random number, and notes what it does in a buffer and in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.calls, self.last = nn.Dropout(0.5), 0, None
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> Any:
        random.random()
        np.random.rand()
        self.calls += 1
        self.count += 1
        made = self.dropout(x)
        self.last = made.detach()
        return made


@pytest.mark.parametrize("loss", [F.mse_loss, contrastive])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_comparison_leaves_no_trace(loss: Any, precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        busy = Busy()
        model = nn.Sequential(mlp(), busy)
        kept = nn.Parameter(torch.ones(()))
        kept.grad = torch.tensor(3.0)
        model.register_parameter("kept", kept)
        inputs = X.clone().requires_grad_()
        optimizer = torch.optim.Adam([each for each in model.parameters() if each is not kept], 0.01)
        step = Step(model, optimizer, loss, precision=precision, micro_batch=8, accumulate=2, make_planner=halving_for)
        losses = [step((inputs, VALUES)).loss for _ in range(4)]
        gradients = [each.grad for each in (*model.parameters(), inputs)]
        state = [value for each in optimizer.state.values() for value in each.values()]
        drawn = [torch.rand(()), torch.tensor(random.random()), torch.tensor(np.random.rand())]
        counts = [busy.count, torch.tensor(busy.calls), busy.last]
        scale = step.state_dict()["scaler"]
        return [*losses, *gradients, *state, *drawn, *counts, torch.tensor((scale or {"scale": 0.0})["scale"])]

    compared = run()
    monkeypatch.setattr(Comparer, "gradients", lambda *_: Compared())
    for one, other in zip(compared, run(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_nothing_is_compiled_for_a_comparison() -> None:
    sizes: set[int] = set()

    def backend(graph: Any, inputs: list[Any]) -> Any:
        sizes.update(each.size(0) for each in inputs if isinstance(each, torch.Tensor) and each.shape[1:] == (8,))
        return graph.forward

    for compiled in (torch.compile(mlp(), backend=backend, dynamic=False), mlp()):
        if not sizes:
            torch._dynamo.reset()
        if isinstance(compiled, nn.Sequential):
            compiled.compile(backend=backend, dynamic=False)
        receipt = stepping(compiled, micro_batch=16, make_planner=halving_for)((X, VALUES)).receipt
        assert is_cut(receipt)
        assert "the gradients of all 32 rows at once were those of parts of 16" in receipt.reason
        assert sizes == {16}


# -- what a comparison does not show


def test_gradients_that_are_zero_show_nothing_and_are_compared_again() -> None:
    model = mlp()
    step = stepping(model, lambda o, t: F.mse_loss(o * t[:, :1], t * 0), micro_batch=8)
    receipt = step((X, torch.zeros(32, 3))).receipt
    assert "nothing was shown of gradients (gradients of 32 rows were all zero, or not finite)" in receipt.reason
    assert "the gradients of all 32 rows at once were" in step((X, VALUES)).receipt.reason


def test_a_module_that_takes_a_part_and_not_the_whole_says_so() -> None:
    class Small(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 8:
                raise ValueError("too many")
            return x

    receipt = stepping(nn.Sequential(mlp(), Small()), micro_batch=8)((X, VALUES)).receipt
    assert "nothing was shown of gradients (32 rows at once cannot be computed: ValueError: too many)" in receipt.reason


def test_where_memory_runs_out_fewer_rows_are_compared_and_it_is_said() -> None:
    class Greedy(nn.Module):
        def __init__(self, most: int) -> None:
            super().__init__()
            self.most, self.largest = most, [0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                self.largest.append(len(x))
                if len(x) > self.most:
                    raise MemoryError
            return x

    greedy = Greedy(10)
    step = stepping(nn.Sequential(mlp(), greedy), make_planner=halving_for)
    reason = step((X, VALUES)).receipt.reason
    assert "the gradients of 8 of 32 rows, as many as fit at once, were those of their parts and the outputs" in reason
    greedy.largest.clear()
    step((X, VALUES))
    assert max(greedy.largest) == 8  # it is not tried again
    greedy.most = 1
    step = stepping(nn.Sequential(mlp(), greedy), micro_batch=1, make_planner=halving_for)
    assert "gradients could not be compared, as two rows at once do not fit" in step((X, VALUES)).receipt.reason
