"""Whatever happens in between, torch's settings are afterwards what they were."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch

from anygpu.errors import InvalidOption
from anygpu.pytorch import settings, torch_settings
from anygpu.pytorch.torch_settings import wanted


def all_settings() -> dict[str, Any]:
    """Everything that is touched, read by torch's own getters and not by the module under test."""

    def older(getter: Callable[[], Any]) -> Any:
        try:
            return getter()
        except RuntimeError:
            return "raises"

    new: list[int] = []
    thread = threading.Thread(target=lambda: new.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    backends = torch.backends
    return {
        "matmul": older(torch.get_float32_matmul_precision),
        "cuda.matmul.allow_tf32": older(lambda: backends.cuda.matmul.allow_tf32),
        "cudnn.allow_tf32": older(lambda: backends.cudnn.allow_tf32),
        "generic": backends.fp32_precision,
        "cuda.matmul": backends.cuda.matmul.fp32_precision,
        "cudnn": backends.cudnn.fp32_precision,
        "cudnn.conv": backends.cudnn.conv.fp32_precision,
        "cudnn.rnn": backends.cudnn.rnn.fp32_precision,
        "mkldnn": backends.mkldnn.fp32_precision,
        "mkldnn.matmul": backends.mkldnn.matmul.fp32_precision,
        "mkldnn.conv": backends.mkldnn.conv.fp32_precision,
        "benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": torch.get_num_threads(),
        "threads of new threads": new[0],
        "grad": torch.is_grad_enabled(),
    }


@pytest.fixture(autouse=True)
def everything_is_restored() -> Iterator[None]:
    before = all_settings()
    yield
    gc.collect()
    after = all_settings()
    assert torch_settings._blocks == []
    for slot in ("matmul_precision", "cudnn_tf32"):  # what follows would only repeat a failure
        if torch_settings.read(slot) is None:
            torch.set_float32_matmul_precision("highest")
    assert after == before


def some_options(chance: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {}
    kind = chance.randrange(3)
    if kind == 0:
        given["tf32"] = chance.choice([True, False])
    elif kind == 1:
        given["matmul_precision"] = chance.choice(["highest", "high", "medium"])
    if chance.random() < 0.5:
        given["cudnn_benchmark"] = chance.choice([True, False])
    if chance.random() < 0.5:
        given["deterministic"] = chance.choice([True, False, "warn"])
    if chance.random() < 0.1:
        given["threads"] = chance.randrange(1, 5)
    return given


class Stop(Exception):
    pass


def readable() -> dict[str, Any]:
    return {slot: torch_settings.read(slot) for slot in torch_settings.SLOTS if slot != "new_threads"}


def nest(chance: random.Random, depth: int) -> int:
    """Blocks in blocks, with errors that are caught anywhere outside; returns how many blocks there were."""
    before = readable()
    blocks = 1
    try:
        with settings(**some_options(chance)):
            assert None not in readable().values(), "both of torch's ways can be read inside"
            while depth and chance.random() < 0.6:
                blocks += nest(chance, depth - 1)
            if chance.random() < 0.3:
                raise Stop
    except Stop:
        if chance.random() < 0.3 and depth < 6:
            assert readable() == before
            raise
    assert readable() == before
    return blocks


@pytest.mark.full
def test_ten_thousand_nestings_with_errors_restore_everything() -> None:
    chance = random.Random(19)
    blocks = 0
    whole = all_settings()
    while blocks < 10_000:
        try:
            blocks += nest(chance, 6)
        except Stop:
            blocks += 1
    assert all_settings() == whole


def test_blocks_that_end_in_any_order_restore_everything() -> None:
    """As generators do, which are closed in any order."""
    chance = random.Random(20)
    for _ in range(300):
        before = readable()
        opened = [settings(**some_options(chance)) for _ in range(chance.randrange(2, 6))]
        for block in opened:
            block.__enter__()
        chance.shuffle(opened)
        for block in opened:
            block.__exit__(None, None, None)
        assert readable() == before


def test_a_block_that_ends_early_leaves_later_ones_in_force() -> None:
    outer, inner = settings(tf32=True, deterministic=True), settings(matmul_precision="medium")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__()
    assert torch.get_float32_matmul_precision() == "medium"
    assert not torch.are_deterministic_algorithms_enabled()
    inner.__exit__()
    assert torch.get_float32_matmul_precision() == "highest"


def test_each_setting_is_set() -> None:
    with settings(tf32=True, cudnn_benchmark=True, deterministic="warn", threads=3):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.benchmark
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_num_threads() == 3
        assert torch_settings.on_a_new_thread(torch.get_num_threads) == 3
    with settings(tf32=False, deterministic=True, matmul_precision="highest"):
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.conv.fp32_precision == "none"
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    with settings(matmul_precision="medium"):
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        with settings(tf32=False):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
        with settings(tf32=True):
            assert torch.get_float32_matmul_precision() == "medium"
    with settings():
        pass


def test_what_the_user_sets_inside_lasts_until_the_end_of_the_block() -> None:
    with settings(cudnn_benchmark=True):
        torch.backends.cudnn.benchmark = False
        with settings(cudnn_benchmark=True):
            pass
        assert not torch.backends.cudnn.benchmark


def test_with_torchs_newer_way_only_that_is_changed() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        before = all_settings()
        assert before["matmul"] == "raises", "torch refuses to read its older setting now"
        with settings(tf32=False):
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert all_settings() == before
        with settings(tf32=True):
            assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert all_settings() == before
        with pytest.raises(InvalidOption, match="could not be restored"), settings(matmul_precision="high"):
            pass
        assert all_settings() == before
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"


def test_what_is_inherited_is_refused() -> None:
    torch.backends.fp32_precision = "tf32"
    try:
        before = all_settings()
        with pytest.raises(InvalidOption, match=r"torch.backends.fp32_precision = 'tf32'"), settings(tf32=False):
            pass
        with settings(deterministic=True):
            pass
        assert all_settings() == before
    finally:
        torch.backends.fp32_precision = "none"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tf32": 1}, "True or False"),
        ({"cudnn_benchmark": "yes"}, "True or False"),
        ({"deterministic": "sometimes"}, "'warn'"),
        ({"threads": 0}, "at least 1"),
        ({"threads": True}, "at least 1"),
        ({"threads": 2.0}, "at least 1"),
        ({"matmul_precision": "low"}, "'highest', 'high' or 'medium'"),
        ({"tf32": True, "matmul_precision": "highest"}, "contradicts itself"),
        ({"tf32": False, "matmul_precision": "medium"}, "contradicts itself"),
    ],
)
def test_values_that_mean_nothing(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        settings(**given)


def test_an_older_torch_has_one_slot() -> None:
    now = {"matmul_precision": "highest", "cudnn_tf32": True}.get
    assert wanted({"tf32": True}, now) == {"matmul_precision": "high", "cudnn_tf32": True}
    assert wanted({"tf32": False}, now) == {"matmul_precision": "highest", "cudnn_tf32": False}
    assert wanted({"matmul_precision": "medium"}, now) == {"matmul_precision": "medium"}


# -- functions and generators


def test_as_a_decorator_also_recursively_and_in_threads() -> None:
    @settings(deterministic=True)
    def count(number: int) -> int:
        assert torch.are_deterministic_algorithms_enabled()
        return 0 if number == 0 else 1 + count(number - 1)

    assert count(3) == 3
    threads = [threading.Thread(target=count, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torch.are_deterministic_algorithms_enabled()
    assert count.__name__ == "count"


def test_a_decorated_generator_has_its_settings_only_while_its_code_runs() -> None:
    seen: list[Any] = []

    @settings(cudnn_benchmark=True)
    def numbers() -> Generator[int, str, str]:
        try:
            assert torch.backends.cudnn.benchmark
            seen.append((yield 1))
            try:
                yield 2
            except KeyError:
                seen.append("caught")
            assert torch.backends.cudnn.benchmark
            yield 3
            return "end"
        finally:
            seen.append(torch.backends.cudnn.benchmark)

    generator = numbers()
    assert next(generator) == 1
    assert not torch.backends.cudnn.benchmark
    assert generator.send("hello") == 2
    assert generator.throw(KeyError()) == 3
    assert not torch.backends.cudnn.benchmark
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == "end"
    assert seen == ["hello", "caught", True]
    early = numbers()
    next(early)
    early.close()
    assert seen[-1] is True


def test_a_block_in_a_generator_that_nobody_finishes() -> None:
    def numbers() -> Iterator[int]:
        with settings(deterministic=True):
            yield 1

    for _ in numbers():
        break
    gc.collect()
    assert not torch.are_deterministic_algorithms_enabled()


def test_asynchronous_functions_are_refused() -> None:
    async def work() -> None:
        pass

    with pytest.raises(InvalidOption, match="asynchronous"):
        settings(deterministic=True)(work)


# -- threads


def in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - it is looked at
            found.append(error)

    thread = threading.Thread(target=run, name="the other")
    thread.start()
    thread.join()
    return found[0]


def test_another_thread_may_have_the_same_value_and_no_other() -> None:
    def enter(**given: Any) -> Callable[[], str]:
        def run() -> str:
            with settings(**given):
                return "entered"

        return run

    with settings(deterministic=True):
        assert in_a_thread(enter(deterministic=True)) == "entered"
        assert in_a_thread(enter(cudnn_benchmark=True)) == "entered"
        refused = in_a_thread(enter(deterministic=False))
        assert isinstance(refused, InvalidOption)
        assert "one value for the whole process" in str(refused)
        assert torch.are_deterministic_algorithms_enabled()
    with settings(tf32=True):
        assert isinstance(in_a_thread(enter(matmul_precision="high")), InvalidOption)


def test_overlapping_blocks_of_two_threads_restore_what_the_first_found() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with settings(deterministic=True, threads=1):
            entered.set()
            assert leave.wait(120)
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.get_num_threads() == 1

    thread = threading.Thread(target=other)
    with settings(deterministic=True, threads=1):
        thread.start()
        assert entered.wait(120)
    assert torch.are_deterministic_algorithms_enabled(), "the other block still has it"
    leave.set()
    thread.join()
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_number_of_threads_is_the_threads_own() -> None:
    own = torch.get_num_threads()
    inside = threading.Event()
    done = threading.Event()

    def other() -> None:
        torch.get_num_threads()
        with settings(threads=own + 3):
            inside.set()
            assert done.wait(120)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(120)
    assert torch.get_num_threads() == own
    done.set()
    thread.join()


def test_a_block_left_by_another_thread_says_so() -> None:
    block = settings(threads=torch.get_num_threads(), deterministic=True)
    block.__enter__()
    refused = in_a_thread(lambda: block.__exit__())
    assert isinstance(refused, InvalidOption)
    assert "the thread that began it" in str(refused)
    assert not torch.are_deterministic_algorithms_enabled()


# -- interrupts


def test_an_interrupt_at_any_moment_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt in each of the reads and writes, once each."""
    reader, writer = torch_settings.read, torch_settings.write
    for at in range(40):
        calls = 0

        def interrupted(call: Callable[..., Any], at: int = at) -> Callable[..., Any]:
            def run(*given: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == at:
                    raise KeyboardInterrupt
                return call(*given)

            return run

        before = readable()
        with monkeypatch.context() as patch:
            patch.setattr(torch_settings, "read", interrupted(reader))
            patch.setattr(torch_settings, "write", interrupted(writer))
            try:
                with settings(tf32=True, deterministic=True), settings(matmul_precision="medium"):
                    pass
            except KeyboardInterrupt:
                pass
        assert readable() == before
        assert torch_settings._blocks == []


def test_its_text_is_the_call() -> None:
    assert repr(settings(threads=1, tf32=False)) == "settings(tf32=False, threads=1)"


def test_a_deterministic_block_is_one() -> None:
    with settings(deterministic=True):
        filled = torch.empty(4)
        assert torch.isnan(filled).all(), "new memory is filled"


def test_a_block_costs_little() -> None:
    with settings(deterministic=True):
        pass  # what it needs is loaded
    begin = time.thread_time()
    for _ in range(200):
        with settings(deterministic=True):
            pass
    assert (time.thread_time() - begin) / 200 < 1e-3
