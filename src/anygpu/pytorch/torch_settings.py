"""torch's settings for a block, and back to what they were.

torch has one value of each setting for the whole process; only the number of threads is a thread's own, beside the one
for new threads. So each block notes what it found, and a block that ends before a later one hands that on to it: blocks
may end in any order, as those in generators do, and the last one restores what the first one found.

torch has two ways to say how exact float32 products are: `set_float32_matmul_precision` with `allow_tf32`, and since
2.9 `fp32_precision` of each library. They share state, and the older getters raise when both disagree. A program that
can read both before a block can read both inside of it; for a program that uses only the newer way, only that is
changed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch.utils._contextlib import context_decorator

from anygpu.errors import InvalidOption

Function = TypeVar("Function", bound=Callable[..., Any])
Slot = tuple[Callable[[], Any], Callable[[Any], object]]

#: Held while settings of the whole process are read and changed.
changing = threading.RLock()


def on_a_new_thread(call: Callable[[], Any]) -> Any:
    """Return `call()` on a new thread, which has the number of threads that every new one gets."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def _older(getter: Callable[[], Any]) -> Any:
    """Return the value of an older getter; `None` where torch refuses, because the newer way has been used alone."""
    try:
        return getter()
    except RuntimeError:
        return None


def _newer(library: str, operation: str) -> Slot:
    """Return the `fp32_precision` of a library's operation; `None` before torch 2.9."""

    def owner() -> Any:
        return getattr(getattr(torch.backends, library), operation, None)

    return lambda: getattr(owner(), "fp32_precision", None), lambda value: setattr(owner(), "fp32_precision", value)


#: How each value is read and written. A setter that changes other slots too comes before them.
_SLOTS: dict[str, Slot] = {
    "matmul_precision": (lambda: _older(torch.get_float32_matmul_precision), torch.set_float32_matmul_precision),
    "cuda_matmul": _newer("cuda", "matmul"),
    "mkldnn_matmul": _newer("mkldnn", "matmul"),
    "cudnn_tf32": (
        lambda: _older(lambda: torch.backends.cudnn.allow_tf32),
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
    ),
    "cudnn_conv": _newer("cudnn", "conv"),
    "cudnn_rnn": _newer("cudnn", "rnn"),
    "cudnn_benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    ),
    "deterministic": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "new_threads": (
        lambda: on_a_new_thread(torch.get_num_threads),
        lambda value: on_a_new_thread(lambda: torch.set_num_threads(value)),
    ),
}
#: Other slots that a slot's setter changes.
_ALSO_CHANGED = {
    "matmul_precision": ("cuda_matmul", "mkldnn_matmul"),
    "cudnn_tf32": ("cudnn_conv", "cudnn_rnn"),
    "threads": ("new_threads",),
}
SLOTS = tuple(_SLOTS)


def read(slot: str) -> Any:
    """Return the value of a slot now; `None` if torch refuses to tell, or is too old to have it."""
    return _SLOTS[slot][0]()


def write(values: Mapping[str, Any]) -> None:
    """Set these slots, and leave the others and what is `None` as they are."""
    others = {also: read(also) for slot in values for also in _ALSO_CHANGED.get(slot, ())}
    aimed = {**others, **values}
    for slot, (_, setter) in _SLOTS.items():
        if aimed.get(slot) is not None:
            setter(aimed[slot])


def wanted(given: Mapping[str, Any], now: Callable[[str], Any]) -> dict[str, Any]:
    """Return the slots that settings change, with their values, in the way of torch that the program uses already."""
    values = {name: given[name] for name in ("cudnn_benchmark", "threads") if name in given}
    if "threads" in given:
        values["new_threads"] = given["threads"]
    if "deterministic" in given:
        values["deterministic"] = (bool(given["deterministic"]), given["deterministic"] == "warn")
    tf32, precision = given.get("tf32"), given.get("matmul_precision")
    if tf32 is not None or precision is not None:
        values |= _wanted_products(tf32, precision, now)
    if tf32 is not None:
        older, newer = now("cudnn_tf32"), now("cudnn_conv")
        own = "tf32" if tf32 else "ieee" if older is None else "none"  # as torch's own older setter has it
        values |= {} if older is None else {"cudnn_tf32": tf32}
        values |= {} if newer is None else {"cudnn_conv": own, "cudnn_rnn": own}
    return values


def _wanted_products(tf32: bool | None, precision: str | None, now: Callable[[str], Any]) -> dict[str, Any]:
    """Return the slots of float32 products. Raise `InvalidOption` for a precision that could not be put back."""
    older, card, host = now("matmul_precision"), now("cuda_matmul"), now("mkldnn_matmul")
    own = "tf32" if tf32 or precision in ("high", "medium") else "ieee"
    if precision is not None:
        if older is None:
            raise InvalidOption(
                f"settings(matmul_precision={precision!r}) could not be restored: the fp32_precision of "
                "torch.backends.cuda.matmul or mkldnn.matmul was set, beside which torch refuses to read this one. "
                "Use one of the two ways."
            )
        host = {"highest": "ieee", "high": "tf32", "medium": "bf16"}[precision]
    elif card is not None and (older is None or (older != "highest") != (card == "tf32")):
        return {"cuda_matmul": own}
    elif tf32:
        precision = older if older in ("high", "medium") else "high"
    else:  # beside "highest", torch would refuse to read anything else of the host
        precision, host = "highest", "none" if host == "none" else "ieee"
    return {"matmul_precision": precision} | ({} if card is None else {"cuda_matmul": own, "mkldnn_matmul": host})


def settings(
    *,
    tf32: bool | None = None,
    cudnn_benchmark: bool | None = None,
    deterministic: bool | Literal["warn"] | None = None,
    threads: int | None = None,
    matmul_precision: Literal["highest", "high", "medium"] | None = None,
) -> TorchSettings:
    """Return torch's settings for a `with` block, or for the calls of a function that it decorates.

    At the end of the block everything is as before, also after an error.
    """
    given = {**locals()}
    return TorchSettings({name: value for name, value in given.items() if value is not None})


@dataclass(eq=False)
class _Block:
    """One `with` block, and what it found in the slots that it changes."""

    given: Mapping[str, Any]
    thread: threading.Thread = field(default_factory=threading.current_thread)
    found: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


#: The blocks of this process, in the order in which they began.
_blocks: list[_Block] = []


def _begin(block: _Block) -> None:
    with changing:
        block.values = wanted(block.given, read)
        _refuse_what_cannot_be_kept(block)
        block.found = {slot: read(slot) for slot in block.values}
        _blocks.append(block)
        write(block.values)


def _end(block: _Block) -> None:
    """Restore what a block found, or hand it on to the later block that holds a slot. A second call does nothing."""
    with changing:
        if block not in _blocks:
            return
        back, later = {}, _blocks[_blocks.index(block) + 1 :]
        for slot, found in block.found.items():
            own = slot == "threads"
            heir = next((b for b in later if slot in b.found and (not own or b.thread is block.thread)), None)
            if heir is not None:
                heir.found[slot] = found
            elif not own or block.thread is threading.current_thread():
                back[slot] = found
        write(back)
        _blocks.remove(block)


def _refuse_what_cannot_be_kept(block: _Block) -> None:
    """Raise `InvalidOption` if another thread has other values, or if precisions are inherited."""
    said = repr(TorchSettings(block.given))
    for other in _blocks:
        shared = block.values.keys() & other.values.keys() - {"threads"}
        if other.thread is not block.thread and any(block.values[slot] != other.values[slot] for slot in shared):
            raise InvalidOption(
                f"{said} cannot begin: the thread {other.thread.name!r} is in a block with "
                f"{TorchSettings(other.given)!r}, and torch has one value for the whole process. Give both blocks the "
                "same value, or begin one after the other has ended."
            )
    for owner in (torch.backends, torch.backends.cudnn, torch.backends.mkldnn):
        inherited = getattr(owner, "fp32_precision", "none")
        if inherited != "none" and {"tf32", "matmul_precision"} & block.given.keys():
            raise InvalidOption(
                f"{said} could not be restored: with `{owner.__name__}.fp32_precision = {inherited!r}`, torch does not "
                "tell what is inherited from it and what is set on its own. Set that line to 'none' first."
            )


class TorchSettings:
    """The result of `settings`: a context manager that can be entered again, also inside itself, and a decorator."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        _check(given)
        self._given = given
        self._begun: list[_Block] = []

    def __repr__(self) -> str:
        return f"settings({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    def __enter__(self) -> TorchSettings:
        block = _Block(self._given)
        self._begun.append(block)
        try:
            _begin(block)
        except BaseException:  # also an interrupt
            self._begun.remove(block)
            _end(block)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        here = threading.current_thread()
        block = ([block for block in self._begun if block.thread is here] or self._begun)[-1]
        try:
            _end(block)
        except BaseException:  # an interrupt: what has been put back can be put back again
            _end(block)
            raise
        finally:
            self._begun.remove(block)
        if block.thread is not here and "threads" in self._given:
            raise InvalidOption(
                f"a block with {self!r} was begun by the thread {block.thread.name!r} and left by another, which "
                "cannot put back that thread's number of threads. Leave the block in the thread that began it."
            )

    def __call__(self, function: Function) -> Function:
        """The function, with these settings while it runs. A generator has them while its own code runs."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidOption(
                f"{self!r} cannot decorate {function.__qualname__}, which is asynchronous: other tasks would run with "
                "its settings while it waits. Use a `with` block around the code of it that computes."
            )
        decorate: Any = context_decorator
        decorated: Function = decorate(lambda: TorchSettings(self._given), function)
        return decorated


def _check(given: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` for values that mean nothing, or contradict each other."""
    precisions = ("highest", "high", "medium")
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "threads": (lambda value: type(value) is int and value >= 1, "a number of threads, at least 1"),
        "matmul_precision": (lambda value: value in precisions, "'highest', 'high' or 'medium'"),
        "deterministic": (lambda value: type(value) is bool or value == "warn", "True, False, or 'warn'"),
    }
    for name, value in given.items():
        is_valid, words = rules.get(name, (lambda value: type(value) is bool, "True or False"))
        if not is_valid(value):
            raise InvalidOption(f"settings({name}={value!r}) is not possible: {name} is {words}.")
    if {"tf32", "matmul_precision"} <= given.keys() and given["tf32"] == (given["matmul_precision"] == "highest"):
        raise InvalidOption(
            f"settings(tf32={given['tf32']}, matmul_precision={given['matmul_precision']!r}) contradicts itself: torch "
            "uses TF32 for products when the precision is 'high' or 'medium', not when it is 'highest'. Leave one out."
        )
