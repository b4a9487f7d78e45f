"""Calls at the same time: on threads that divide the cores, or on streams of a card.

Both run groups of calls. Within a group calls run in order; groups run at the same time.
"""

from __future__ import annotations

import contextvars
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import torch

from anygpu.base.units import readable_seconds
from anygpu.pytorch import torch_settings
from anygpu.pytorch.batches import tensors_of

# -- what torch keeps for each thread, carried from a caller into threads that work for it
#
# A new thread begins with gradients on, without autocast, and on the first card. What the caller has set otherwise is
# carried. What cannot be carried is named, so that the caller's own thread does the work.


T = TypeVar("T")

_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


class ThreadState(NamedTuple):
    """Torch's state of the caller's thread; each call of `run` sees a copy."""

    grad: bool
    inference: bool
    #: For each kind of device on which it is on, its dtype.
    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    #: Only where it is not the default of new threads, which is the host.
    device: torch.device | None
    context: contextvars.Context

    @classmethod
    def here(cls) -> ThreadState:
        """The state of this thread: gradient, inference and autocast modes, the default device, and its context."""
        device = torch.get_default_device()
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple(
                (kind, torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES if torch.is_autocast_enabled(kind)
            ),
            autocast_cache=torch.is_autocast_cache_enabled(),
            device=None if device == torch.device("cpu") else device,
            context=contextvars.copy_context(),
        )

    def run(self, call: Callable[[], T]) -> T:
        """Return `call()` on this thread with that state, and restore the thread's own."""
        return self.context.copy().run(self._with_modes, call)

    def _with_modes(self, call: Callable[[], T]) -> T:
        """Calls with the modes of the thread from which the state was taken."""
        with ExitStack() as stack:
            # The inference mode comes first: leaving or entering it sets the gradient mode.
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.autocast_cache))
            if self.device is not None:
                stack.enter_context(self.device)
            return call()


def not_carried() -> str | None:
    """State of this thread that no other can be given, as "a … is active"; `None` if there is none."""
    if _stack("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"):
        return "a mode that sees every operation (TorchDispatchMode) is active"
    modes = [mode for mode in _stack("torch.overrides", "_get_current_function_mode_stack") if not _is_device(mode)]
    if modes:
        return f"a mode that sees every function ({type(modes[-1]).__name__}) is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch._C._autograd._saved_tensors_hooks_is_enabled() and _has_saved_tensors_hooks():
        return "hooks on saved tensors are active"
    return None


def _stack(module: str, name: str) -> list[Any]:
    """The stack that a private function of torch returns; empty where a version has none."""
    from importlib import import_module

    found = getattr(import_module(module), name, None)
    return list(found()) if found is not None else []


def _is_device(mode: Any) -> bool:
    from torch.utils._device import DeviceContext

    return isinstance(mode, DeviceContext)


def _has_saved_tensors_hooks() -> bool:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None


# -- whether modules run side by side or one after the other: a pure choice by what calls took
#
# Both ways take turns, a few calls each, then the faster one holds for many. One after the other wins unless side by
# side is clearly faster, in the middle and at best: what disturbs a measurement makes it longer, and seldom both. A
# choice for side by side is soon looked at again, because a wrong one costs. A choice against it holds the longer the
# slower side by side was, so that looking again takes a fiftieth of the time at most.


Concurrency = Literal["one after the other", "side by side"]
SERIAL: Concurrency = "one after the other"
TOGETHER: Concurrency = "side by side"

#: Calls of each way that count before one is chosen.
TRIALS = 6
#: Calls of one way in a row, of which the first does not count: it finds torch's threads as the other way left them.
_ROW = 3
#: Side by side has to save so much: less is within what measurements differ by.
_LEAST_GAIN = 0.07
#: After two calls each, a way that takes so much longer is not tried again.
_HOPELESS = 1.5
#: The share of the time of calls one after the other that looking again may take.
_TRYING = 0.02
#: Calls that a choice for side by side holds: the first time, and at most.
_FIRST_HOLD, _LAST_HOLD = 20, 640


class Timings(msgspec.Struct, frozen=True):
    """Seconds of calls of the same modules with the same shapes, without those that do not count."""

    serial: tuple[float, ...] = ()
    together: tuple[float, ...] = ()
    calls: int = 0

    def seen(self, seconds: float) -> Timings:
        """With one more call, of the way that was next."""
        if self.calls % _ROW == 0:
            return msgspec.structs.replace(self, calls=self.calls + 1)
        if self.next_way() == SERIAL:
            return msgspec.structs.replace(self, serial=(*self.serial, seconds), calls=self.calls + 1)
        return msgspec.structs.replace(self, together=(*self.together, seconds), calls=self.calls + 1)

    @property
    def decided(self) -> bool:
        fewer = min(len(self.serial), len(self.together))
        return fewer >= TRIALS or (fewer >= 2 and min(self.together) > _HOPELESS * max(self.serial))

    def next_way(self) -> Concurrency:
        """The way of the next call: the two take turns, one after the other first."""
        return TOGETHER if self.calls // _ROW % 2 else SERIAL


class ConcurrencyChoice(msgspec.Struct, frozen=True):
    way: Concurrency
    reason: str
    #: Calls until both ways are measured again.
    holds: int


def choose(timings: Timings, before: ConcurrencyChoice | None = None) -> ConcurrencyChoice:
    """The way of the calls to come, when `timings` are decided. `before` is the choice of the trials before these."""
    serial, together = median(timings.serial), median(timings.together)
    enough = 1 - _LEAST_GAIN
    gains = together <= enough * serial and min(timings.together) <= enough * min(timings.serial)
    way = TOGETHER if gains else SERIAL
    calls = min(len(timings.serial), len(timings.together))
    times = {SERIAL: serial, TOGETHER: together}
    other = SERIAL if way == TOGETHER else TOGETHER
    at_best = ""
    if way == SERIAL and together < serial:  # the best ones decided
        times, at_best = {SERIAL: min(timings.serial), TOGETHER: min(timings.together)}, "at best "
    spent = {each: readable_seconds(seconds) for each, seconds in times.items()}
    reason = f"{way}: {at_best}{spent[way]} against {spent[other]} {other}, {calls} calls each"
    if way == SERIAL:
        ratio = max(1.0, together / serial if serial > 0 else 1.0)
        return ConcurrencyChoice(way, reason, math.ceil((TRIALS // (_ROW - 1) * _ROW) * ratio / _TRYING))
    again = before is not None and before.way == TOGETHER
    holds = min(_LAST_HOLD, 2 * before.holds) if again and before is not None else _FIRST_HOLD
    return ConcurrencyChoice(way, reason, holds)


def shares(groups: int, cores: int) -> tuple[int, ...]:
    """The threads that each of the workers gets; there are no more workers than groups or cores."""
    workers = max(1, min(groups, cores))
    each, left = divmod(max(cores, workers), workers)
    return tuple(each + (number < left) for number in range(workers)) if groups <= cores else (1,) * workers


# -- what modules have in common, and so must not run at the same time
#
# A module that is part of two others, or the state of a hook that is on both, is used by one of them at a time: such
# modules are one group, which runs in order on one thread. Tensors that several groups can reach may be read at the
# same time, and are watched for being changed.


#: Nothing that two hooks could both change.
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size, types.ModuleType,
    types.BuiltinFunctionType, frozenset,
)  # fmt: skip


def groups_of(modules: Sequence[torch.nn.Module]) -> list[list[int]]:
    """The positions of modules that have something in common, together and in order."""
    group_of: dict[int, int] = {}
    merged = list(range(len(modules)))

    def root(number: int) -> int:
        while merged[number] != number:
            number = merged[number]
        return number

    for number, module in enumerate(modules):
        for thing in _things(module):
            first = group_of.setdefault(id(thing), number)
            one, other = sorted((root(first), root(number)))
            merged[other] = one
    found: dict[int, list[int]] = {}
    for number in range(len(modules)):
        found.setdefault(root(number), []).append(number)
    return list(found.values())


def _things(module: torch.nn.Module) -> Iterator[Any]:
    """Objects that may hold state: submodules, and what their hooks refer to."""
    for part in module.modules():
        yield part
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            for hook in getattr(part, name).values():
                yield from _known_by(hook)


def _known_by(hook: Any) -> Iterator[Any]:
    """The objects that a hook can reach, by which two modules may share state."""
    if not isinstance(hook, types.FunctionType):
        yield hook  # an object that is called, which may keep anything
    owner = getattr(hook, "__self__", None)
    if owner is not None and not isinstance(owner, _ATOMS):
        yield owner
    for cell in getattr(hook, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not yet set
            continue
        if isinstance(content, types.FunctionType):
            yield from _known_by(content)
        elif not isinstance(content, _ATOMS):
            yield content
    if isinstance(hook, types.FunctionType) and hook.__code__.co_names:
        yield hook.__code__  # it uses names of its module, which another hook with the same code uses too


def common_tensors(
    modules: Sequence[torch.nn.Module], inputs: Sequence[Any], groups: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Those whose memory more than one group can reach, each once."""
    seen: dict[int, tuple[int, torch.Tensor]] = {}
    found: dict[int, torch.Tensor] = {}
    for number, group in enumerate(groups):
        for position in group:
            for tensor in (*_own_tensors(modules[position]), *tensors_of(inputs[position])):
                place = _place(tensor)
                if place is None:
                    continue
                first, _ = seen.setdefault(place, (number, tensor))
                if first != number:
                    found[place] = tensor
    return list(found.values())


def _own_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _place(tensor: torch.Tensor) -> int | None:
    """Where its storage is; `None` for one that has none, such as a sparse one."""
    try:
        return int(tensor.untyped_storage().data_ptr()) or None
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def versions(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """How often each was changed in place; `None` if one does not count it, as those of the inference mode do not."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return None


Thunk = Callable[[], Any]


class CallOutcome:
    """The value or the error of one call. A call that was never begun has neither."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

    def of(self, call: Thunk) -> None:
        """Calls, and keeps the value or whatever it raises."""
        try:
            self.value = call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self.error = error


class Crew(Protocol):
    """Runs groups of calls at the same time, and the calls of a group one after the other."""

    def run(self, calls: Sequence[Thunk], groups: Sequence[Sequence[int]]) -> list[CallOutcome]:
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

    def run(self, calls: Sequence[Thunk], groups: Sequence[Sequence[int]]) -> list[CallOutcome]:
        """Run the groups on threads, which share the cores."""
        outcomes = [CallOutcome() for _ in calls]
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

    def _start(self, threads: list[threading.Thread], works: Sequence[Thunk], counts: Sequence[int]) -> None:
        """Threads with their number of cores. What new threads of the process get is as before afterwards.

        torch has that number for each thread, but whoever sets it also sets what new threads begin with.
        """
        ready: SimpleQueue[int] = SimpleQueue()

        def begin(work: Thunk, count: int) -> None:
            usual = torch.get_num_threads()  # the first question sets it to the usual: it has to come first
            if usual != count:
                torch.set_num_threads(count)
            ready.put(usual)
            work()

        with torch_settings.changing:
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
        """Gives new threads their usual number of threads back."""
        if usual == self.cores:
            torch.set_num_threads(usual)  # the caller's own number, which is the same
        else:
            torch_settings.on_a_new_thread(lambda: torch.set_num_threads(usual))

    def how(self, groups: Sequence[Sequence[int]]) -> str:
        """The threads and cores of a run, in words."""
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

    def run(self, calls: Sequence[Thunk], groups: Sequence[Sequence[int]]) -> list[CallOutcome]:
        """Run the groups on CUDA streams; the caller's stream waits for all of them."""
        cuda = self._cuda
        outcomes = [CallOutcome() for _ in calls]
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
