"""Whether a module treats the rows of a batch independently, shown by values: only then may a batch be cut.

A few rows go through the module together, in smaller parts, and beside other rows. Their outputs have to be the same.
Random numbers are replaced by fixed ones meanwhile, and buffers and random states are left as they were.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._python_dispatch import TorchDispatchMode

from anygpu.engines.torch.engine import is_out_of_memory
from anygpu.errors import text_of
from anygpu.pytorch.batches import all_have_rows, leaves, mapped, part_of, rows_at
from anygpu.pytorch.checkpointing import is_compiled
from anygpu.pytorch.undoing import (
    Buffers,
    host_random_state,
    random_state,
    set_host_random_state,
    set_random_state,
)

#: Rows that are looked at, and the parts they are cut into.
ROWS, PARTS = 4, (2, 1, 1)
#: Tolerances relative to the largest output: kernels for other shapes add up in another order.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}

_ATEN = torch.ops.aten


class SteadyRandom(TorchDispatchMode):
    """Random numbers become fixed ones of the same kind, so that what is left depends on the inputs alone.

    Dropout keeps everything, noise is its own mean. An order stays one: what mixes rows by it is still seen to.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation with random numbers that do not depend on the number of rows."""
        if _draws_nothing(func):
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        if func is _ATEN.native_dropout.default:
            return func(args[0], 0.0, False)
        args, kwargs = _without_dropout(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if func in _EXPECTED:
            return args[0].clone()
        made = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "randperm":
            return made.copy_(torch.arange(made.numel(), device=made.device).flip(0))
        if func is _ATEN.bernoulli_.float:
            # What is kept is divided by the probability to be kept: this makes dropout the identity.
            made.fill_(args[1] if len(args) > 1 else kwargs.get("p", 0.5))
        elif name in _FIXED:
            made.fill_(_FIXED[name])
        # All others stay random, so that whatever depends on them is seen to differ.
        return made


#: The stand-in for a random number, by the operation that draws it from no tensor.
_FIXED = {
    **dict.fromkeys(("exponential_", "geometric_", "log_normal_"), 1),
    **dict.fromkeys(("uniform_", "rand", "rand_like"), 0.5),
    **dict.fromkeys(("normal_", "randn", "randn_like", "cauchy_", "randint", "randint_like", "random_"), 0),
}
#: Those that draw around what their first argument says: it stands for them.
_EXPECTED = {_ATEN.bernoulli.default, _ATEN.poisson.default, _ATEN.normal.Tensor_float, _ATEN.normal.Tensor_Tensor}


@functools.cache  # asked for every operation of a forward and a backward pass
def _draws_nothing(func: Any) -> bool:
    """Whether an operation of torch neither draws random numbers nor has an argument for dropout."""
    drops = func is _ATEN.native_dropout.default or any(_is_dropout(each) for each in func._schema.arguments)
    return not drops and torch.Tag.nondeterministic_seeded not in func.tags


def _is_dropout(argument: Any) -> bool:
    """Whether an argument of an operation is the probability of dropout."""
    return argument.name in ("dropout_p", "dropout") and isinstance(argument.type, torch.FloatType)


def _without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Attention and recurrent layers drop values within one operation, as much as an argument of it says."""
    given = list(args)
    for place, argument in enumerate(func._schema.arguments):
        if _is_dropout(argument):
            if place < len(given):
                given[place] = 0.0
            elif argument.name in kwargs:
                kwargs[argument.name] = 0.0
    return tuple(given), kwargs


class Shown(NamedTuple):
    """The result of trying a module on a few rows."""

    #: Why a batch may not be cut; empty if it may.
    whole: str
    #: The few rows, and the outputs of all of them together; `None` if they could not be had.
    batch: Any = None
    outputs: Any = None
    #: Whether each of the outputs has rows.
    have_rows: bool = False


def look_at_rows(
    model: torch.nn.Module,
    forward: Callable[[Any], Any],
    batch: Any,
    rows: int,
    device: torch.device,
    *,
    most: int = ROWS,
) -> Shown:
    """Looks at `most` rows of `batch`, which has `rows`. `forward` gives the module's outputs for a batch.

    The rows are computed together, in parts and beside copies of the first; outputs and buffers have to agree. An error
    of the module is an answer (`Shown.whole`); that memory runs out is raised, because it says nothing of the module.
    """
    if rows < 2:
        return Shown("a batch of one row cannot be cut")
    count = min(rows, most)
    few = distinct(rows_at(batch, rows, [place * (rows - 1) // (count - 1) for place in range(count)]), count)
    if few is None:
        return Shown("the rows of the first batch are alike, and nothing can be seen by them")
    with undisturbed(model, device) as buffers:

        def outputs_of(part: Any) -> tuple[Any, list[torch.Tensor]]:
            buffers.restore()
            return forward(part), buffers.now()

        try:
            together, changed = outputs_of(few)
        except Exception as error:
            if is_out_of_memory(error):
                raise  # that says nothing of the module
            return Shown(f"a few rows of the batch cannot be computed alone ({brief_of(error)})")
        parts = PARTS if count == ROWS else (1,) * count
        begins = [sum(parts[:place]) for place in range(len(parts))]
        try:
            apart = [outputs_of(part_of(few, count, begin, begin + n)) for begin, n in zip(begins, parts, strict=True)]
        except Exception as error:
            if is_out_of_memory(error):
                raise  # that says nothing of the module
            return Shown(
                name_of_norm(model) or f"the module does not take fewer rows ({brief_of(error)})", few, together
            )
        why = changed_buffer(buffers, changed, *(after for _, after in apart))
        if why:
            return Shown(name_of_norm(model) or why, few, together)
        have_rows = all_have_rows(together, count)
        if not have_rows:
            # A loss, perhaps: whether that may be cut is seen by the losses of parts.
            return Shown("", few, together)
        for (outputs, _), begin, n in zip(apart, begins, parts, strict=True):
            if not _same_rows(outputs, part_of(together, count, begin, begin + n), n):
                why = f"{n} of {count} rows have other outputs without the rest, so rows depend on each other"
                return Shown(name_of_norm(model) or why, few, together)
        beside = outputs_of(rows_at(few, count, [0] * count))[0]
        if not _same_rows(part_of(beside, count, 0, 1), part_of(together, count, 0, 1), 1):
            why = "a row's outputs change with the other rows, so rows depend on each other"
            return Shown(name_of_norm(model) or why, few, together)
        return Shown("", few, together, have_rows=True)


class undisturbed:  # noqa: N801 - a context manager, as functions are
    """A block that calls a module and leaves no trace: random numbers, buffers and attributes are as before.

    Gradients are not computed, unless `grad` says so; then the block has to take care of them. With `steady`, random
    numbers are replaced by fixed ones (`SteadyRandom`). Compiled modules run uncompiled inside, and warnings are
    silent.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, *, steady: bool = True, grad: bool = False
    ) -> None:
        self._device = device
        self._steady = steady
        self._grad = grad
        self._model = model
        self._buffers = Buffers(model)
        self._modes: list[Any] = []

    def __enter__(self) -> Buffers:
        """Keep the random states, buffers and attributes of the module, to put them back at the end."""
        self._random = random_state(self._device)
        self._host_random = host_random_state()
        self._attributes = [
            (vars(module), dict(vars(module))) for module in self._model.modules() if not _is_lazy(module)
        ]
        self._buffers.keep()
        self._modes = [torch.enable_grad() if self._grad else torch.no_grad(), warnings.catch_warnings()]
        if any(map(_runs_compiled, self._model.modules())):
            # It would be compiled anew, for numbers of rows and modes that do not come again.
            self._modes.append(torch.compiler.set_stance("force_eager"))
        if self._steady:
            self._modes.append(SteadyRandom())
        for mode in self._modes:
            mode.__enter__()
        # What a few rows are warned about, such as a deviation of one value, says nothing about the user's batches.
        warnings.simplefilter("ignore")
        return self._buffers

    def __exit__(self, *raised: object) -> None:
        """Leaves the modes, and puts attributes, buffers and random states back; attributes that are new stay."""
        for mode in reversed(self._modes):
            mode.__exit__(*raised)
        for attributes, before in self._attributes:
            # A count, or what a layer notes of its last call.
            attributes.update({name: value for name, value in before.items() if name in attributes})
        self._buffers.restore()
        set_random_state(self._random, self._device)
        set_host_random_state(self._host_random)


def distinct(few: Any, count: int) -> Any:
    """The rows, changed a little where all of them are alike; `None` if they have no floats that could be.

    Rows that are alike would show nothing: an output that mixes them is the same as one that does not.
    """
    found = [leaf for leaf in leaves(few) if leaf.dim() and leaf.size(0) == count]
    if any(not torch.equal(leaf[:1].expand_as(leaf), leaf) for leaf in found):
        return few
    if not any(leaf.is_floating_point() for leaf in found):
        return None

    def changed(leaf: torch.Tensor) -> torch.Tensor:
        if not (leaf.is_floating_point() and leaf.dim() and leaf.size(0) == count):
            return leaf
        # Not the same for each place in a row: norms would take that out again.
        waves = torch.sin(torch.arange(leaf.numel(), device=leaf.device, dtype=torch.float32)).reshape(leaf.shape)
        return leaf + (0.5 * (leaf.abs().amax().clamp(min=1e-3)) * waves).to(leaf.dtype)

    return mapped(few, changed)


def _same_rows(outputs: Any, expected: Any, rows: int) -> bool:
    """Whether outputs have so many rows, and the expected values up to rounding."""
    found, wanted = leaves(outputs), leaves(expected)
    return len(found) == len(wanted) and all_have_rows(outputs, rows) and all(map(same, found, wanted))


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors are equal but for the order of additions.

    Shape and type have to be the same. Floats may differ by a tolerance of their type, relative to the largest finite
    value; NaN equals NaN.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not (found.is_floating_point() or found.is_complex()):
        return bool(torch.equal(found, wanted))
    tolerance = _TOLERANCE.get(found.dtype, 1e-4)
    finite = wanted[torch.isfinite(wanted)]
    size = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(found, wanted, rtol=0.0, atol=tolerance * size + math.ulp(0.0), equal_nan=True))


def changed_buffer(buffers: Buffers, wanted: Sequence[torch.Tensor], *found: Sequence[torch.Tensor]) -> str:
    """A sentence about the first buffer that parts leave with another value than the whole; empty if there is none."""
    for name, one, *others in zip(buffers.names(), wanted, *found, strict=True):
        if not all(same(other, one) for other in others):
            return f"the buffer {name} is computed from all rows of a batch"
    return ""


def name_of_norm(model: torch.nn.Module) -> str:
    """A sentence that names the first batch norm which takes its statistics over all rows; empty if there is none.

    It is the usual reason why a batch may not be cut.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            return f"{type(module).__name__} {name!r} takes its statistics over all rows of a batch while it trains"
    return ""


def _runs_compiled(module: torch.nn.Module) -> bool:
    """Whether the module was compiled by `torch.compile`, or by its own `compile` method."""
    return is_compiled(module) or module._compiled_call_impl is not None


def _is_lazy(module: torch.nn.Module) -> bool:
    """Whether the first call makes its parameters, and changes its attributes for good."""
    return isinstance(module, LazyModuleMixin)


def brief_of(error: BaseException) -> str:
    """The type of an error and the beginning of its first line."""
    lines = text_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
