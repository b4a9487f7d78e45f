"""Modules give what they give one after the other, whichever way they run."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import anygpu.receipts.notes
from anygpu.errors import InvalidOption
from anygpu.pytorch import parallel, settings, side_by_side
from anygpu.pytorch.side_by_side import groups_of, run_on_streams

CARD = {torch.device("cuda", 0)}


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    side_by_side._known.clear()
    yield
    side_by_side._known.clear()


def nets(count: int = 2, width: int = 8) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)) for _ in range(count)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_outputs_are_in_order_and_the_same(count: int) -> None:
    models = nets(count)
    inputs = [torch.randn(4, 8) for _ in models]
    expected = [model(x) for model, x in zip(models, inputs, strict=True)]
    result = parallel(models, inputs)
    assert all(torch.equal(a, b) for a, b in zip(result.outputs, expected, strict=True))
    assert result.receipt.reason == "one after the other: on the CPU one module uses all cores"
    assert result.receipt.how is None
    assert (result.receipt.device, result.receipt.kind) == ("torch:cpu", "cpu")
    assert anygpu.receipts.notes.last_receipt() is result.receipt


def test_positional_and_keyword_arguments() -> None:
    attention = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8)
    (with_weights, without) = parallel(
        [attention, nn.Linear(8, 8)], [(x, x, x), x], [{"need_weights": False}, {}]
    ).outputs
    assert with_weights[1] is None
    assert without.shape == x.shape


def test_gradients_flow() -> None:
    models = nets()
    x = torch.randn(4, 8, requires_grad=True)
    first, second = parallel(models, [x, x]).outputs
    (first.sum() + (second**2).sum()).backward()
    found, x.grad = x.grad, None
    (models[0](x).sum() + (models[1](x) ** 2).sum()).backward()
    assert found is not None
    assert x.grad is not None
    assert torch.equal(found, x.grad)


def test_what_a_module_raises_is_raised() -> None:
    models = nets()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        parallel(models, [torch.ones(1, 8), torch.ones(1, 7)])


def test_wrong_arguments() -> None:
    model = nets(1)[0]
    with pytest.raises(InvalidOption, match="1 models, 2 inputs"):
        parallel([model], [1, 2])
    with pytest.raises(InvalidOption, match="keywords"):
        parallel([model], [1], [])
    with pytest.raises(InvalidOption, match=r"models\[0\] is a function"):
        parallel([lambda x: x], [1])


def test_models_are_left_as_they_were_and_not_kept() -> None:
    models = nets()
    before = [dict(vars(model)) for model in models]
    on_streams(models, [torch.ones(1, 8)] * 2)
    assert [dict(vars(model)) for model in models] == before
    gone = [weakref.ref(model) for model in models]
    del models, before
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


# -- why they run one after the other


def why(models: list[nn.Module], places: set[torch.device] = CARD) -> str | None:
    return side_by_side._why_in_order(models, places)


def test_on_one_card_modules_may_run_on_streams() -> None:
    assert why(nets()) is None


def test_why_modules_run_one_after_the_other() -> None:
    models = nets()
    assert "only one module" in str(why(models[:1]))
    assert "have a module in common" in str(why([models[0], models[0]]))
    assert "on several devices (cpu, cuda:0)" in str(why(models, {*CARD, torch.device("cpu")}))
    assert "mps has no streams" in str(why(models, {torch.device("mps")}))
    assert parallel([], []).outputs == ()
    with settings(deterministic=True):
        assert "last bits" in str(why(models))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "hook for all modules" in str(why(models))
    finally:
        handle.remove()
    compiled: Any = torch.compile(models[0], backend="eager")
    assert "is compiled" in str(why([compiled, models[1]]))
    assert why(models) is None


def test_what_modules_have_in_common_makes_groups() -> None:
    a, b, c, d = nets(4)
    assert groups_of([a, b, c]) == [[0], [1], [2]]
    assert groups_of([a, b, nn.Sequential(a, c), d, c]) == [[0, 2, 4], [1], [3]]
    kept: list[Any] = []
    handles = [model.register_forward_hook(lambda *_: kept.append(1)) for model in (a, d)]
    assert groups_of([a, b, d]) == [[0, 2], [1]], "their hooks know the same list"
    for handle in handles:
        handle.remove()

    class Recorder:
        def hook(self, *_: Any) -> None:
            pass

    recorder = Recorder()
    b.register_forward_pre_hook(recorder.hook)
    c.register_forward_hook(recorder.hook)
    assert groups_of([a, b, c]) == [[0], [1, 2]], "their hooks are methods of the same object"


def on_streams(models: list[nn.Module], inputs: list[Any]) -> tuple[list[Any], str | None]:
    """As on a card, with the streams that torch has for the CPU, where calls wait."""
    given = [(each, ()) for each in inputs]
    calls = side_by_side._calls(models, inputs, None)
    return side_by_side._on_streams(calls, models, given, torch.device("cpu"))


@pytest.fixture(autouse=True)
def streams_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "run_on_streams", partial(run_on_streams, cuda=StandInCuda()))


def test_the_first_call_shows_that_nothing_shared_is_changed() -> None:
    models, x = nets(), torch.ones(2, 8)
    expected = [model(x) for model in models]
    for reason in ("the first call", "None", "None"):
        outputs, why_in_order = on_streams(models, [x, x])
        assert reason in str(why_in_order)
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    assert "the first call" in str(on_streams(models, [torch.ones(3, 8)] * 2)[1]), "another shape is another case"
    models[0].train(mode=False)
    assert "the first call" in str(on_streams(models, [x, x])[1]), "and another mode, too"


def test_modules_that_change_what_they_share_run_one_after_the_other() -> None:
    changing: list[nn.Module] = [nn.ReLU(inplace=True), nn.ReLU(inplace=True)]
    x = torch.ones(8)
    for _ in range(3):
        assert "change a tensor that they share" in str(on_streams(changing, [x, x])[1])
    own = [torch.ones(3), torch.ones(3)]
    assert [on_streams(changing, own)[1] for _ in range(2)][-1] is None, "each has its own"
    with torch.inference_mode():
        same = torch.ones(5)
        assert "inference" in [str(on_streams(changing, [same, same])[1]) for _ in range(2)][-1]


def test_random_numbers_come_in_the_same_order() -> None:
    dropout: list[nn.Module] = [nn.Dropout(0.5), nn.Dropout(0.5), nn.Dropout(0.5)]
    models = [dropout[0], dropout[1], nn.Sequential(dropout[0], dropout[2])]
    x = torch.ones(64)
    on_streams(models, [x, x, x])
    torch.manual_seed(3)
    plain = [model(x) for model in models]
    torch.manual_seed(3)
    outputs, why_in_order = on_streams(models, [x, x, x])
    assert why_in_order is None
    assert all(torch.equal(a, b) for a, b in zip(outputs, plain, strict=True))


# -- CUDA, played by a stand-in: never run on a card


class StandInStream:
    def __init__(self, cuda: StandInCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: StandInStream) -> None:
        self.cuda.said.append(f"{self.name} waits for {other.name}")


class StandInCuda:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.on = self.callers = StandInStream(self, "caller")
        self.made = 0

    def current_stream(self, device: torch.device) -> StandInStream:
        return self.on

    def Stream(self, device: torch.device) -> StandInStream:  # noqa: N802 - as torch's
        self.made += 1
        return StandInStream(self, f"stream {self.made}")

    @contextlib.contextmanager
    def stream(self, stream: StandInStream) -> Iterator[None]:
        before, self.on = self.on, stream
        yield
        self.on = before


class OnCard(torch.Tensor):
    is_cuda = True
    cuda_said: list[str]

    def record_stream(self, stream: StandInStream) -> None:
        self.cuda_said.append(f"{self.label} used on {stream.name}")


def on_card(cuda: StandInCuda, label: str) -> OnCard:
    tensor = torch.Tensor._make_subclass(OnCard, torch.ones(1))
    tensor.cuda_said, tensor.label = cuda.said, label
    return tensor  # type: ignore[no-any-return]


def test_a_card_runs_groups_on_streams_of_their_own() -> None:
    cuda = StandInCuda()
    x = on_card(cuda, "x")

    def call(name: str) -> OnCard:
        cuda.said.append(f"{name} on {cuda.on.name}")
        return on_card(cuda, f"result of {name}")

    calls = [lambda: call("a"), lambda: call("b"), lambda: call("c")]
    outputs = run_on_streams(calls, [[0, 2], [1]], [x, (), ()], torch.device("cuda", 0), cuda)
    assert cuda.said == [
        "stream 1 waits for caller",
        "stream 2 waits for caller",
        "x used on stream 1",
        "a on stream 1",
        "b on stream 2",
        "c on stream 1",
        "caller waits for stream 1",
        "caller waits for stream 2",
        "result of a used on caller",
        "result of b used on caller",
        "result of c used on caller",
    ]
    assert [output.label for output in outputs] == ["result of a", "result of b", "result of c"]


def test_after_an_error_the_caller_waits_for_all_streams() -> None:
    cuda, called = StandInCuda(), []

    def fails() -> None:
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        run_on_streams([fails, lambda: called.append(1)], [[0], [1]], [(), ()], torch.device("cuda", 0), cuda)
    assert cuda.said[-2:] == ["caller waits for stream 1", "caller waits for stream 2"]
    assert called == []
