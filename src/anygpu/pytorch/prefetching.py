"""The next batches, fetched while the present one is worked on.

A thread of the loop's own fetches and moves them, `depth` ahead at most. Three rules keep it as a plain loop would be:

- The loader's `iter` and its first batch are asked for in that thread, but while the loop waits: random numbers that a
  loader draws at its start, as a shuffling `DataLoader` does, are drawn in the same order as without `prefetch`.
- The thread knows the channel and not the iterator. So an iterator that nobody has any more is collected, which ends
  the thread and lets go of the batches, however the loop was left.
- What both sides wait on are `SimpleQueue`s, which are of C: an interrupt never finds them half changed, and a
  finaliser may use them wherever it runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch.utils.data import DataLoader, default_collate

from anygpu.errors import AnyGPUError, InvalidOption
from anygpu.pytorch import measuring
from anygpu.pytorch.batches import MovedBatch, Mover, mover_to
from anygpu.pytorch.thread_state import ThreadState, not_carried

T = TypeVar("T")

#: What a finaliser waits for the thread at most: it may run anywhere, also where the loader's own code waits for us.
_FINAL_SECONDS = 5.0
#: Ctrl-C is heard after so long at the latest.
_HEARING_SECONDS = 0.5


def prefetch(loader: Iterable[T], device: torch.device | str | None = None, depth: int = 2) -> Prefetch[T]:
    """The batches of `loader`, in order, `depth` of them fetched ahead while the present one is worked on.

    Tensors in tuples, lists, mappings, named tuples and dataclasses are moved to `device`; without one, batches stay
    where the loader puts them. On CUDA they are pinned and copied on a stream of their own (never run on a card).

    A loader that may fill one buffer again and again has its batches copied; batches of a list, a tuple, and of a
    `DataLoader` with workers or with torch's own collation are new, and are not.

    Each loop begins anew, as the loader does; batches that were ahead when a loop is left are dropped. What the loader
    raises is raised in the loop. Use it in a `with` block to be sure that its thread has ended after the block.
    """
    if type(depth) is not int or depth < 1:
        raise InvalidOption(f"prefetch(depth={depth!r}) is not possible: depth is a number of batches, at least 1.")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise InvalidOption(f"prefetch() needs an iterable of batches, and a {type(loader).__name__} is none.")
    return Prefetch(loader, mover_to(device, copies=not _makes_new_batches(loader)), depth)


def _makes_new_batches(loader: Iterable[Any]) -> bool:
    """Whether it is sure that a loader does not write to a batch after it has given it away."""
    if type(loader) in (list, tuple):
        return True
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return loader.num_workers > 0 or loader.collate_fn is default_collate


class Prefetch(Generic[T]):
    """The iterable that `prefetch` returns."""

    def __init__(self, loader: Iterable[T], mover: Mover, depth: int) -> None:
        self.loader = loader
        self.depth = depth
        self._mover = mover
        self._turn = _Turn()
        self._open: weakref.WeakSet[Batches[T]] = weakref.WeakSet()

    def __iter__(self) -> Batches[T]:
        if self._turn.pid != os.getpid():  # a thread that is not in this process may have had it when it forked
            self._turn = _Turn()
        batches = Batches(self.loader, self._mover, self.depth, self._turn)
        self._open.add(batches)
        return batches

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def close(self) -> None:
        """End every loop over it, and wait until their threads have ended."""
        for batches in list(self._open):
            batches.close()

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Turn:
    """Loops over one `Prefetch` take turns with its loader, which need not be ready for two threads at once."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()


class _Batch(NamedTuple):
    moved: MovedBatch


class _End(NamedTuple):
    """After the last batch: with what the loader raised, if it did."""

    error: BaseException | None = None


class _Begun(NamedTuple):
    """The loader's `iter` has returned."""


class _Channel:
    """Between the loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        #: One entry for each batch that may be fetched.
        self.asked: SimpleQueue[bool] = SimpleQueue()
        self.found: SimpleQueue[_Begun | _Batch | _End] = SimpleQueue()
        self.closed = False

    def close(self) -> None:
        """Tells the producer to end, and drops the batches that nobody will ask for."""
        self.closed = True
        self.asked.put(False)
        self.drop()

    def drop(self) -> None:
        """Drops the batches that are ready, so that their memory is free."""
        with contextlib.suppress(Empty):
            while True:
                self.found.get_nowait()


class Batches(Iterator[T]):
    """One loop over the batches. It ends with the loop, or with `close`."""

    def __init__(self, loader: Iterable[T], mover: Mover, depth: int, turn: _Turn) -> None:
        #: Seconds that the loop has waited for batches so far.
        self.waited = 0.0
        self._depth = depth
        self._mover = mover
        self._begun = False
        self._ended = False
        self._source = object()
        self._channel = _Channel()
        self._plain: Iterator[T] | None = None
        if not_carried() is not None:
            # The loader's operations would escape the mode: they stay on the loop's thread, and nothing is ahead.
            self._plain = iter(loader)
            return
        state = ThreadState.here()
        channel = self._channel
        producer = _Producer(loader, mover, channel, turn)
        self._thread = threading.Thread(target=state.run, args=(producer.run,), name="anygpu prefetch", daemon=True)
        # Also at the end of the interpreter, while threads still run: a thread in the midst of torch's code must not
        # be cut off there.
        self._finalizer = weakref.finalize(self, _finish, channel, self._thread, _FINAL_SECONDS)
        self._thread.start()
        del producer
        self._receive()

    def __next__(self) -> T:
        """The next batch, on its device. Raises what the loader raised."""
        if self._ended:
            raise StopIteration
        if self._channel.pid != os.getpid():
            raise AnyGPUError(
                "this loop over prefetch() was begun before the process forked, and the thread that fetches its "
                "batches stayed in the other process. Begin a new loop: for batch in prefetch(...)."
            )
        begin = time.perf_counter()
        if self._plain is not None:
            batch = self._next_plain(self._plain)
        else:
            if not self._begun:
                self._channel.asked.put(True)
            found = self._receive()
            for _ in range(1 if self._begun else self._depth):
                self._channel.asked.put(True)
            self._begun = True
            batch = cast(T, self._mover.receive(cast(_Batch, found).moved))
        seconds = time.perf_counter() - begin
        self.waited += seconds
        measuring.add_data_wait(self._source, seconds)
        return batch

    def _next_plain(self, plain: Iterator[T]) -> T:
        """The next batch without a thread: loaded and moved now."""
        try:
            return cast(T, self._mover.receive(self._mover.send(next(plain))))
        except BaseException:
            self._end()
            raise

    def _wait(self) -> _Begun | _Batch | _End:
        """Wait for the next item. A signal that comes just before Python begins to wait does not wake it, so it
        never waits for long: Ctrl-C is heard then."""
        while True:
            with contextlib.suppress(Empty):
                return self._channel.found.get(timeout=_HEARING_SECONDS)

    def _receive(self) -> _Begun | _Batch:
        """Receive the thread's next item; the end of the loader, and what it raised, end this loop too."""
        try:
            found = self._wait()
            if not isinstance(found, _End):
                return found
        except BaseException:  # an interrupt, after which nobody knows whether a batch is lost
            self._end()
            raise
        self._end()
        self._thread.join()  # that was the last thing it did
        if found.error is None:
            raise StopIteration
        error = found.error
        del found
        try:
            raise error
        finally:
            del error  # its traceback has this frame

    def _end(self) -> None:
        """Ends the iteration: nothing is waited for, and what was waited so far belongs to no step."""
        self._ended = True
        measuring.forget_data_wait(self._source)
        self._plain = None
        self._channel.close()

    def close(self) -> None:
        """End the loop, and wait until its thread has ended: for one batch of the loader at most."""
        self._end()
        if self._channel.pid != os.getpid() or not hasattr(self, "_finalizer"):
            return
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._finalizer.detach()
        self._channel.drop()

    def __enter__(self) -> Batches[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Producer:
    """The thread that fetches. It holds a batch only until it is in the channel."""

    def __init__(self, loader: Iterable[Any], mover: Mover, channel: _Channel, turn: _Turn) -> None:
        self._loader = loader
        self._mover = mover
        self._channel = channel
        self._turn = turn

    def run(self) -> None:
        """The thread's work: puts batches into the channel until there are no more or it is closed."""
        channel = self._channel
        channel.found.put(self._all())
        if channel.closed:
            channel.drop()

    def _all(self) -> _End:
        """Iterate over the loader and send its batches, until it ends or the loop does."""
        channel = self._channel
        try:
            with self._turn.lock:
                iterator = iter(self._loader)
            try:
                channel.found.put(_Begun())
                while channel.asked.get() and not channel.closed:
                    channel.found.put(self._next(iterator))
            finally:
                # A generator's own `finally` runs now, and workers of a DataLoader end.
                with self._turn.lock:
                    del iterator
        except _Exhausted:
            return _End()
        except BaseException as error:  # noqa: BLE001 - it is the loop's
            return _End(error)
        return _End()

    def _next(self, iterator: Iterator[Any]) -> _Batch:
        """The next batch, on its way to the device. Raises `_Exhausted` at the end.

        One thread at a time takes from the loader.
        """
        with self._turn.lock:
            try:
                batch = next(iterator)
            except StopIteration:
                raise _Exhausted from None
        return _Batch(self._mover.send(batch))


class _Exhausted(Exception):
    """The loader has no more batches. A StopIteration would not tell the loader's own from one that it let through."""


def _finish(channel: _Channel, thread: threading.Thread, seconds: float) -> None:
    """Ends the producer's thread, waiting so many seconds; in a forked child nothing is done."""
    if channel.pid != os.getpid():
        return
    channel.close()
    if thread is not threading.current_thread():
        thread.join(seconds)
    channel.drop()
