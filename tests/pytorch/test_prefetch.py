"""Batches are the loader's, in order and ahead of the loop; afterwards no thread and no batch is left."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from anygpu.errors import InvalidOption
from anygpu.pytorch import measuring, prefetch
from anygpu.pytorch.batches import CudaMover, MovedBatch, PlainMover, map_tensors, tensors_of
from anygpu.pytorch.prefetching import Prefetch, _makes_new_batches

_SOON = 30.0


class Watched:
    """A loader that says how far it is, and which of its batches are still alive."""

    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.count = count
        self.fail_at = fail_at
        self.made = 0
        self.ended = threading.Event()
        self.alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        try:
            for number in range(self.count):
                if number == self.fail_at:
                    raise RuntimeError(f"batch {number} is broken")
                batch = torch.full((3,), number)
                self.alive.add(batch)
                self.made += 1
                yield batch
                del batch
        finally:
            self.ended.set()


def threads_of_prefetch() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "anygpu prefetch"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert threads_of_prefetch() == []


def test_order_length_and_beginning_anew() -> None:
    batches = prefetch(Watched(20))
    assert len(batches) == 20
    for _ in range(2):
        assert [int(batch[0]) for batch in batches] == list(range(20))
    assert list(prefetch([])) == []
    with pytest.raises(TypeError):
        len(prefetch(number for number in range(3)))


def test_without_a_device_batches_are_the_loaders_own_objects() -> None:
    given = [{"x": torch.ones(2), "name": "a"}, (torch.ones(2), object())]
    assert all(found is one for found, one in zip(prefetch(given), given, strict=True))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_never_more_than_depth_ahead(depth: int) -> None:
    gate = threading.Semaphore(0)
    made: list[int] = []

    def loader() -> Iterator[int]:
        for number in range(30):
            made.append(number)
            gate.release()
            yield number

    for taken, batch in enumerate(prefetch(loader(), depth=depth)):
        assert batch == taken
        if taken == 0:
            for _ in range(depth + 1):  # the thread does go ahead so far
                assert gate.acquire(timeout=_SOON)
        assert len(made) <= taken + 1 + depth


def test_the_thread_does_work_ahead() -> None:
    """The second batch is made while the first one is used: with nothing ahead this would wait for ever."""
    second = threading.Event()

    def loader() -> Iterator[int]:
        yield 0
        second.set()
        yield 1

    for batch in prefetch(loader(), depth=1):
        if batch == 0:
            assert second.wait(_SOON)


def test_an_error_of_the_loader_comes_in_its_place_with_its_traceback() -> None:
    loop = iter(prefetch(Watched(10, fail_at=3)))
    assert [int(next(loop)[0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="batch 3 is broken") as caught:
        next(loop)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "__iter__" in names, "the line of the loader is in the traceback"


def test_an_error_in_iter_is_raised_by_iter() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise OSError("no such folder")

    with pytest.raises(OSError, match="no such folder"):
        iter(prefetch(Broken()))


def test_after_the_end_it_stays_at_the_end() -> None:
    batches = iter(prefetch([1]))
    assert list(batches) == [1]
    assert list(batches) == []
    failing = iter(prefetch(Watched(1, fail_at=0)))
    with pytest.raises(RuntimeError):
        next(failing)
    assert list(failing) == []


def leave_by_break(batches: Prefetch[Any]) -> None:
    for _ in batches:
        break


def leave_by_error(batches: Prefetch[Any]) -> None:
    def loop() -> None:
        for _ in batches:
            raise KeyError("in the loop")

    with pytest.raises(KeyError):
        loop()


def leave_by_return(batches: Prefetch[Any]) -> None:
    def first() -> Any:
        for batch in batches:
            return batch

    assert first() is not None


def leave_by_with(batches: Prefetch[Any]) -> None:
    with batches as inside:
        next(iter(inside))


def leave_by_close(batches: Prefetch[Any]) -> None:
    loop = iter(batches)
    next(loop)
    loop.close()
    assert list(loop) == []
    loop.close()


def leave_at_once(batches: Prefetch[Any]) -> None:
    iter(batches)


def leave_in_a_circle(batches: Prefetch[Any]) -> None:
    loop: Any = iter(batches)
    next(loop)
    loop.itself = loop
    del loop
    gc.collect()


def leave_at_the_end(batches: Prefetch[Any]) -> None:
    for _ in batches:
        pass


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_error,
        leave_by_return,
        leave_by_with,
        leave_by_close,
        leave_at_once,
        leave_in_a_circle,
        leave_at_the_end,
    ],
)
def test_however_the_loop_is_left_no_thread_and_no_batch_is_kept(leave: Callable[[Prefetch[Any]], None]) -> None:
    loader = Watched(40)
    batches = prefetch(loader, depth=3)
    leave(batches)
    gc.collect()
    assert threads_of_prefetch() == []
    assert len(loader.alive) == 0
    assert leave is leave_at_once or loader.ended.is_set(), "the generator was closed"


def test_the_check_for_leaks_can_fail() -> None:
    loader = Watched(40)
    loop = iter(prefetch(loader, depth=3))
    next(loop)
    assert threads_of_prefetch() != []
    # The loop gets copies, so this stands in for a batch of the loader that something keeps.
    kept = torch.zeros(3)
    loader.alive.add(kept)
    assert len(loader.alive) >= 1
    del kept
    loop.close()
    assert threads_of_prefetch() == []
    assert len(loader.alive) == 0


def test_a_loop_left_while_the_loader_is_at_work_ends_when_it_is_done() -> None:
    at_work, go_on = threading.Event(), threading.Event()

    def loader() -> Iterator[int]:
        yield 0
        at_work.set()
        go_on.wait(_SOON)
        yield 1

    loop = iter(prefetch(loader()))
    next(loop)
    assert at_work.wait(_SOON)
    closing = threading.Thread(target=loop.close)
    closing.start()
    assert closing.is_alive()
    go_on.set()
    closing.join(_SOON)
    assert not closing.is_alive()
    assert threads_of_prefetch() == []


def test_two_loops_over_one_prefetch_take_turns_with_the_loader() -> None:
    at_once, most = 0, 0

    class Counted:
        def __iter__(self) -> Iterator[int]:
            nonlocal at_once, most
            for number in range(50):
                at_once += 1
                most = max(most, at_once)
                at_once -= 1
                yield number

    batches = prefetch(Counted())
    assert list(zip(batches, batches, strict=True)) == [(number, number) for number in range(50)]
    assert most == 1


def test_random_numbers_of_a_shuffling_loader_are_the_same_as_without() -> None:
    data = TensorDataset(torch.arange(64))

    def epochs(wrap: Callable[[Any], Any]) -> list[list[int]]:
        torch.manual_seed(7)
        loader = DataLoader(data, batch_size=8, shuffle=True)
        found = []
        for _ in range(3):
            found.append([int(x) for (batch,) in wrap(loader) for x in batch])
            found.append([int(torch.randint(1000, ()))])  # the step draws numbers too
        return found

    assert epochs(prefetch) == epochs(lambda loader: loader)


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 100:
            raise IndexError
        return torch.tensor(index * index)


class Broken(Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 6:
            raise ValueError("row 6 is broken")
        return super().__getitem__(index)


@pytest.mark.full
def test_workers_of_a_data_loader() -> None:
    # In a process of its own: workers are forked, and libraries of other tests have threads.
    done = run_script(
        """
        import gc
        import torch
        from torch.utils.data import DataLoader
        from anygpu.pytorch import prefetch
        from tests.pytorch.test_prefetch import Broken, Squares

        def left():
            for child in torch.multiprocessing.active_children():
                child.join(120)  # the system may take a while to end it
            return torch.multiprocessing.active_children()

        loader = DataLoader(Squares(), batch_size=4, num_workers=2)
        print([batch.tolist() for batch in prefetch(loader)])
        for _ in prefetch(loader):
            break
        print(left())
        try:
            list(prefetch(DataLoader(Broken(), batch_size=4, num_workers=1)))
        except ValueError as error:
            print("row 6 is broken" in str(error))
            del error
        gc.collect()  # the loader's own frames keep its error, and that keeps them
        print(left())
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[0, 1, 4, 9], [16, 25, 36, 49], [64, 81, 100, 121]]\n[]\nTrue\n[]\n"


def test_what_the_loop_waited_is_the_steps_data_wait() -> None:
    measuring.take_data_wait()
    loop = iter(prefetch([1, 2, 3]))
    next(loop)
    first = measuring.take_data_wait()
    assert first is not None
    assert first > 0
    assert loop.waited == pytest.approx(first)
    next(loop)
    second = measuring.take_data_wait()
    assert second is not None
    assert loop.waited == pytest.approx(first + second)
    assert list(loop) == [3]
    assert measuring.take_data_wait() is None, "what a finished loop left is no step's"


def test_the_callers_modes_are_carried_into_the_thread() -> None:
    def loader() -> Iterator[tuple[bool, bool, str]]:
        for _ in range(4):
            yield torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.empty(1).device.type

    assert list(prefetch(loader())) == [(True, False, "cpu")] * 4
    with torch.no_grad():
        assert list(prefetch(loader())) == [(False, False, "cpu")] * 4
    with torch.inference_mode():
        assert list(prefetch(loader())) == [(False, True, "cpu")] * 4
    with torch.device("meta"):
        assert list(prefetch(loader())) == [(True, False, "meta")] * 4


def test_under_a_mode_that_no_thread_can_be_given_the_loop_fetches_itself() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def loader() -> Iterator[torch.Tensor]:
        for _ in range(3):
            yield torch.ones(4, 4) @ torch.ones(4, 4)

    with FlopCounterMode(display=False) as counted:
        assert len(list(prefetch(loader(), device="cpu"))) == 3
    assert counted.get_total_flops() == 3 * 2 * 4**3
    with FlopCounterMode(display=False), pytest.raises(RuntimeError, match="batch 1"):
        list(prefetch(Watched(2, fail_at=1)))


class Pair(NamedTuple):
    x: torch.Tensor
    label: str


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    kind: str = "a"
    extra: list[torch.Tensor] = dataclasses.field(default_factory=list)


def test_tensors_are_found_in_every_container() -> None:
    x = torch.ones(2)
    default: collections.defaultdict[str, Any] = collections.defaultdict(list, {"x": x})
    batch = [
        x,
        (x, 1),
        {"x": x, "deep": [x, {"y": (x,)}]},
        Pair(x, "label"),
        Sample(x, extra=[x]),
        default,
        "text",
        None,
        object(),
    ]
    found = map_tensors(batch, lambda tensor: tensor.to("meta"))
    tensors = list(tensors_of(found))
    assert len(tensors) == 9
    assert len({id(tensor) for tensor in tensors}) == 1, "one tensor stays one"
    assert tensors[0].device.type == "meta"
    assert isinstance(found[3], Pair)
    assert found[3].label == "label"
    assert isinstance(found[4], Sample)
    assert found[4].kind == "a"
    assert found[5]["missing"] == []
    assert found[6:] == batch[6:]
    assert all(tensor.device.type == "cpu" for tensor in tensors_of(batch)), "the loader's own batch is as it was"
    same = map_tensors(batch, lambda tensor: tensor)
    assert same is batch


def test_batches_are_moved_to_the_device() -> None:
    found = list(prefetch([(torch.ones(2), "a")], device="meta"))
    assert found[0][0].device.type == "meta"
    assert found[0][1] == "a"
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = PlainMover(torch.device("cpu")).send({"p": packed}).batch
    assert isinstance(moved["p"], torch.nn.utils.rnn.PackedSequence)


@pytest.mark.parametrize("depth", [0, -1, 1.5, True, "2"])
def test_a_depth_that_is_no_number_of_batches(depth: Any) -> None:
    with pytest.raises(InvalidOption, match="depth"):
        prefetch([], depth=depth)


def test_what_cannot_be_prefetched_is_refused_at_once() -> None:
    with pytest.raises(InvalidOption, match="iterable"):
        prefetch(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="no device of torch"):
        prefetch([], device="gpu 7")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidOption, match="finds no CUDA"):
            prefetch([], device="cuda")


# -- loaders that fill one buffer again and again


def refilled(make: Callable[[], Any], fill: Callable[[Any, int], Any]) -> Iterator[Any]:
    buffer = make()
    for number in range(5):
        fill(buffer, number)
        yield buffer


@dataclasses.dataclass
class Held:
    values: torch.Tensor


def packed() -> Any:
    return torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 1), torch.zeros(1, 1)])


#: How a buffer is made and filled, and the number that is read from it.
REFILLED: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda: torch.zeros(3), lambda buffer, number: buffer.fill_(number), lambda batch: batch[0]),
    "view": (lambda: torch.zeros(9)[::3], lambda buffer, number: buffer.fill_(number), lambda batch: batch[2]),
    "array": (lambda: np.zeros(3), lambda buffer, number: buffer.fill(number), lambda batch: batch[0]),
    "memory of an array": (
        lambda: torch.from_numpy(np.zeros(3)),
        lambda buffer, number: buffer.numpy().fill(number),
        lambda batch: batch[0],
    ),
    "pair": (
        lambda: (torch.zeros(3), "a"),
        lambda buffer, number: buffer[0].fill_(number),
        lambda batch: batch[0][0],
    ),
    "dataclass": (
        lambda: Held(torch.zeros(3)),
        lambda buffer, number: buffer.values.fill_(number),
        lambda batch: batch.values[0],
    ),
    "packed sequence": (packed, lambda buffer, number: buffer.data.fill_(number), lambda batch: batch.data[0]),
    "mapping of new tensors": (
        dict,
        lambda buffer, number: buffer.update(x=torch.full((3,), number)),
        lambda batch: batch["x"][0],
    ),
    "list of numbers": (lambda: [0], lambda buffer, number: buffer.__setitem__(0, number), lambda batch: batch[0]),
}


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", REFILLED)
def test_a_buffer_that_is_used_again_gives_each_batch(name: str, device: Any) -> None:
    make, fill, read = REFILLED[name]
    ended = threading.Event()

    def loader() -> Iterator[Any]:
        yield from refilled(make, fill)
        ended.set()

    found = []
    for batch in prefetch(loader(), device, depth=9):
        assert ended.wait(_SOON)  # all have been fetched, and the buffer has its last values
        found.append(int(read(batch)))
    assert found == list(range(5))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_dataset_or_a_collation_that_uses_its_buffer_again(device: Any) -> None:
    buffer = torch.zeros(3)
    dataset = list(range(5))
    for options in ({"collate_fn": lambda numbers: buffer.fill_(numbers[0])}, {"batch_size": None}):
        found = DataLoader([buffer] * 5 if "batch_size" in options else dataset, **options)
        batches = [int(batch[0]) for batch in prefetch(found, device, depth=9)]
        assert batches == ([4] * 5 if "batch_size" in options else dataset)
    for batch in prefetch(DataLoader([buffer] * 2, batch_size=None), device):
        assert batch.data_ptr() != buffer.data_ptr()


def test_what_is_new_is_not_copied() -> None:
    given = [torch.ones(2), torch.ones(3)]
    assert all(found is one for found, one in zip(prefetch(given, "cpu"), given, strict=True))

    class Again(DataLoader[Any]):
        def __iter__(self) -> Any:
            return refilled(lambda: torch.zeros(3), torch.Tensor.fill_)

    dataset = TensorDataset(torch.arange(6.0))
    assert _makes_new_batches(DataLoader(dataset, batch_size=2))
    assert _makes_new_batches(DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=list))
    assert not _makes_new_batches(DataLoader(dataset, batch_size=2, collate_fn=list))
    assert not _makes_new_batches(DataLoader(dataset, batch_size=None))
    assert not _makes_new_batches(Again(dataset))


def test_copies_are_as_what_was_copied() -> None:
    given = [
        torch.ones(2, 3, requires_grad=True),
        torch.ones(2, 3).t(),
        torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True),
        torch.ones(3, dtype=torch.int8),
        packed(),
    ]
    batch = next(iter(prefetch(each for each in [given])))
    for copied, original in zip(batch[:4], given[:4], strict=True):
        assert torch.equal(copied.to_dense(), original.to_dense())
        assert (copied.dtype, copied.layout) == (original.dtype, original.layout)
        assert (copied.requires_grad, copied.is_leaf) == (original.requires_grad, True)
    assert batch[1].stride() == given[1].stride()
    assert type(batch[4]) is type(given[4])
    assert batch[4].batch_sizes.tolist() == [2, 1]


# -- CUDA, played by a stand-in: never run on a card


class StandInTensor(torch.Tensor):
    """A tensor that writes down what is done with it."""

    said: list[str]
    is_cuda = False

    @staticmethod
    def make(said: list[str], on_card: bool = False, pinned: bool = False) -> StandInTensor:
        tensor = torch.Tensor._make_subclass(StandInTensor, torch.ones(1))
        tensor.said, tensor.is_cuda, tensor._pinned = said, on_card, pinned
        return tensor  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 1) if self.is_cuda else torch.device("cpu")

    def is_pinned(self) -> bool:
        return self._pinned  # type: ignore[no-any-return]

    def pin_memory(self) -> StandInTensor:
        self.said.append("pin")
        return StandInTensor.make(self.said, pinned=True)

    def to(self, device: Any, non_blocking: bool = False) -> StandInTensor:
        assert non_blocking
        assert self.is_pinned()
        self.said.append(f"copy to {device}")
        return StandInTensor.make(self.said, on_card=True)

    def detach(self) -> StandInTensor:
        return self

    def clone(self) -> StandInTensor:
        self.said.append("copy on the card")
        return StandInTensor.make(self.said, on_card=True)

    def record_stream(self, stream: StandInStream) -> None:
        self.said.append(f"used on {stream.name}")


class StandInStream:
    def __init__(self, said: list[str], name: str) -> None:
        self.said, self.name = said, name

    def wait_stream(self, other: StandInStream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: StandInEvent) -> None:
        assert event.recorded_on is not None
        self.said.append(f"{self.name} waits for {event.recorded_on}")


class StandInEvent:
    recorded_on: str | None = None

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def synchronize(self) -> None:
        self.said.append(f"the thread waits for {self.recorded_on}")

    def record(self, stream: StandInStream) -> None:
        self.recorded_on = stream.name


class StandInCuda:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.current = StandInStream(self.said, "the loop's stream")

    def current_device(self) -> int:
        return 1

    def Stream(self, device: torch.device) -> StandInStream:  # noqa: N802 - as torch's
        assert device == torch.device("cuda", 1)
        return StandInStream(self.said, "the copy stream")

    def Event(self) -> StandInEvent:  # noqa: N802 - as torch's
        return StandInEvent(self.said)

    def current_stream(self, device: torch.device) -> StandInStream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: StandInStream) -> Iterator[None]:
        self.said.append(f"on {stream.name}")
        yield
        self.said.append("off")


def test_a_card_copies_on_a_stream_of_its_own() -> None:
    cuda = StandInCuda()
    mover = CudaMover(torch.device("cuda"), cuda)
    plain, pinned = StandInTensor.make(cuda.said), StandInTensor.make(cuda.said, pinned=True)
    moved = mover.send((plain, pinned, "label"))
    assert isinstance(moved, MovedBatch)
    batch = mover.receive(moved)
    assert batch[2] == "label"
    assert cuda.said == [
        "on the copy stream",
        "pin",
        "copy to cuda:1",
        "copy to cuda:1",
        "off",
        "the loop's stream waits for the copy stream",
        "used on the loop's stream",
        "used on the loop's stream",
    ]


def test_a_card_has_copied_before_the_loader_goes_on() -> None:
    cuda = StandInCuda()
    mover = CudaMover(torch.device("cuda"), cuda, copies=True)
    pinned, there = StandInTensor.make(cuda.said, pinned=True), StandInTensor.make(cuda.said, on_card=True)
    mover.send((pinned, there))
    assert cuda.said == [
        "the copy stream waits for the loop's stream",
        "on the copy stream",
        "copy to cuda:1",
        "copy on the card",
        "off",
        "the thread waits for the copy stream",
    ]


# -- other processes


def run_script(text: str, *, interrupt_at: str | None = None) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    said = ""
    if interrupt_at is not None:
        for line in process.stdout:
            said += line
            if interrupt_at in line:
                process.send_signal(signal.SIGINT)
                break
    out, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, said + out, errors)


def test_ctrl_c_while_the_loop_waits_ends_it() -> None:
    done = run_script(
        """
        import threading
        from anygpu.pytorch import prefetch
        asked = threading.Event()
        def loader():
            yield 0
            print("at work")
            asked.wait(120)
            yield 1
        def loop():
            for _ in prefetch(loader()):
                pass
        try:
            loop()
        except KeyboardInterrupt:
            asked.set()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(120)
        print("threads", threading.active_count())
        """,
        interrupt_at="at work",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "threads 1" in done.stdout


def test_the_interpreter_ends_in_the_midst_of_a_loop() -> None:
    done = run_script(
        """
        import torch
        from anygpu.pytorch import prefetch
        kept = iter(prefetch([torch.ones(10) for _ in range(100)]))
        next(kept)
        import sys
        sys.modules["keeps it"] = kept
        print("over")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_a_fork_a_new_loop_works_and_an_old_one_says_so() -> None:
    done = run_script(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from anygpu.errors import AnyGPUError
        from anygpu.pytorch import prefetch
        batches = prefetch(range(5))
        loop = iter(batches)
        next(loop)
        child = os.fork()
        if child == 0:
            try:
                next(loop)
            except AnyGPUError as error:
                print("forked" in str(error))
            print(list(batches))
            loop.close()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), list(loop))
        """
    )
    assert done.stderr == ""
    assert done.stdout == "True\n[0, 1, 2, 3, 4]\n0 [1, 2, 3, 4]\n"
