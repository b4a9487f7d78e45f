"""Modules give what they give one after the other, whichever way they run, and the way is the faster one."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import anygpu.receipts.notes
from anygpu.errors import InvalidOption
from anygpu.pytorch import parallel, settings, side_by_side
from anygpu.pytorch.concurrent_calls import SERIAL, TOGETHER, StreamCrew, ThreadCrew, Timings, choose, groups_of, shares


@pytest.fixture(autouse=True)
def two_threads_and_nothing_known() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    side_by_side._cases.clear()
    yield
    side_by_side._cases.clear()
    torch.set_num_threads(before)
    assert [thread for thread in threading.enumerate() if thread.name == "anygpu parallel"] == []


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second call runs side by side, however long it takes."""
    monkeypatch.setattr(Timings, "next_way", lambda self: TOGETHER if self.calls % 2 else SERIAL)
    monkeypatch.setattr(Timings, "decided", property(lambda self: False))


def nets(count: int = 2, width: int = 8) -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)) for _ in range(count)]


def ways(models: Any, inputs: Any, calls: int = 4, **more: Any) -> list[str]:
    return [parallel(models, inputs, **more).receipt.reason.split(":")[0] for _ in range(calls)]


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_outputs_are_in_order_and_the_same(count: int) -> None:
    models = nets(count)
    inputs = [torch.randn(4, 8) for _ in models]
    expected = [model(x) for model, x in zip(models, inputs, strict=True)]
    for way in (SERIAL, TOGETHER, SERIAL, TOGETHER):
        result = parallel(models, inputs)
        assert result.receipt.reason.startswith(way)
        assert all(torch.equal(a, b) for a, b in zip(result.outputs, expected, strict=True))
        assert (result.receipt.how is None) == (way == SERIAL)
    assert anygpu.receipts.notes.last_receipt() is result.receipt


@pytest.mark.usefixtures("together")
def test_gradients_flow_through_both_ways() -> None:
    models = nets()
    x = torch.randn(4, 8, requires_grad=True)
    found = []
    for _ in range(2):
        x.grad = None
        first, second = parallel(models, [x, x]).outputs
        (first.sum() + (second**2).sum()).backward()
        assert x.grad is not None
        found.append(x.grad.clone())
    assert torch.equal(found[0], found[1])


class Reports(nn.Module):
    """What a module sees of the thread that it runs on."""

    def forward(self, x: torch.Tensor, y: Any = None, *, scale: float = 1.0) -> Any:
        seen = {
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "product": (x @ x).dtype,
            "variable": variable.get(),
            "y": y,
            "scale": scale,
        }
        return seen, threading.current_thread().name, torch.get_num_threads()


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize(
    "mode",
    [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("cpu"),
    ],
)
def test_the_callers_state_is_carried_into_the_threads(mode: Callable[[], Any]) -> None:
    token = variable.set("mine")
    models = [Reports(), Reports()]
    try:
        with mode():
            inputs = [(torch.ones(2, 2), "a"), torch.ones(2, 2)]
            named = [{"scale": 2.0}, {"scale": 3.0}]
            serial = parallel(models, inputs, named)
            both = parallel(models, inputs, named)
    finally:
        variable.reset(token)
    assert both.receipt.how is not None
    assert [seen for seen, *_ in both.outputs] == [seen for seen, *_ in serial.outputs]
    assert both.outputs[0][0]["variable"] == "mine"
    assert {name for _, name, _ in both.outputs} == {"anygpu parallel"}
    assert [cores for _, _, cores in both.outputs] == [1, 1]


@pytest.mark.usefixtures("together")
def test_numbers_of_threads_are_as_before() -> None:
    models = nets()
    for own, usual in ((2, 2), (3, 2), (2, 4)):
        set_elsewhere(usual)
        torch.set_num_threads(own)
        set_elsewhere(usual)
        for _ in range(4):
            parallel(models, [torch.ones(1, 8)] * 2)
        assert torch.get_num_threads() == own
        assert elsewhere(torch.get_num_threads) == usual


def elsewhere(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def set_elsewhere(count: int) -> None:
    elsewhere(lambda: torch.set_num_threads(count))


class Fails(nn.Module):
    def __init__(self, error: BaseException | None, others: list[str]) -> None:
        super().__init__()
        self.error, self.others = error, others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        self.others.append("ran")
        return x


@pytest.mark.usefixtures("together")
def test_the_first_error_is_raised_when_all_have_ended() -> None:
    ran: list[str] = []
    models: list[Any] = [
        Fails(None, ran),
        Fails(KeyError("second"), ran),
        Fails(ValueError("third"), ran),
        Fails(None, ran),
    ]
    inputs = [torch.ones(1)] * 4
    good = [Fails(None, []) for _ in models]
    crew = ThreadCrew()
    assert [outcome.error for outcome in crew.run([lambda: 1, lambda: 2], [[0], [1]])] == [None, None]
    outcomes = crew.run([partial(m, x) for m, x in zip(models, inputs, strict=True)], [[0], [1], [2], [3]])
    assert [type(outcome.error) for outcome in outcomes] == [type(None), KeyError, ValueError, type(None)]
    assert ran == ["ran", "ran"]
    ways(good, inputs, 1)
    with pytest.raises(KeyError, match="second"):
        parallel(models, inputs)
    for model, bad in zip(good, models, strict=True):
        model.error = bad.error
    with pytest.raises(KeyError, match="second"):  # the same models, now side by side
        parallel(good, inputs)
    assert torch.get_num_threads() == 2


# -- what is never run side by side


class Busy(nn.Module):
    """Notices when it runs twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.most = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside += 1
        self.most = max(self.most, self.inside)
        result = x @ x
        self.inside -= 1
        return result


@pytest.mark.usefixtures("together")
def test_a_module_given_twice_never_runs_twice_at_once() -> None:
    busy, other = Busy(), nets()[0]
    x = torch.ones(50, 50)
    result = parallel([busy, busy], [x, x])
    assert "have a module in common" in result.receipt.reason
    models = [busy, other, nn.Sequential(busy)]
    for _ in range(10):
        result = parallel(models, [x, torch.ones(1, 8), x])
    assert result.receipt.how is not None
    assert busy.most == 1


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


@pytest.mark.usefixtures("together")
def test_modules_that_draw_random_numbers_run_one_after_the_other() -> None:
    models = [nn.Dropout(0.5), nn.Dropout(0.5)]
    x = torch.ones(8)

    def drawn(run: Callable[[], Any]) -> Any:
        torch.manual_seed(3)
        return [run() for _ in range(4)]

    plain = drawn(lambda: [model(x) for model in models])
    ours = drawn(lambda: parallel(models, [x, x]).outputs)
    assert all(torch.equal(a, b) for one, two in zip(plain, ours, strict=True) for a, b in zip(one, two, strict=True))
    assert "random numbers" in parallel(models, [x, x]).receipt.reason
    quiet = [model.eval() for model in models]
    assert TOGETHER in ways(quiet, [x, x])


@pytest.mark.usefixtures("together")
def test_modules_that_begin_to_draw_are_noticed() -> None:
    models = nets()
    x = torch.ones(2, 8)
    assert TOGETHER in ways(models, [x, x])
    for model in models:
        assert isinstance(model, nn.Sequential)
        model[1] = nn.Dropout(0.5)
    ways(models, [x, x], 2)
    assert "random numbers" in parallel(models, [x, x]).receipt.reason


@pytest.mark.usefixtures("together")
def test_modules_that_change_what_they_share_run_one_after_the_other() -> None:
    changing = [nn.ReLU(inplace=True), nn.ReLU(inplace=True)]
    x = torch.ones(8)
    assert "share" in [parallel(changing, [x, x]).receipt.reason for _ in range(2)][-1]
    assert TOGETHER in ways(changing, [torch.ones(3), torch.ones(3)]), "each has its own"
    with torch.inference_mode():
        same = torch.ones(5)
        assert "inference" in [parallel(changing, [same, same]).receipt.reason for _ in range(2)][-1]


@pytest.mark.usefixtures("together")
def test_the_callers_modes_that_forbid_it() -> None:
    models = nets()
    inputs = [torch.ones(2, 8)] * 2
    with settings(deterministic=True):
        assert set(ways(models, inputs)) == {SERIAL}
        assert "last bits" in parallel(models, inputs).receipt.reason
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert "saved tensors" in parallel(models, inputs).receipt.reason
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "hook for all modules" in parallel(models, inputs).receipt.reason
    finally:
        handle.remove()
    assert TOGETHER in ways(models, inputs), "and when they are over, nothing forbids it"


def test_what_is_not_worth_a_thought() -> None:
    model = nets(1)[0]
    assert "only one module" in parallel([model], [torch.ones(1, 8)]).receipt.reason
    assert parallel([], []).outputs == ()
    torch.set_num_threads(1)
    assert "one thread" in parallel(nets(), [torch.ones(1, 8)] * 2).receipt.reason


def test_wrong_arguments() -> None:
    model = nets(1)[0]
    with pytest.raises(InvalidOption, match="1 models, 2 inputs"):
        parallel([model], [1, 2])
    with pytest.raises(InvalidOption, match="keywords"):
        parallel([model], [1], [])
    with pytest.raises(InvalidOption, match=r"models\[0\] is a function"):
        parallel([lambda x: x], [1])


@pytest.mark.usefixtures("together")
def test_models_are_left_as_they_were_and_not_kept() -> None:
    models = nets()
    before = [dict(vars(model)) for model in models]
    ways(models, [torch.ones(1, 8)] * 2)
    assert [dict(vars(model)) for model in models] == before
    gone = [weakref.ref(model) for model in models]
    del models, before
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_what_is_kept_is_bounded() -> None:
    model = nets(1)[0]
    for rows in range(side_by_side._MOST_KEPT + 20):
        parallel([model], [torch.ones(rows, 8)])
    assert len(side_by_side._cases) == side_by_side._MOST_KEPT


# -- the choice, without any clock


def measured(serial: float, together: float) -> Timings:
    timings = Timings()
    while not timings.decided:
        timings = timings.seen(serial if timings.next_way() == SERIAL else together)
    return timings


def test_the_faster_way_is_chosen_with_its_reason() -> None:
    choice = choose(measured(3.4e-3, 2.0e-3))
    assert choice.way == TOGETHER
    assert choice.reason == "side by side: 2 ms against 3.4 ms one after the other, 6 calls each"
    choice = choose(measured(3.1e-3, 3.4e-3))
    assert choice.way == SERIAL
    assert choice.reason == "one after the other: 3.1 ms against 3.4 ms side by side, 6 calls each"
    assert choose(measured(3.1e-3, 3.0e-3)).way == SERIAL, "so little is not worth it"


def test_a_disturbed_measurement_does_not_choose_side_by_side() -> None:
    timings = Timings(serial=(1.0, 9.0, 9.0, 9.0, 9.0, 9.0), together=(1.1,) * 6, calls=18)
    choice = choose(timings)
    assert choice.way == SERIAL
    assert choice.reason == "one after the other: at best 1 s against 1.1 s side by side, 6 calls each"


def test_a_hopeless_way_is_given_up_early_and_seldom_tried_again() -> None:
    timings = measured(1.0, 30.0)
    assert len(timings.together) == 2
    assert choose(timings).holds * 1.0 >= 9 * 30 / 0.02


def test_a_choice_for_side_by_side_is_looked_at_again_soon() -> None:
    first = choose(measured(2.0, 1.0))
    second = choose(measured(2.0, 1.0), first)
    assert second.holds == 2 * first.holds
    assert choose(measured(2.0, 1.0), choose(measured(1.0, 2.0))).holds == first.holds


@pytest.mark.parametrize(("serial", "together"), [(1.0, 1.0), (1.0, 2.0), (1.0, 40.0), (2.0, 1.0)])
def test_trials_cost_little_in_the_long_run(serial: float, together: float) -> None:
    """A simulation: with times that stay the same, all calls together take 1.05 of one after the other at most."""
    case = side_by_side._Case(("torch:cpu", "cpu"))
    spent, count = 0.0, 60_000
    for _ in range(count):
        if case.plain_reason() is not None:
            spent += serial
            continue
        trying = case.trying
        seconds = serial if case.next_way()[0] == SERIAL else together
        spent += seconds
        if trying:
            case.seen(seconds)
    assert spent <= 1.05 * serial * count


def test_cores_are_divided() -> None:
    assert shares(2, 8) == (4, 4)
    assert shares(3, 8) == (3, 3, 2)
    assert shares(5, 2) == (1, 1)
    assert shares(2, 1) == (1,)
    assert shares(1, 4) == (4,)


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

    def synchronize(self, device: torch.device) -> None:
        self.said.append("waits for the card")


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
        if name == "c":
            raise ValueError(name)
        return on_card(cuda, f"result of {name}")

    crew = StreamCrew(torch.device("cuda", 0), [x, (), ()], cuda)
    outcomes = crew.run([lambda: call("a"), lambda: call("b"), lambda: call("c")], [[0, 2], [1]])
    assert cuda.said == [
        "stream 1 waits for caller",
        "x used on stream 1",
        "a on stream 1",
        "c on stream 1",
        "stream 2 waits for caller",
        "b on stream 2",
        "caller waits for stream 1",
        "caller waits for stream 2",
        "result of a used on caller",
        "result of b used on caller",
    ]
    assert isinstance(outcomes[2].error, ValueError)
    assert crew.how([[0, 2], [1]]) == "on 2 streams"
    crew.wait()
    assert cuda.said[-1] == "waits for the card"
