"""Rows of torch's functions: what is proved to be independent is, and what is not is refused with the reason."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from anygpu.engines.torch.row_independence import fingerprint_of, prove


def found(function: Callable[..., Any], *shape: int, rows: int = 4) -> str | None:
    """Why it is not proved, for floats of such a shape; `None` if it is."""
    with torch.no_grad():
        return prove(function, (torch.randn(rows, *shape),), {}).reason


# -- what is independent


def attention(heads: int = 2) -> nn.Module:
    return nn.TransformerEncoderLayer(8, heads, 16, batch_first=True).eval()


class Tokens(nn.Module):
    """As vision transformers begin: a token in front of each row, and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions)[:, 0]


PROVED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "perceptron": (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 3)).eval(), (6,)),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 2),
        ).eval(),
        (3, 8, 8),
    ),
    "group norm": (nn.GroupNorm(2, 4), (4, 5)),
    "instance norm": (nn.InstanceNorm1d(4), (4, 5)),
    "layer norm": (nn.LayerNorm(8), (5, 8)),
    "softmax of another axis": (nn.Softmax(dim=1), (5, 8)),
    "attention": (attention(), (5, 8)),
    "tokens": (Tokens(), (5, 8)),
    "own attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), (2, 5, 8)),
    "products of rows": (lambda x: torch.einsum("bij,bkj->bik", x, x), (5, 8)),
    "reshaped rows": (lambda x: x.reshape(-1, 3), (6,)),
    "rows in the middle": (lambda x: x.transpose(0, 1).reshape(-1, 8).mul(2).reshape(5, -1, 8).transpose(0, 1), (5, 8)),
    "resized": (lambda x: functional.interpolate(x, scale_factor=2), (2, 4, 4)),
    "zeros for each row": (lambda x: torch.tanh(x + torch.zeros(x.shape[0], 6)), (6,)),
    "a dictionary": (lambda x: {"sum": x.sum(-1), "largest": x.amax(1)}, (6,)),
}


@pytest.mark.parametrize("name", PROVED)
def test_independent_rows_are_proved(name: str) -> None:
    function, shape = PROVED[name]
    assert found(function, *shape) is None
    assert found(function, *shape, rows=1) is None


def test_integers_are_looked_up_row_by_row() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(24, 3)).requires_grad_(False)
    assert prove(model, (torch.randint(0, 10, (4, 6)),), {}).is_proved


def test_results_may_have_their_rows_along_another_axis() -> None:
    with torch.no_grad():
        proof = prove(lambda x: (x.t(), x), (torch.ones(4, 6),), {})
    assert proof.axes == (1, 0)


@pytest.mark.full
def test_the_compiler_of_torch_is_not_loaded() -> None:
    code = (
        "import sys, torch; from anygpu.engines.torch.row_independence import prove\n"
        "model = torch.nn.Linear(3, 2).requires_grad_(False)\n"
        "assert prove(model, (torch.ones(4, 3),), {}).is_proved\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- what is not


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


class Averaging(nn.Module):
    """Updates a buffer, as batch norms do."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average.mul_(0.9)
        return x - self.average


class Shifting(Averaging):
    """Changes a buffer through a view of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average[0] += 1
        self.average.detach().view(2, 3).t().add_(1)
        return x - self.average


class Remembering(nn.Module):
    last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, self.last = self.last, x
        return x if y is None else x + y


def hooked() -> nn.Module:
    model = nn.Linear(6, 6)
    model.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return model


def caught(x: torch.Tensor) -> torch.Tensor:
    try:
        return x - x.mean(0)
    except BaseException:  # noqa: BLE001
        return x


def counts_globally(x: torch.Tensor) -> torch.Tensor:
    global _total
    _total = x.shape[0]
    return x


class Helper:
    factor = 2.0


_helper = Helper()
_total = 0
_permutation = torch.tensor([1, 0, 2])
_over_rows = nn.Conv1d(1, 1, 3, padding=1)

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a batch norm that trains": (nn.BatchNorm1d(6).train(), "BatchNorm1d is in training mode"),
    "a batch norm without statistics": (nn.BatchNorm1d(6, track_running_stats=False).eval(), "over all rows"),
    "functional batch norm": (lambda x: functional.batch_norm(x, None, None, training=True), "over all rows"),
    "softmax of rows": (nn.Softmax(dim=0), "_softmax works along the rows"),
    "less the mean": (lambda x: x - x.mean(0), "mean takes all rows together"),
    "less the mean, caught": (caught, "mean takes all rows together"),
    "running sum": (lambda x: x.cumsum(0), "cumsum works along the rows"),
    "sorted": (lambda x: x.sort(0)[0], "sort works along the rows"),
    "best of the rows": (lambda x: x.topk(1, 0)[0], "topk works along the rows"),
    "flipped": (lambda x: x.flip(0), "flip works along the rows"),
    "rolled": (lambda x: x.roll(1, 0), "roll works along the rows"),
    "rolled as a whole": (lambda x: x.roll(1), "roll works along the rows"),
    "gram matrix": (lambda x: x @ x.T, "mm multiplies and adds over the rows"),
    "covariance": (lambda x: x.T @ x, "mm multiplies and adds over the rows"),
    "attention over rows": (
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
        "multiplies rows with other rows",
    ),
    "shares of the whole": (lambda x: x / x.sum(), "sum takes all rows together"),
    "norm of the whole": (lambda x: x / x.norm(), "takes all rows together"),
    "largest of all": (lambda x: x / x.max(), "max takes all rows together"),
    "rows joined": (lambda x: x.reshape(-1, 9), "puts values of different rows into one"),
    "rows interleaved": (lambda x: x.t().reshape(-1, 6), "do not lie one after the other"),
    "less the first": (lambda x: x - x[0], "takes rows by their place"),
    "the first few": (lambda x: x[:100], "takes some of the rows"),
    "every second": (lambda x: x[::2], "takes some of the rows"),
    "permuted": (lambda x: x[_permutation], "takes rows by their place"),
    "a loop": (lambda x: torch.stack([x[i] for i in range(x.shape[0])]), "takes rows by their place"),
    "differences of all": (lambda x: x[:, None] - x[None], "combines rows with other rows"),
    "distances": (lambda x: torch.cdist(x, x), "no rule for the operator _cdist_forward"),
    "convolved over rows": (lambda x: _over_rows(x.t()[:, None])[:, 0].t(), "takes the rows for channels or places"),
    "divided by the rows": (lambda x: x / x.shape[0], "div takes the number of rows as a value"),
    "divided by their length": (lambda x: x / len(x), "takes the number of rows as a number"),
    "a tensor of their number": (lambda x: x / torch.tensor(float(x.numel())), "the number of rows"),
    "another way for many": (lambda x: x * 2 if x.shape[0] > 4 else x, "the number of rows"),
    "another way for none": (lambda x: x * 2 if x.size(0) else x, "the number of rows"),
    "numbered": (lambda x: x + torch.arange(x.shape[0])[:, None], "another value for each row"),
    "dropout": (nn.Dropout(), "draws random numbers"),
    "noise": (lambda x: x + torch.randn_like(x), "draws random numbers"),
    "Python's random numbers": (lambda x: x * random.random(), "the Python module random"),
    "a value": (lambda x: x if x[:, 0].sum(0, keepdim=True) > 0 else -x, "takes all rows together"),
    "a value of a row": (lambda x: x * x.amax(1).tolist()[0], "reads values of the rows in Python"),
    "through NumPy": (lambda x: x + torch.from_numpy(x.numpy()), "reads values of the rows in Python"),
    "its argument changed": (lambda x: x.add_(1), "changes an argument in place"),
    "a buffer changed": (Averaging(), "changes a parameter, a buffer or another tensor"),
    "a view of a buffer changed": (Shifting(), "changes a parameter, a buffer or another tensor"),
    "counted calls": (Counting(), "changes attributes or buffers"),
    "a kept tensor": (Remembering(), "changes attributes or buffers"),
    "a global variable": (counts_globally, "changes the variable _total"),
    "hooks": (hooked(), "has hooks"),
    "something else": (lambda x: torch.ones(3), "does not come from the rows"),
    "a constant beside": (lambda x: (x, 1.0), "does not come from the rows"),
    "an object": (lambda x: x * _helper.factor, "an object of Helper"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dependent_rows_are_refused_with_the_reason(name: str) -> None:
    function, reason = REFUSED[name]
    assert reason in str(found(function, 6))


def test_one_row_alone_is_looked_at_too() -> None:
    assert found(lambda x: x.squeeze(), 6) is None
    assert "another shape for one row alone" in str(found(lambda x: x.squeeze(), 6, rows=1))


def test_results_that_require_gradients_are_refused() -> None:
    assert "torch.no_grad()" in str(prove(nn.Linear(6, 2), (torch.ones(4, 6),), {}).reason)


def test_a_captured_list_is_refused() -> None:
    shifts = [1.0]
    assert "captures shifts, which can be changed" in str(found(lambda x: x + shifts[0], 6))


def test_looking_leaves_no_trace() -> None:
    model = Counting()
    assert found(model, 6) is not None
    assert model.calls == 0
    averaging = Averaging()
    averaging.average += 1
    assert found(averaging, 6) is not None
    assert torch.equal(averaging.average, torch.ones(6))


# -- what a proof rests on


def test_a_proof_holds_until_the_module_changes() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout()).eval().requires_grad_(False)
    proof = prove(model, (torch.ones(4, 6),), {})
    assert proof.is_proved
    assert fingerprint_of(model) == proof.fingerprint
    with torch.no_grad():
        model[0].weight += 1
    assert fingerprint_of(model) == proof.fingerprint, "other values of parameters change nothing"
    model.train()
    assert fingerprint_of(model) != proof.fingerprint
    model.eval()
    assert fingerprint_of(model) == proof.fingerprint
    model[1] = nn.Softmax(dim=0)
    assert fingerprint_of(model) != proof.fingerprint
    model[1] = nn.Identity()
    model.register_forward_hook(lambda *_: None)
    assert fingerprint_of(model) is None


# -- proved means equal

_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda n: nn.Linear(n, n),
    # In place, and not of the argument, which must not change.
    "relu": lambda n: nn.Sequential(nn.Hardswish(), nn.ReLU(inplace=True)),
    "gelu": lambda n: nn.GELU(),
    "tanh": lambda n: nn.Tanh(),
    "layer norm": lambda n: nn.LayerNorm(n),
    "batch norm": lambda n: nn.BatchNorm1d(4),
    "group norm": lambda n: nn.GroupNorm(2, 4),
    "convolution": lambda n: nn.Conv1d(4, 4, 3, padding=1),
    "pooling": lambda n: nn.AvgPool1d(3, 1, 1),
    "softmax": lambda n: nn.Softmax(dim=random.choice((-1, 1))),
    "attention": lambda n: nn.TransformerEncoderLayer(n, 2, 8, batch_first=True),
    "dropout": lambda n: nn.Dropout(),
    # These mix rows.
    "softmax of rows": lambda n: nn.Softmax(dim=0),
    "attention over rows": lambda n: nn.TransformerEncoderLayer(n, 2, 8),
    "less the mean": lambda n: _Function(lambda x: x - x.mean(0)),
    "transposed": lambda n: _Function(lambda x: x.transpose(0, 1).contiguous().view(x.shape)),
    "turned": lambda n: _Function(lambda x: x.transpose(1, 2).reshape(x.shape)),
    "halves": lambda n: _Function(lambda x: torch.cat(x.chunk(2, dim=1)[::-1], dim=1)),
}


class _Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.full
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    phases=[Phase.generate],
)
@given(
    names=st.lists(st.sampled_from(sorted(_LAYERS)), min_size=1, max_size=4),
    rows=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
)
def test_what_is_proved_is_the_same_in_one_launch(names: list[str], rows: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    model = nn.Sequential(*(_LAYERS[name](8) for name in names)).eval().requires_grad_(False)
    parts = [torch.randn(count, 4, 8) for count in rows]
    proof = prove(model, (parts[0],), {})
    mixing = {"softmax of rows", "attention over rows", "less the mean", "transposed"}
    assert proof.is_proved == mixing.isdisjoint(names), proof.reason
    if proof.is_proved:
        together = model(torch.cat(parts))
        torch.testing.assert_close(together, torch.cat([model(part) for part in parts]), rtol=1e-4, atol=1e-5)
