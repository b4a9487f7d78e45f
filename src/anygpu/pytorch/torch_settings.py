"""torch's settings for a block, and back to what they were.

torch has one value of each setting for the whole process (of the number of threads: one for each thread, and one for
new threads). So blocks are entries in one list for each slot, and a block that ends before one that began after it
hands the value that it found to that one. However blocks overlap, the last one puts back what the first one found.
Blocks of two threads that want different values at the same time are refused, because one of them would silently not
get its own.

Slots of torch come first, then sentences about what settings cost, then which slots an option changes, then blocks.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args

import torch

from anygpu.errors import InvalidOption

# -- where torch keeps its settings, one slot for each value that can be read and written back
#
# torch has two ways to say how exact float32 products have to be. The older one is `set_float32_matmul_precision` with
# the two `allow_tf32`; the newer one is `fp32_precision`, of each library and operation. They share some of their
# state, and when they disagree the older getters raise. So whoever uses the older way is served in a way that both can
# still be read, and for whoever has set the newer one alone, only that is changed.
#
# A `fp32_precision` that is `"none"` is inherited from its library, or from `torch.backends`, and its getter returns
# what is inherited. Where something is inherited, what a slot has of its own cannot be read; `inherits` says so.


TorchSlot = Literal[
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
SLOTS: tuple[TorchSlot, ...] = get_args(TorchSlot)

#: What one of torch's threads for itself has, and others have their own.
OF_A_THREAD: frozenset[TorchSlot] = frozenset({"threads"})

#: Held by whoever changes what the whole process has, from the first read to the last write.
changing = threading.RLock()

#: A slot whose older getter raises, because the newer way has been used alone.
UNREADABLE = None


def has_newer_way() -> bool:
    """Whether this torch has `fp32_precision`, which came with 2.9."""
    return hasattr(torch._C, "_get_fp32_precision_getter")


def read(slot: TorchSlot) -> Any:
    """The value of a slot now; `UNREADABLE` if torch refuses to tell."""
    return _SLOTS[slot].read()


def write(values: Mapping[TorchSlot, Any]) -> None:
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
    for slot, each in _SLOTS.items():
        if aimed.get(slot) is not None:
            each.write(aimed[slot])


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
    """The value of an older getter, which raises after the newer way was used alone."""
    try:
        return getter()
    except RuntimeError:  # "you have used mix of the legacy and new APIs"
        return UNREADABLE


def _set_deterministic(value: tuple[bool, bool]) -> None:
    enabled, warn_only = value
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


class _SlotAccess(NamedTuple):
    """How a slot is read and written, and the options of `settings` that it has to be read for."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    options: tuple[str, ...]


def _newer(owner: Callable[[], Any], *options: str) -> _SlotAccess:
    """The slot of an owner's `fp32_precision`, where torch has that."""
    return _SlotAccess(
        lambda: owner().fp32_precision if has_newer_way() else UNREADABLE,
        lambda value: setattr(owner(), "fp32_precision", value),
        options,
    )


_PRODUCTS = ("matmul_precision", "tf32")

#: The order matters: each is written after those whose setter writes it too.
_SLOTS: dict[TorchSlot, _SlotAccess] = {
    "matmul_precision": _SlotAccess(
        lambda: _older(torch.get_float32_matmul_precision), torch.set_float32_matmul_precision, _PRODUCTS
    ),
    "cuda_matmul": _newer(lambda: torch.backends.cuda.matmul, *_PRODUCTS),
    "mkldnn_matmul": _newer(lambda: torch.backends.mkldnn.matmul, *_PRODUCTS),
    "cudnn_tf32": _SlotAccess(
        lambda: _older(lambda: torch.backends.cudnn.allow_tf32),
        lambda value: setattr(torch.backends.cudnn, "allow_tf32", value),
        ("tf32",),
    ),
    "cudnn_conv": _newer(lambda: torch.backends.cudnn.conv, "tf32"),
    "cudnn_rnn": _newer(lambda: torch.backends.cudnn.rnn, "tf32"),
    "cudnn_benchmark": _SlotAccess(
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
        ("cudnn_benchmark",),
    ),
    "deterministic": _SlotAccess(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
        ("deterministic",),
    ),
    # Its first call on a thread also takes over what new threads get, so it has to come before any other.
    "threads": _SlotAccess(torch.get_num_threads, torch.set_num_threads, ("threads",)),
    "new_threads": _SlotAccess(
        lambda: on_a_new_thread(torch.get_num_threads),
        lambda value: on_a_new_thread(lambda: torch.set_num_threads(value)),
        ("threads",),
    ),
}


# -- what torch's settings cost and give, as torch's own documentation has it


#: By name and value; `...` stands for any value. From torch's notes "CUDA semantics" and "Reproducibility", and from
#: the documentation of the functions themselves. TF32 on an A100 is in the first, under "TensorFloat-32 (TF32)":
#: two matrices of 10240 × 10240 take 0.016 s instead of 0.11 s, with a relative error of 0.0022 instead of 0.000039.
_SENTENCES: dict[tuple[str, Any], str] = {
    ("tf32", True): (
        "float32 products and convolutions on NVIDIA cards since Ampere use TF32, which keeps 10 bits of the mantissa "
        "instead of 23. Torch's documentation has a product on an A100 that is 7 times as fast, with errors 56 times "
        "as large; other cards gain less or more, and none was measured here. No effect elsewhere"
    ),
    ("tf32", False): (
        "float32 products and convolutions on NVIDIA cards keep all 23 bits of the mantissa. Torch's documentation has "
        "a product on an A100 that takes 7 times as long as with TF32; none was measured here. No effect elsewhere"
    ),
    ("cudnn_benchmark", True): (
        "cuDNN tries its convolution algorithms at each new shape and keeps the fastest. Pays where shapes stay the "
        "same; each new shape costs a trial, and the choice may differ between runs, and with it the last bits"
    ),
    ("cudnn_benchmark", False): (
        "cuDNN chooses convolution algorithms by rule: no trials at new shapes, but not always the fastest one"
    ),
    ("deterministic", True): (
        "the same inputs give the same bits on the same machine. Some operations become slower, new memory is filled "
        "first, and operations without a deterministic version raise RuntimeError; on CUDA, matrix products do so "
        "unless CUBLAS_WORKSPACE_CONFIG=:4096:8 is set before the start"
    ),
    ("deterministic", "warn"): (
        "the same inputs give the same bits on the same machine, except for operations without a deterministic "
        "version, which warn. Some operations become slower, and new memory is filled first"
    ),
    ("deterministic", False): "the fastest version of each operation, whose last bits may differ from run to run",
    ("threads", ...): (
        "operations on the CPU use this many threads, in this thread and in those started in the block. More than the "
        "number of cores makes them wait for each other; fewer leaves cores to others. Sums may differ in the last bits"
    ),
    ("matmul_precision", "highest"): "float32 products use all 23 bits of the mantissa",
    ("matmul_precision", "high"): (
        "float32 products may use TF32 or three bfloat16 parts: 10 to 16 bits of the mantissa. Faster where the card "
        "or the processor has units for that, no effect elsewhere"
    ),
    ("matmul_precision", "medium"): (
        "float32 products may be computed in bfloat16, which keeps 7 bits of the mantissa. Faster where the card or "
        "the processor has units for that (on the CPU: amx_bf16 or avx512_bf16), no effect elsewhere"
    ),
}


def costs_of(given: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each setting that is given."""
    return {name: _SENTENCES.get((name, value)) or _SENTENCES[name, ...] for name, value in given.items()}


P = ParamSpec("P")
T = TypeVar("T")

MatmulPrecision = Literal["highest", "high", "medium"]


class TorchOptions(NamedTuple):
    """The settings of a block; `None` leaves one as it is."""

    tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    deterministic: bool | Literal["warn"] | None = None
    threads: int | None = None
    matmul_precision: MatmulPrecision | None = None

    def given(self) -> dict[str, Any]:
        """The settings that are given, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def settings(
    *,
    tf32: bool | None = None,
    cudnn_benchmark: bool | None = None,
    deterministic: bool | Literal["warn"] | None = None,
    threads: int | None = None,
    matmul_precision: MatmulPrecision | None = None,
) -> TorchSettings:
    """torch's settings for a `with` block, or for the calls of a function that it decorates.

    At the end of the block everything is as before, also after an error. `str()` of it says what each costs or gives.
    """
    return TorchSettings(checked(TorchOptions(tf32, cudnn_benchmark, deterministic, threads, matmul_precision)))


def checked(options: TorchOptions) -> TorchOptions:
    """The options themselves. Raises `InvalidOption` for values that mean nothing, or contradict each other."""
    for name in ("tf32", "cudnn_benchmark"):
        value = getattr(options, name)
        if value is not None and not isinstance(value, bool):
            raise InvalidOption(f"settings({name}={value!r}) is not possible: {name} is True or False.")
    deterministic: Any = options.deterministic
    if deterministic is not None and deterministic != "warn" and not isinstance(deterministic, bool):
        raise InvalidOption(
            f"settings(deterministic={deterministic!r}) is not possible: it is True, False, or 'warn' to be warned of "
            "operations that have no deterministic version."
        )
    threads: Any = options.threads
    if threads is not None and (type(threads) is not int or threads < 1):
        raise InvalidOption(f"settings(threads={threads!r}) is not possible: it is a number of threads, at least 1.")
    precision = options.matmul_precision
    if precision is not None and precision not in get_args(MatmulPrecision):
        raise InvalidOption(
            f"settings(matmul_precision={precision!r}) is not possible: it is 'highest', 'high' or 'medium'."
        )
    if options.tf32 is not None and precision is not None and options.tf32 != (precision != "highest"):
        raise InvalidOption(
            f"settings(tf32={options.tf32}, matmul_precision={precision!r}) contradicts itself: torch uses TF32 for "
            "products when the precision is 'high' or 'medium', and not when it is 'highest'. Leave out one of them."
        )
    return options


def changes(options: TorchOptions, now: Mapping[TorchSlot, Any]) -> dict[TorchSlot, Any]:
    """The slots that the options change, with their values, given what is in `now`."""
    found: dict[TorchSlot, Any] = {}
    if options.matmul_precision is not None:
        found.update(_precision_changes(options.matmul_precision, now))
    if options.tf32 is not None:
        if options.matmul_precision is None:
            found.update(_tf32_product_changes(options.tf32, now))
        found.update(_tf32_cudnn_changes(options.tf32, now))
    if options.cudnn_benchmark is not None:
        found["cudnn_benchmark"] = options.cudnn_benchmark
    if options.deterministic is not None:
        found["deterministic"] = (bool(options.deterministic), options.deterministic == "warn")
    if options.threads is not None:
        found["threads"] = found["new_threads"] = options.threads
    return found


def _precision_changes(precision: MatmulPrecision, now: Mapping[TorchSlot, Any]) -> dict[TorchSlot, Any]:
    """The slots for a precision of products. Raises `InvalidOption` if it could not be put back."""
    if now["matmul_precision"] is None:
        raise InvalidOption(
            f"settings(matmul_precision={precision!r}) could not be restored: "
            "torch.backends.cuda.matmul.fp32_precision or torch.backends.mkldnn.matmul.fp32_precision has been set to "
            "something else than torch.set_float32_matmul_precision, which torch then refuses to read. Use one "
            "of the two ways."
        )
    if now["cuda_matmul"] is None:  # a torch that has only the older way
        return {"matmul_precision": precision}
    product, host = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}[precision]
    return {"matmul_precision": precision, "cuda_matmul": product, "mkldnn_matmul": host}


def _tf32_product_changes(tf32: bool, now: Mapping[TorchSlot, Any]) -> dict[TorchSlot, Any]:
    """The slots for TF32 in products, in the way that the program uses already."""
    older, newer = now["matmul_precision"], now["cuda_matmul"]
    if newer is None:
        return {"matmul_precision": _with_tf32(older) if tf32 else "highest"}
    if older is None or (older != "highest") != (newer == "tf32"):
        return {"cuda_matmul": "tf32" if tf32 else "ieee"}
    if tf32:
        return {"matmul_precision": _with_tf32(older), "cuda_matmul": "tf32"}
    found: dict[TorchSlot, Any] = {"matmul_precision": "highest", "cuda_matmul": "ieee"}
    if now["mkldnn_matmul"] not in ("none", "ieee"):
        found["mkldnn_matmul"] = "ieee"  # beside "highest", torch would refuse to read anything else
    return found


def _with_tf32(precision: str | None) -> str:
    """The precision that allows TF32 and changes least."""
    return precision if precision in ("high", "medium") else "high"


def _tf32_cudnn_changes(tf32: bool, now: Mapping[TorchSlot, Any]) -> dict[TorchSlot, Any]:
    """The slots for TF32 in convolutions and recurrent layers."""
    if now["cudnn_conv"] is None:
        return {"cudnn_tf32": tf32}
    if now["cudnn_tf32"] is None:
        own = "tf32" if tf32 else "ieee"
        return {"cudnn_conv": own, "cudnn_rnn": own}
    own = "tf32" if tf32 else "none"  # as torch's own setter of the older way has it
    return {"cudnn_tf32": tf32, "cudnn_conv": own, "cudnn_rnn": own}


# -- blocks


class _Block:
    """One `with` block that has begun: its options and its thread."""

    def __init__(self, options: TorchOptions) -> None:
        self.options = options
        self.thread = threading.get_ident()
        self.thread_name = threading.current_thread().name


@dataclass(eq=False)
class _Entry:
    """One block's hold on one slot."""

    block: _Block
    slot: TorchSlot
    #: The value to restore when it ends.
    found: Any
    value: Any


#: Of this process, as torch's settings are. In the order in which blocks began.
_entries: list[_Entry] = []


def _enter(block: _Block) -> None:
    """Begins a block: notes what is found in the slots, and writes its values. Raises `InvalidOption` for conflicts."""
    options = block.options
    with changing:
        _refuse_conflicts(block)
        if options.tf32 is not None or options.matmul_precision is not None:
            _refuse_inheritance(options)
        # Only what is asked for: reading what new threads get takes a thread.
        given = options.given()
        now = {slot: read(slot) for slot, each in _SLOTS.items() if not given.keys().isdisjoint(each.options)}
        wanted = changes(options, now)
        _entries.extend(_Entry(block, slot, now[slot], value) for slot, value in wanted.items())
        write(wanted)


def _leave(block: _Block) -> None:
    """Ends a block: puts back what it found, or hands it to the block that holds a slot after it.

    A second call does nothing.
    """
    with changing:
        back: dict[TorchSlot, Any] = {}
        mine = [entry for entry in _entries if entry.block is block]
        for entry in mine:
            later = _next_entry(entry)
            if later is None:
                if entry.slot not in OF_A_THREAD or threading.get_ident() == block.thread:
                    back[entry.slot] = entry.found
            else:
                later.found = entry.found
        write(back)
        _entries[:] = [entry for entry in _entries if entry.block is not block]


def _next_entry(entry: _Entry) -> _Entry | None:
    """The first later one that holds the same slot, of the same thread where each has its own."""
    after = _entries[_entries.index(entry) + 1 :]
    for other in after:
        same_thread = other.block.thread == entry.block.thread
        if other.slot == entry.slot and (same_thread or entry.slot not in OF_A_THREAD):
            return other
    return None


def _refuse_conflicts(block: _Block) -> None:
    """Raises `InvalidOption` if another thread's block has set one of the same settings to something else."""
    mine = block.options.given()
    for entry in _entries:
        if entry.block.thread == block.thread:
            continue
        theirs = entry.block.options.given()
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                raise InvalidOption(
                    f"settings({name}={mine[name]!r}) cannot begin: the thread {entry.block.thread_name!r} is in a "
                    f"block with {name}={theirs[name]!r}, and torch has one value for the whole process. Give both "
                    "blocks the same value, or begin one after the other has ended."
                )
        if {"tf32", "matmul_precision"} <= {*mine, *theirs} and not (
            {"tf32", "matmul_precision"} & {*mine} & {*theirs}
        ):
            raise InvalidOption(
                f"settings() cannot begin: the thread {entry.block.thread_name!r} is in a block that sets tf32 or "
                "matmul_precision, and torch has one value of both for the whole process. Use the same one in both, or "
                "begin one block after the other has ended."
            )


def _refuse_inheritance(options: TorchOptions) -> None:
    """Raises `InvalidOption` if precisions are inherited, so that they could not be put back."""
    line = inherits()
    if line is not None:
        given = ", ".join(f"{name}={value!r}" for name, value in options.given().items())
        raise InvalidOption(
            f"settings({given}) could not be restored: with `{line}`, torch does not tell what is inherited from it "
            "and what is set on its own. Change that line instead, or set it to 'none' first."
        )


class TorchSettings:
    """The result of `settings`: a context manager that can be entered again, also inside itself, and a decorator.

    Every entry is a block of its own, on the thread that enters.
    """

    def __init__(self, options: TorchOptions) -> None:
        self._options = options
        self._blocks: list[_Block] = []

    @property
    def costs(self) -> dict[str, str]:
        """For each setting that it changes: what it costs or gives."""
        return costs_of(self._options.given())

    def __str__(self) -> str:
        if not self.costs:
            return "settings() changes nothing"
        return "\n".join(f"{name}={self._options.given()[name]!r}: {sentence}" for name, sentence in self.costs.items())

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._options.given().items())
        return f"settings({given})"

    def __enter__(self) -> TorchSettings:
        block = _Block(self._options)
        self._blocks.append(block)
        try:
            _enter(block)
        except BaseException:  # also an interrupt
            self._blocks.remove(block)
            _leave(block)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Puts the settings back, also after an interrupt.

        Raises `InvalidOption` if another thread began the block and it had set the number of threads.
        """
        block = self._last_of_this_thread()
        try:
            _leave(block)
        except BaseException:  # an interrupt: what has been put back can be put back again
            _leave(block)
            raise
        finally:
            self._blocks.remove(block)
        if block.thread != threading.get_ident() and self._options.threads is not None:
            raise InvalidOption(
                f"a block with {self!r} was begun by the thread {block.thread_name!r} and left by another, which "
                "cannot put back that thread's number of threads. Leave the block in the thread that began it."
            )

    def _last_of_this_thread(self) -> _Block:
        """The block that this thread began last, or the last one of all."""
        here = threading.get_ident()
        own = [block for block in self._blocks if block.thread == here]
        return (own or self._blocks)[-1]

    def __del__(self) -> None:
        # An interrupt may come after `__enter__` has ended and before the block has begun, which then never ends.
        while self._blocks:
            _leave(self._blocks.pop())

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, with these settings while it runs. A generator has them while its own code runs."""
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__qualname__", repr(function))
            raise InvalidOption(
                f"{self!r} cannot decorate {name}, which is asynchronous: other tasks would run with its settings "
                "while it waits. Use a `with` block around the code of it that computes."
            )
        options = self._options
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(_generator_with(options, function))  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            with TorchSettings(options):
                return function(*args, **kwargs)

        return run


def _generator_with(options: TorchOptions, function: Callable[..., Any]) -> Callable[..., Generator[Any, Any, Any]]:
    """A generator function that has the settings while it runs, and not between its values."""

    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        step: Callable[[], Any] = functools.partial(next, generator)
        try:
            while True:
                try:
                    with TorchSettings(options):
                        item = step()
                except StopIteration as end:
                    return end.value
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown into the generator, where it belongs
                    step = functools.partial(generator.throw, error)
                else:
                    step = functools.partial(generator.send, sent)
        finally:
            with TorchSettings(options):
                generator.close()

    return run
