"""Predictions of a step's memory: what they count, that they leave nothing behind, and when they are refused."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from anygpu.errors import InvalidOption
from anygpu.pytorch.checkpointing import candidates
from anygpu.pytorch.footprint import CannotPredict, predict, predict_outputs
from anygpu.pytorch.step_plans import Footprint
from tests.pytorch.test_checkpointing import Tower, left_as_it_was
from tests.support.counting_allocator import environment

FLOAT = 4


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


def predicted(model: nn.Module, batch: torch.Tensor, **options: Any) -> Footprint:
    return predict(model, squared, batch, **({"rows": len(batch)} | options))


class TestWhatIsCounted:
    def test_a_linear_layer_to_the_byte(self) -> None:
        model, rows = nn.Linear(256, 512, bias=False), 1024
        found = predict(model, lambda model, x: model(x).sum(), torch.empty(rows, 256), rows=rows, accumulate=False)
        weight, results = 256 * 512 * FLOAT, rows * 512 * FLOAT
        assert found.fixed_bytes == 2 * weight
        # Beside the weight there are first the results, which a sum does not keep, and then the gradient.
        assert weight + results <= found.peak_bytes <= weight + results + 256
        assert found.flops == 2 * rows * 256 * 512
        assert found.rows == rows
        assert found.operations > 5

    def test_gradients_of_earlier_micro_batches(self) -> None:
        model, x = nn.Linear(512, 512), torch.empty(4, 512)
        once, again = predicted(model, x, accumulate=False), predicted(model, x)
        assert again.peak_bytes == pytest.approx(once.peak_bytes + 512 * 512 * FLOAT, rel=0.02)
        assert again.fixed_bytes == once.fixed_bytes

    def test_parameters_without_gradients(self) -> None:
        class Partly(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.frozen, self.unused = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
                self.frozen.requires_grad_(False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.frozen(self.used(x))

        one = (64 * 64 + 64) * FLOAT
        for accumulate in (False, True):
            found = predicted(Partly(), torch.empty(2, 64), accumulate=accumulate)
            assert found.fixed_bytes == pytest.approx(4 * one, abs=512)

    def test_tied_parameters_once(self) -> None:
        model = nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(128, 128, bias=False))
        model[1].weight = model[0].weight
        assert predicted(model, torch.empty(2, 128)).fixed_bytes == 2 * 128 * 128 * FLOAT

    @pytest.mark.parametrize(
        ("optimizer", "kept"),
        [
            (lambda p: torch.optim.SGD(p, lr=0.1), 0),
            (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
            (lambda p: torch.optim.AdamW(p), 2),
            (lambda p: torch.optim.Adam(p, amsgrad=True), 3),
            (lambda p: torch.optim.RMSprop(p), 1),
            (lambda p: torch.optim.ASGD(p), 2),  # it reads values: a cautious guess
        ],
    )
    def test_what_an_optimizer_keeps(self, optimizer: Any, kept: int) -> None:
        model = nn.Linear(256, 256, bias=False)
        steps = optimizer(model.parameters())
        found = predicted(model, torch.empty(2, 256), optimizer=steps)
        weight = 256 * 256 * FLOAT
        assert found.fixed_bytes == pytest.approx((2 + kept) * weight, abs=1024)
        assert not steps.state
        # The same when what it keeps exists already.
        model(torch.ones(2, 256)).sum().backward()
        steps.step()
        model.zero_grad()
        assert predicted(model, torch.empty(2, 256), optimizer=steps).fixed_bytes == pytest.approx(
            found.fixed_bytes, rel=0.34 if kept == 2 and isinstance(steps, torch.optim.ASGD) else 0.01
        )

    def test_what_an_optimizer_takes_while_it_steps(self) -> None:
        model = nn.Linear(512, 512, bias=False)
        weight = 512 * 512 * FLOAT
        found = predicted(model, torch.empty(1, 512), optimizer=torch.optim.AdamW(model.parameters()))
        # On a processor Adam goes parameter by parameter, with two temporaries.
        assert 5 * weight <= found.peak_bytes <= 6.1 * weight

    def test_a_schedule_of_learning_rates_does_not_lead_to_the_real_optimizer(self) -> None:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        before = copy.deepcopy(optimizer.state_dict())
        predicted(model, torch.empty(2, 64), optimizer=optimizer)
        assert optimizer.state_dict() == before
        assert not getattr(optimizer, "_opt_called", False)
        assert schedule.last_epoch == 0

    def test_rows_are_shapes_only(self) -> None:
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        batch = torch.empty(8, 64)
        few, many, more = (predicted(model, batch, rows=rows) for rows in (1000, 2000, 1_000_000))
        # What grows with rows grows evenly, to sizes that no machine has.
        slope = (many.peak_bytes - few.peak_bytes) / 1000
        assert more.peak_bytes == pytest.approx(few.peak_bytes + slope * 999_000, rel=0.001)

    def test_batches_of_several_tensors(self) -> None:
        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(8, 8)

            def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
                return self.linear(x) * scale

        def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
            out = model(batch["x"], batch["scale"])
            assert out.shape == (32, 8)
            assert batch["names"] == ["a"]
            return functional.mse_loss(out, batch["y"])

        batch = {"x": torch.ones(4, 8), "y": torch.ones(4, 8), "scale": torch.ones(8), "names": ["a"]}
        assert predict(Pair(), loss_of, batch, rows=32).peak_bytes > 0

    def test_autocast_is_smaller(self) -> None:
        model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        batch = torch.empty(4096, 64)
        whole, half = (predicted(model, batch, precision=name).peak_bytes for name in ("float32", "bfloat16"))
        assert 0.4 * whole < half < 0.8 * whole


class TestLayers:
    def test_say_what_is_freed(self) -> None:
        model, rows = Tower(width=64, depth=6, dropout=0.0), 4096
        plain = predicted(model, torch.empty(rows, 64))
        assert [layer.name for layer in plain.layers] == list(candidates(model))
        for layer in plain.layers:
            # Of a block: the normalised, and twice as wide what goes into GELU and what comes out.
            assert layer.freed_bytes == pytest.approx(5 * rows * 64 * FLOAT, rel=0.25)
            assert layer.again_bytes >= layer.freed_bytes
            assert layer.seconds > 0

    def test_checkpointing_frees_it(self) -> None:
        model, x = Tower(width=64, depth=6), torch.empty(4096, 64)
        plain = predicted(model, x)
        for chosen in (candidates(model)[:3], candidates(model)[3:], candidates(model)):
            found = predicted(model, x, checkpoint=chosen)
            layers = [layer for layer in plain.layers if layer.name in chosen]
            freed = sum(layer.freed_bytes for layer in layers)
            back = 0 if chosen == candidates(model)[:3] else max(layer.again_bytes for layer in layers)
            assert plain.peak_bytes - found.peak_bytes == pytest.approx(freed - back, rel=0.2)
            assert found.fixed_bytes == plain.fixed_bytes


class TestNothingIsLeftBehind:
    def test_of_the_module_and_the_random_state(self) -> None:
        model = Tower()
        model.train()
        state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        with left_as_it_was(model):
            predicted(model, torch.empty(8, 8), checkpoint=("blocks.0",))
        assert torch.equal(torch.get_rng_state(), random_state)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_of_gradients(self) -> None:
        model = nn.Linear(4, 4)
        model(torch.ones(1, 4)).sum().backward()
        gradient = model.weight.grad
        assert gradient is not None
        before = gradient.clone()
        predicted(model, torch.empty(2, 4))
        assert model.weight.grad is gradient
        assert torch.equal(gradient, before)

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_after_errors(self, error: type[BaseException]) -> None:
        class Failing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.linear(x)
                raise error("on purpose")

        model = Failing()
        expected = KeyboardInterrupt if error is KeyboardInterrupt else CannotPredict
        with left_as_it_was(model), pytest.raises(expected, match="on purpose"):
            predicted(model, torch.empty(2, 4))
        # No mode is left active: tensors have data again.
        assert torch.ones(2).sum().item() == 2


class TestRefusals:
    @pytest.mark.parametrize(
        "forward",
        [
            lambda x: x * x.sum().item(),
            lambda x: x if x.sum() > 0 else -x,
            lambda x: x[x > 0],
            lambda x: torch.from_numpy(x.detach().numpy()) * x,
        ],
        ids=["item", "branch", "mask", "numpy"],
    )
    def test_modules_that_need_data(self, forward: Any) -> None:
        class Needy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return forward(self.linear(x))

        with pytest.raises(CannotPredict, match="cannot be predicted") as caught:
            predicted(Needy(), torch.empty(2, 4))
        assert caught.value.reason

    def test_options_that_are_wrong(self) -> None:
        model = nn.Linear(4, 4)
        with pytest.raises(InvalidOption, match="at least one row"):
            predicted(model, torch.empty(2, 4), rows=0)
        with pytest.raises(InvalidOption, match="precision is one of"):
            predicted(model, torch.empty(2, 4), precision="float8")
        with pytest.raises(InvalidOption, match="no submodule"):
            predicted(model, torch.empty(2, 4), checkpoint=("x",))


_MEASURED = """
from benchmarks.pytorch_memory import measure
measure("warm-up", "attention pooling")
for name in ("convolutions", "graph"):
    for one in measure(name, name):
        print(name, one.passes, round(one.error, 1))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_is_near_what_a_counting_allocator_sees() -> None:
    child = subprocess.run(
        [sys.executable, "-c", _MEASURED], env=environment(), capture_output=True, text=True, timeout=280, check=False
    )
    assert child.returncode == 0, child.stderr
    errors = [float(line.split()[-1]) for line in child.stdout.splitlines()]
    assert len(errors) == 4
    assert max(map(abs, errors)) < 20, child.stdout


def test_outputs_without_gradients_keep_no_activations() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    x = torch.empty(16, 64)
    found = predict_outputs(model, lambda model, batch: model(batch), x, 1000)
    # Two results at once, and a second copy of the last.
    assert found == pytest.approx(3 * 1000 * 64 * FLOAT, rel=0.01)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(CannotPredict, match="without data"):
        predict_outputs(model, lambda model, batch: model(batch).tolist(), x, 4)
