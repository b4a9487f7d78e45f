"""Calls at the same time: on threads that divide the cores, or on streams of a card.

Both run groups of calls. Within a group calls run in order; groups run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import torch

from anygpu.pytorch import torch_slots
from anygpu.pytorch.batch_tensors import tensors_of
from anygpu.pytorch.side_by_side_choice import shares
from anygpu.pytorch.thread_state import ThreadState

Call = Callable[[], Any]


class Outcome:
    """Of one call: what it returned, or what it raised. A call that was never begun has neither."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

    def of(self, call: Call) -> None:
        try:
            self.value = call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.error = error


class Crew(Protocol):
    def run(self, calls: Sequence[Call], groups: Sequence[Sequence[int]]) -> list[Outcome]:
        """Every call's outcome, in the order of `calls`. All have ended, also when one raised."""
        ...

    def how(self, groups: Sequence[Sequence[int]]) -> str: ...

    def wait(self) -> None:
        """Until what was asked for is done: calls on a card return before."""
        ...

    def random_state(self) -> Any:
        """Changes when random numbers are drawn; compared with `==`."""
        ...


class ThreadCrew:
    """On threads of their own, each with its share of the cores that the caller has."""

    def __init__(self) -> None:
        self.cores = int(torch.get_num_threads())

    def run(self, calls: Sequence[Call], groups: Sequence[Sequence[int]]) -> list[Outcome]:
        outcomes = [Outcome() for _ in calls]
        counts = shares(len(groups), self.cores)
        state = ThreadState.here()
        # With more groups than workers all have one core, so it does not matter which worker takes which group.
        waiting: SimpleQueue[Sequence[int]] = SimpleQueue()
        for group in groups[len(counts) :]:
            waiting.put(group)

        def work(first: Sequence[int]) -> None:
            with suppress(Empty):
                group = first
                while True:
                    for position in group:
                        outcomes[position].of(calls[position])
                    group = waiting.get_nowait()

        threads: list[threading.Thread] = []
        try:
            self._start(threads, [partial(state.run, partial(work, group)) for group in groups], counts)
        finally:
            for thread in threads:
                thread.join()
        return outcomes

    def _start(self, threads: list[threading.Thread], works: Sequence[Call], counts: Sequence[int]) -> None:
        """Threads with their number of cores. What new threads of the process get is as before afterwards.

        torch has that number for each thread, but whoever sets it also sets what new threads begin with.
        """
        ready: SimpleQueue[int] = SimpleQueue()

        def begin(work: Call, count: int) -> None:
            usual = torch.get_num_threads()  # the first question sets it to the usual: it has to come first
            if usual != count:
                torch.set_num_threads(count)
            ready.put(usual)
            work()

        with torch_slots.changing:
            usual = None
            try:
                for number, count in enumerate(counts):
                    thread = threading.Thread(target=begin, args=(works[number], count), name="anygpu parallel")
                    thread.start()
                    threads.append(thread)
                    if number == 0:  # later ones begin with what this one has set
                        usual = ready.get()
                for _ in counts[1:]:
                    ready.get()
            finally:
                if usual is not None:
                    self._restore(usual)

    def _restore(self, usual: int) -> None:
        if usual == self.cores:
            torch.set_num_threads(usual)  # the caller's own number, which is the same
        else:
            torch_slots.on_a_new_thread(lambda: torch.set_num_threads(usual))

    def how(self, groups: Sequence[Sequence[int]]) -> str:
        counts = shares(len(groups), self.cores)
        cores = " and ".join(str(count) for count in sorted(set(counts), reverse=True))
        return f"on {len(counts)} threads with {cores} of {self.cores} cores each"

    def wait(self) -> None:
        pass

    def random_state(self) -> Any:
        return bytes(torch.get_rng_state().numpy())


class StreamCrew:
    """On streams of one card, which the caller's stream waits for. Never run on a card.

    The host asks for one group after the other; the card works on them at the same time. Memory that a stream has
    allocated is marked as used on the caller's stream, and inputs as used on theirs, before anybody can free it.
    """

    def __init__(self, device: torch.device, inputs: Sequence[Any], cuda: Any = torch.cuda) -> None:
        self._device = device
        self._inputs = inputs
        self._cuda = cuda

    def run(self, calls: Sequence[Call], groups: Sequence[Sequence[int]]) -> list[Outcome]:
        cuda = self._cuda
        outcomes = [Outcome() for _ in calls]
        callers = cuda.current_stream(self._device)
        streams = [cuda.Stream(self._device) for _ in groups]
        try:
            for group, stream in zip(groups, streams, strict=True):
                stream.wait_stream(callers)
                with cuda.stream(stream):
                    for position in group:
                        for tensor in tensors_of(self._inputs[position]):
                            if tensor.is_cuda:
                                tensor.record_stream(stream)
                        outcomes[position].of(calls[position])
        finally:
            for stream in streams:
                callers.wait_stream(stream)
        for outcome in outcomes:
            for tensor in tensors_of(outcome.value):
                if tensor.is_cuda:
                    tensor.record_stream(callers)
        return outcomes

    def how(self, groups: Sequence[Sequence[int]]) -> str:
        return f"on {len(groups)} streams"

    def wait(self) -> None:
        self._cuda.synchronize(self._device)

    def random_state(self) -> Any:
        state = self._cuda.get_rng_state(self._device)
        return bytes(torch.get_rng_state().numpy()), bytes(state.numpy())
