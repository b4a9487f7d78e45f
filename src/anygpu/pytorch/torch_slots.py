"""Where torch keeps its settings, one slot for each value that can be read and written back.

torch has two ways to say how exact float32 products have to be. The older one is `set_float32_matmul_precision` with
the two `allow_tf32`; the newer one is `fp32_precision`, of each library and operation. They share some of their state,
and when they disagree the older getters raise. So whoever uses the older way is served in a way that both can still be
read, and for whoever has set the newer one alone, only that is changed.

A `fp32_precision` that is `"none"` is inherited from its library, or from `torch.backends`, and its getter returns what
is inherited. Where something is inherited, what a slot has of its own cannot be read; `inherits` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch

Slot = Literal[
    "matmul_precision",
    "cuda_matmul",
    "mkldnn_matmul",
    "cudnn_tf32",
    "cudnn_conv",
    "cudnn_rnn",
    "cudnn_benchmark",
    "deterministic",
    "threads",
    "new_threads",
]
SLOTS: tuple[Slot, ...] = get_args(Slot)

#: What one of torch's threads for itself has, and others have their own.
OF_A_THREAD: frozenset[Slot] = frozenset({"threads"})

#: Held by whoever changes what the whole process has, from the first read to the last write.
changing = threading.RLock()

#: A slot whose older getter raises, because the newer way has been used alone.
UNREADABLE = None


def has_newer_way() -> bool:
    """Whether this torch has `fp32_precision`, which came with 2.9."""
    return hasattr(torch._C, "_get_fp32_precision_getter")


def read(slot: Slot) -> Any:
    return _READERS[slot]()


def write(values: Mapping[Slot, Any]) -> None:
    """Set these slots, and leave the others as they are. What is `UNREADABLE` is left as well."""
    aimed = dict(values)
    if has_newer_way():
        if aimed.get("matmul_precision") is not None:
            # The older setter also writes these two, so they are written again after it.
            aimed = {"cuda_matmul": read("cuda_matmul"), "mkldnn_matmul": read("mkldnn_matmul"), **aimed}
        if aimed.get("cudnn_tf32") is not None:
            aimed = {"cudnn_conv": read("cudnn_conv"), "cudnn_rnn": read("cudnn_rnn"), **aimed}
    if "threads" in aimed:
        aimed = {"new_threads": read("new_threads"), **aimed}
    for slot in SLOTS:  # the order matters: each is after those whose setter writes it too
        if aimed.get(slot) is not None:
            _WRITERS[slot](aimed[slot])


def inherits() -> str | None:
    """The setting that others inherit from, as a line of Python; `None` if nothing is inherited."""
    if not has_newer_way():
        return None
    for name, owner in (
        ("torch.backends", torch.backends),
        ("torch.backends.cudnn", torch.backends.cudnn),
        ("torch.backends.mkldnn", torch.backends.mkldnn),
    ):
        if owner.fp32_precision != "none":
            return f"{name}.fp32_precision = {owner.fp32_precision!r}"
    return None


def on_a_new_thread(call: Callable[[], Any]) -> Any:
    """Return `call()` on a new thread, which has the number of threads that every new one gets."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def _older(getter: Callable[[], Any]) -> Any:
    try:
        return getter()
    except RuntimeError:  # "you have used mix of the legacy and new APIs"
        return UNREADABLE


def _newer(owner: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: owner().fp32_precision if has_newer_way() else UNREADABLE


def _set_newer(owner: Callable[[], Any]) -> Callable[[Any], None]:
    return lambda value: setattr(owner(), "fp32_precision", value)


def _set_deterministic(value: tuple[bool, bool]) -> None:
    enabled, warn_only = value
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


_READERS: dict[Slot, Callable[[], Any]] = {
    "matmul_precision": lambda: _older(torch.get_float32_matmul_precision),
    "cuda_matmul": _newer(lambda: torch.backends.cuda.matmul),
    "mkldnn_matmul": _newer(lambda: torch.backends.mkldnn.matmul),
    "cudnn_tf32": lambda: _older(lambda: torch.backends.cudnn.allow_tf32),
    "cudnn_conv": _newer(lambda: torch.backends.cudnn.conv),
    "cudnn_rnn": _newer(lambda: torch.backends.cudnn.rnn),
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "deterministic": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    # Its first call on a thread also takes over what new threads get, so it has to come before any other.
    "threads": torch.get_num_threads,
    "new_threads": lambda: on_a_new_thread(torch.get_num_threads),
}

_WRITERS: dict[Slot, Callable[[Any], Any]] = {
    "matmul_precision": torch.set_float32_matmul_precision,
    "cuda_matmul": _set_newer(lambda: torch.backends.cuda.matmul),
    "mkldnn_matmul": _set_newer(lambda: torch.backends.mkldnn.matmul),
    "cudnn_tf32": lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
    "cudnn_conv": _set_newer(lambda: torch.backends.cudnn.conv),
    "cudnn_rnn": _set_newer(lambda: torch.backends.cudnn.rnn),
    "cudnn_benchmark": lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    "deterministic": _set_deterministic,
    "threads": torch.set_num_threads,
    "new_threads": lambda value: on_a_new_thread(lambda: torch.set_num_threads(value)),
}
