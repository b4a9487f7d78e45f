"""Layers that are computed again: which are chosen, that a module computes the same, and that it is left as it was."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from anygpu.errors import InvalidOption, Unsupported
from anygpu.pytorch.checkpointing import candidates, checkpointed, select
from anygpu.pytorch.step_plans import LayerCost


def costs(*values: tuple[int, int, float]) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(name=f"layer{index}", freed_bytes=freed, again_bytes=again, seconds=seconds)
        for index, (freed, again, seconds) in enumerate(values)
    )


def peak(layers: tuple[LayerCost, ...], chosen: tuple[str, ...]) -> int:
    """What is kept when each layer's backward pass runs, the last first."""
    kept, highest = 0, 0
    for layer in layers:
        repeated = layer.name in chosen
        highest = max(highest, kept + (layer.again_bytes if repeated else layer.freed_bytes))
        kept += 0 if repeated else layer.freed_bytes
    return highest


def best(layers: tuple[LayerCost, ...], excess: int) -> float | None:
    """The least seconds, from every choice there is."""
    most = sum(layer.freed_bytes for layer in layers) - excess
    seconds = [
        sum(layer.seconds for layer in chosen)
        for count in range(len(layers) + 1)
        for chosen in itertools.combinations(layers, count)
        if peak(layers, tuple(layer.name for layer in chosen)) <= most
    ]
    return min(seconds, default=None)


class TestSelect:
    def test_is_the_best_of_all_choices(self) -> None:
        generator = random.Random(5)
        for _ in range(150):
            values = []
            for _ in range(generator.randint(1, 8)):
                freed = generator.randint(1, 40)
                values.append((freed, freed + generator.randint(0, 8), generator.random()))
            layers = costs(*values)
            excess = generator.randint(1, sum(layer.freed_bytes for layer in layers))
            chosen, wanted = select(layers, excess), best(layers, excess)
            if wanted is None:
                assert chosen is None
            else:
                assert chosen is not None
                assert peak(layers, chosen) <= sum(layer.freed_bytes for layer in layers) - excess
                taken = sum(layer.seconds for layer in layers if layer.name in chosen)
                assert taken == pytest.approx(wanted)

    def test_chooses_nothing_when_nothing_is_to_be_freed(self) -> None:
        assert select(costs((10, 10, 1.0)), 0) == ()

    def test_says_when_all_layers_free_too_little(self) -> None:
        assert select(costs((10, 10, 1.0)), 11) is None
        assert select((), 1) is None

    def test_large_bytes_are_rounded_to_the_safe_side(self) -> None:
        layers = costs(*[(10**9 + index, 10**9 + index, 1.0 + index / 100) for index in range(60)])
        chosen = select(layers, 20 * 10**9)
        assert chosen is not None
        assert peak(layers, chosen) <= sum(layer.freed_bytes for layer in layers) - 20 * 10**9
        assert len(chosen) <= 22

    def test_takes_the_cheap_ones(self) -> None:
        layers = costs((10, 10, 5.0), (10, 10, 0.1), (10, 10, 5.0), (10, 10, 0.2))
        assert select(layers, 10) == ("layer1",)


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.3) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.inner(self.norm(x))


class Tower(nn.Module):
    def __init__(self, width: int = 8, depth: int = 4, **options: Any) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, **options) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


class TestCandidates:
    def test_are_the_elements_of_lists(self) -> None:
        assert candidates(Tower(depth=3)) == ("blocks.0", "blocks.1", "blocks.2")

    def test_of_a_list_of_lists_are_the_inner_ones(self) -> None:
        stages = nn.Sequential(nn.Sequential(Block(4), Block(4)), nn.Sequential(Block(4), Block(4)))
        assert candidates(stages) == ("0.0", "0.1", "1.0", "1.1")

    def test_without_lists_are_submodules_of_several_operations(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), Block(4), nn.ReLU())
        assert candidates(model) == ("1",)

    def test_recurrent_layers_are_some(self) -> None:
        assert candidates(nn.ModuleDict({"one": nn.LSTM(4, 4), "two": nn.Linear(4, 4)})) == ("one",)

    def test_a_single_layer_has_none(self) -> None:
        assert candidates(nn.Linear(4, 4)) == ()

    def test_transformers_have_their_layers(self) -> None:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        assert candidates(model) == ("0.layers.0", "0.layers.1")


@contextlib.contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    def everything() -> list[Any]:
        return [
            (
                {name: id(value) for name, value in vars(module).items()},
                {name: id(value) for name, value in module._buffers.items()},
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
                module.training,
            )
            for module in model.modules()
        ]

    before = everything()
    yield
    assert everything() == before


def trained(model: nn.Module, x: torch.Tensor, names: tuple[str, ...]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients and buffers after a pass."""
    torch.manual_seed(3)
    model.zero_grad()
    with checkpointed(model, names):
        model(x).square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return gradients, [buffer.clone() for buffer in model.buffers()]


class TestCheckpointed:
    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("names", [("blocks.0",), ("blocks.1", "blocks.3"), tuple(f"blocks.{i}" for i in range(4))])
    def test_computes_the_same_with_dropout_and_batch_norm(self, names: tuple[str, ...]) -> None:
        torch.manual_seed(0)
        plain, again = Tower(), Tower()
        again.load_state_dict(plain.state_dict())
        x = torch.randn(16, 8)
        expected = trained(plain, x, ())
        with left_as_it_was(again):
            found = trained(again, x, names)
        for wanted, got in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
            assert torch.equal(wanted, got)

    def test_computes_less_at_once(self) -> None:
        model, x = Tower(depth=6), torch.randn(4, 8)
        saved: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        counts = []
        for names in ((), candidates(model)):
            saved.clear()
            with checkpointed(model, names), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                model(x)
            counts.append(len(saved))
        assert counts[1] < counts[0] / 3

    def test_autocast_is_repeated(self) -> None:
        torch.manual_seed(0)
        model, x = Tower(dropout=0.0), torch.randn(16, 8)
        found = []
        for names in ((), candidates(model)):
            model.zero_grad()
            with checkpointed(model, names):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(x).square().mean()
                loss.backward()
            assert model.stem.weight.grad is not None
            found.append(model.stem.weight.grad.clone())
        assert torch.equal(found[0], found[1])

    def test_a_buffer_that_steers_what_is_computed_is_what_it_was(self) -> None:
        class Turning(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)
                self.register_buffer("turn", torch.ones(()))
                self.calls = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.turn.mul_(-2)
                self.calls += 1
                return torch.tanh(self.linear(x)) * self.turn * self.calls

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Turning())
        x, gradients = torch.randn(3, 4), []
        for names in ((), ("1",)):
            model[1].turn.fill_(1.0)
            model[1].calls = 0
            model.zero_grad()
            with checkpointed(model, names):
                model(x).sum().backward()
            assert model[1].calls == 1
            assert model[1].turn.item() == -2
            assert model[0].weight.grad is not None
            gradients.append(model[0].weight.grad.clone())
        assert torch.equal(gradients[0], gradients[1])

    def test_a_large_buffer_that_changes_is_refused(self) -> None:
        class Gathering(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("seen", torch.zeros(1 << 19))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.seen.add_(1)
                return x.exp()

        model = nn.Sequential(nn.Linear(4, 4), Gathering())
        with left_as_it_was(model), pytest.raises(Unsupported, match="'seen'"), checkpointed(model, ("1",)):
            model(torch.ones(2, 4))

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("fails_at", [1, 2])
    def test_the_module_is_left_as_it_was_after_errors(self, error: type[BaseException], fails_at: int) -> None:
        class Failing(nn.Module):
            calls = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                Failing.calls += 1
                if Failing.calls == fails_at:
                    raise error("on purpose")
                return x.exp().sin()

        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), Failing()), nn.Linear(4, 1))
        with left_as_it_was(model), pytest.raises(error, match="on purpose"), checkpointed(model, ("1",)):
            model(torch.ones(3, 4)).sum().backward()

    def test_a_forward_of_somebody_elses_is_kept(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        model[0].forward = mine = lambda x: x * 2
        with checkpointed(model, ("0",)):
            assert model(torch.ones(1, 4)).sum().item() == 8
        assert vars(model[0])["forward"] is mine

    def test_a_module_that_is_not_there_is_named(self) -> None:
        model = Tower()
        with (
            left_as_it_was(model),
            pytest.raises(InvalidOption, match=r"blocks\.9"),
            checkpointed(model, ("blocks.0", "blocks.9")),
        ):
            pass

    def test_nothing_is_kept_where_no_gradient_is_wanted(self) -> None:
        model = Tower().eval()
        x = torch.randn(3, 8)
        with torch.no_grad(), checkpointed(model, candidates(model)):
            found = model(x)
        with torch.no_grad():
            assert torch.equal(found, model(x))


def plain_sequential(width: int = 8) -> nn.Sequential:
    torch.manual_seed(3)
    parts: list[nn.Module] = []
    for _ in range(3):
        parts += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Dropout(0.3)]
    return nn.Sequential(*parts, nn.Linear(width, 1))


class TestSegments:
    def test_operations_in_a_row_are_divided(self) -> None:
        # None begins with a ReLU that works in place.
        model = plain_sequential()
        assert len(model) == 13
        assert candidates(model) == ("0:4", "4:8", "8:12", "12:13")
        assert candidates(nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)))) == ("0:3", "3:6", "6:9")
        assert candidates(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh())) == (
            "0:2",
            "2:4",
        )

    def test_what_is_short_or_has_a_forward_pass_of_its_own_is_not(self) -> None:
        class Own(nn.Sequential):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + super().forward(x)

        assert candidates(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == ()
        assert candidates(Own(*(nn.Linear(4, 4) for _ in range(9)))) == ()

    def test_a_long_one_inside_another_module_is_divided_and_a_short_one_is_not(self) -> None:
        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.Sequential(*(nn.Linear(4, 4) for _ in range(9)))
                self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        assert candidates(Both()) == ("body.0:3", "body.3:6", "body.6:9", "head")

    def test_one_operation_that_comes_twice_is_in_no_segment(self) -> None:
        shared = nn.Tanh()
        assert candidates(nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared)) == ()

    @pytest.mark.parametrize("names", [("0:4", "4:8", "8:12", "12:13"), ("4:8",), ("0:4", "5", "8:12")])
    def test_values_gradients_buffers_and_random_numbers_are_the_same(self, names: tuple[str, ...]) -> None:
        inputs = torch.randn(6, 8)
        found: list[list[torch.Tensor]] = []
        for checkpoint in ((), names):
            model = plain_sequential()
            called: list[int] = []
            for place, module in enumerate(model):
                module.register_forward_hook(lambda *_, place=place, called=called: called.append(place))
            torch.manual_seed(4)
            with checkpointed(model, checkpoint):
                loss = model(inputs).square().sum()
                assert called == list(range(13))
                loss.backward()
            assert "forward" not in vars(model)
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            assert len(gradients) == len(list(model.parameters()))
            found.append([loss.detach(), *gradients, *model.buffers(), torch.rand(3)])
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)

    def test_a_layer_that_changes_its_input_in_place_is_refused(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1)))
        with (
            checkpointed(model, ("1",)),
            pytest.raises(Unsupported, match="'1' cannot be checkpointed: its forward pass"),
        ):
            model(torch.randn(2, 4))

    @pytest.mark.parametrize("name", ["0:99", "3:3", "a:b", "0.0:1", "nothing.0:2", "5:2", ":"])
    def test_a_segment_that_is_not_there_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidOption, match="has no submodule"), checkpointed(plain_sequential(), (name,)):
            pass
