"""Compares a module's gradients, outputs and buffers for rows at once with those for their parts.

Only equal gradients show that a batch may be cut. Outputs do not show what couples rows in the backward pass alone, and
a few rows do not show what a module does with many. Nothing is left behind: gradients, random numbers, buffers and
attributes are as before, and neither the optimiser nor the scaler of float16 takes part.

`Comparisons` decides when to compare and what to say of it, `BackwardHooks` finds hooks that forbid cutting, and
`Comparer` compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from anygpu.engines.torch.engine import is_out_of_memory
from anygpu.pytorch.accumulation import Combining, Disagreement, Passes, StepCalling
from anygpu.pytorch.batches import all_have_rows, bounds, joined, leaves, mapped, part_of
from anygpu.pytorch.checkpointing import checkpointed
from anygpu.pytorch.measuring import HostLaps
from anygpu.pytorch.rows import brief_of, changed_buffer, name_of_norm, same, undisturbed
from anygpu.pytorch.undoing import Buffers, random_state, without_gradients

# -- when the gradients of whole batches are compared with those of their parts, and what is said of it


class GradientsDiffer(UserWarning):
    """Batches were cut, and a later comparison has shown that their gradients are not those of the whole."""


#: Steps that are cut between two comparisons, at most.
MOST_BETWEEN = 1000


def next_comparison(cut: int) -> int:
    """The number of cut steps after which to compare again: 1, 10, 100, 1,000, 2,000, 3,000 and so on."""
    if cut >= MOST_BETWEEN:
        return (cut // MOST_BETWEEN + 1) * MOST_BETWEEN
    following = 1
    while following <= cut:
        following *= 10
    return following


class GradientAgreement(NamedTuple):
    """A comparison that found no difference, in words, and the number of steps that had been cut by then."""

    what: str
    cut: int


class Comparisons:
    """The comparisons of one module, for batches of all forms.

    Rows that meet once parameters have moved do so in batches of any form, so one difference ends cutting for all.
    """

    def __init__(self) -> None:
        #: Steps that were cut.
        self.cut = 0
        #: Why no batch is cut any more; empty as long as all comparisons agreed.
        self.failed = ""
        self._next = 0
        self._last: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether so many steps were cut since the last comparison that another one is wanted."""
        return self.cut >= self._next

    def agreed(self, what: str) -> GradientAgreement:
        """`what` was compared before the present step, and is the same."""
        self._last = self.cut
        if self.is_due:
            self._next = next_comparison(self.cut)
        return GradientAgreement(what, self.cut)

    def differed(self, why: str) -> None:
        """Ends the cutting of batches, with the reason."""
        self.failed = why

    def ran_cut(self) -> None:
        """Counts a step that was cut."""
        self.cut += 1

    def sentence(self, agreement: GradientAgreement) -> str:
        """A sentence about the last comparison, seen from the present step, which has not been counted."""
        ago = self.cut - agreement.cut
        when = "in this step" if ago == 0 else f"{ago} cut step{'s' if ago > 1 else ''} ago"
        return f"{agreement.what}, compared {when}"

    def not_compared(self) -> str:
        """The steps whose gradients a failed comparison puts in doubt."""
        count = self.cut if self._last is None else self.cut - self._last - 1
        if count <= 0:
            return "The steps that were cut before had been compared"
        return (
            f"{count} step{'s' if count > 1 else ''} cut since the last comparison may have had other gradients than "
            "those of the whole batch"
        )


# -- hooks that run in a backward pass: with micro-batches they run for each, on a part of what they expect


class BackwardHooks:
    """Finds hooks on modules, on their parameters and on some others. It is asked before every step that is cut.

    With micro-batches a hook would run for each of them, on a part of what it expects.
    """

    def __init__(self, modules: Iterable[tuple[str, torch.nn.Module]], others: Iterable[torch.nn.Parameter]) -> None:
        self._modules = list(modules)
        inside = [each for _, module in self._modules for each in module.parameters(recurse=False)]
        self._parameters = list(dict.fromkeys([*inside, *others]))

    def first(self) -> str:
        """The first hook that is found, in words; empty if there is none."""
        if torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks:
            return "a backward hook is registered for every module"
        for path, module in self._modules:
            if module._backward_hooks or module._backward_pre_hooks:
                return f"{_named(type(module).__name__, path)} has a backward hook"
        for parameter in self._parameters:
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"{_named('parameter', self._name_of(parameter))} has a hook for its gradient"
        return ""

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        """Empty for one that no module has."""
        for path, module in self._modules:
            for name, each in module.named_parameters(recurse=False):
                if each is parameter:
                    return f"{path}.{name}".lstrip(".")
        return ""


def _named(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else f"a {kind}"


class HookWatch(TorchFunctionMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """A block that notes whether hooks are registered on tensors: torch does not say which tensors have some."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Passes every call on, and notes those that register a hook."""
        self.found = self.found or func in _REGISTER
        return func(*args, **(kwargs or {}))


_REGISTER = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


class _Bound(NamedTuple):
    """How far a gradient may be off, of its norm, or of `least` of the norm of all if that is more."""

    far: float
    least: float


_EXACT = _Bound(1e-6, 1e-3)
#: Kernels for other numbers of rows add up in another order, which is a hundredth of this.
_SINGLE = _Bound(5e-4, 1e-3)
#: Where torch may compute products of float32 with fewer bits.
_REDUCED = _Bound(2e-2, 1e-2)
#: Gradients of so few bits are rounded after each micro-batch.
_HALF = _Bound(1e-1, 1e-1)
_BOUNDS = {
    torch.float64: _EXACT,
    torch.complex128: _EXACT,
    torch.bfloat16: _HALF,
    torch.float16: _HALF,
}

LOSS_DIFFERS = "the loss of parts has another value than that of all rows"
HOOKED = "the module registers hooks on tensors, which run for each micro-batch"


class Compared(NamedTuple):
    """Why the two are not the same, or nothing was shown; both empty if they are the same."""

    differs: str = ""
    unclear: str = ""
    #: Whether parts raised an error, and the whole did not.
    raised: bool = False


class Comparer:
    """Compares for one module. It is called as a batch's step calls it, in the types that its parameters have.

    It first runs without fixed random numbers; a module that draws some is compared with fixed ones from then on.
    """

    def __init__(self, calling: StepCalling, parameters: Sequence[torch.nn.Parameter], device: torch.device) -> None:
        self._calling = calling
        self._model = calling.model
        self._parameters = parameters
        self._device = device
        #: Whether a forward pass draws random numbers: then fixed ones take their place, which takes more time.
        self._draws = False

    def gradients(
        self, batch: Any, rows: int, size: int, combining: Combining, checkpoint: tuple[str, ...] = ()
    ) -> Compared:
        """Compares the gradients of a batch of `rows` with those of its parts of `size` rows.

        `checkpoint` names layers to compute again, so that more rows fit. An error of the whole shows nothing; one of
        parts alone is a difference. Where memory runs out, that error is raised.
        """
        if not self._draws:
            found = self._gradients(batch, rows, size, combining, checkpoint, steady=False)
            if found is not None:
                return found
            self._draws = True
        found = self._gradients(batch, rows, size, combining, checkpoint, steady=True)
        assert found is not None
        return found

    def _gradients(
        self, batch: Any, rows: int, size: int, combining: Combining, checkpoint: tuple[str, ...], *, steady: bool
    ) -> Compared | None:
        """`None` if random numbers were drawn that are not the same for the whole and for its parts."""
        # Neither the gradients of inputs nor what computed them take part.
        batch = mapped(batch, lambda leaf: leaf.detach().requires_grad_(leaf.requires_grad))
        with (
            undisturbed(self._model, self._device, steady=steady, grad=True) as buffers,
            without_gradients(self._parameters),
            checkpointed(self._model, checkpoint) if checkpoint else nullcontext(),
        ):
            passes = self._passes(buffers)
            before = random_state(self._device)
            hooks = HookWatch()
            try:
                with hooks:
                    passes.whole(batch)
            except Exception as error:
                if is_out_of_memory(error):
                    raise  # that says nothing of the module
                return Compared(unclear=f"{rows} rows at once cannot be computed: {brief_of(error)}")
            if hooks.found:
                return Compared(HOOKED)
            if not steady and not _same_state(random_state(self._device), before):
                return None
            norms = _norms(self._parameters)
            if not bool(torch.isfinite(norms).all()) or not bool(norms.any()):
                return Compared(unclear=f"gradients of {rows} rows were all zero, or not finite")
            changed = buffers.now()
            # Those of parts are added to the negative of these, which takes no memory for both.
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.neg_()
            buffers.restore()
            try:
                passes.cut(batch, rows, size, combining, "float32")
            except Disagreement:
                return Compared(LOSS_DIFFERS)
            except Exception as error:
                if is_out_of_memory(error):
                    raise  # that says nothing of the module
                return Compared(f"parts of {size} rows cannot be computed ({brief_of(error)})", raised=True)
            what = self._first_far(norms, rows, size) or changed_buffer(buffers, changed, buffers.now())
            return Compared(what and (name_of_norm(self._model) or what))

    def _passes(self, buffers: Buffers) -> Passes:
        """Passes of the module in its own types, without autocast or scaling."""
        return Passes(
            self._calling,
            backward=torch.Tensor.backward,
            cast=nullcontext,
            device=self._device,
            laps=HostLaps(),
            buffers=buffers,
        )

    def _first_far(self, norms: torch.Tensor, rows: int, size: int) -> str:
        """The parameter whose gradient is off by most, if that is more than rounding explains."""
        off = _norms(self._parameters)
        limits = [_bound_of(each, self._device) for each in self._parameters]
        least = norms.norm() * norms.new_tensor([each.least for each in limits])
        far = off / torch.maximum(norms, least)
        ratios = far / far.new_tensor([each.far for each in limits])
        worst = int(torch.nan_to_num(ratios, nan=torch.inf).argmax())
        if float(ratios[worst]) <= 1.0:
            return ""
        return (
            f"the gradient of {self._name_of(self._parameters[worst])} from parts of {size} rows differs "
            f"by {float(far[worst]):.2g} of its norm from that of {rows} rows at once"
        )

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        """The name of a parameter for a sentence."""
        found = next((name for name, each in self._model.named_parameters() if each is parameter), None)
        return "a parameter outside the module" if found is None else repr(found)

    def outputs(self, batch: Any, rows: int, size: int, combining: Combining) -> Compared:
        """Compare outputs and buffers after `rows` rows at once with those of parts, for want of memory for gradients.

        Where memory runs out, that error is raised.
        """
        with undisturbed(self._model, self._device) as buffers:
            try:
                together = self._calling.forward(batch)
                changed = buffers.now()
                parts = []
                for begin, end in bounds(rows, size):
                    buffers.restore()
                    parts.append(self._calling.forward(part_of(batch, rows, begin, end)))
                after = buffers.now()
                if all_have_rows(together, rows):
                    is_same = all(map(same, leaves(joined(parts)), leaves(together)))
                else:
                    is_same = self._same_losses(together, parts, batch, rows, size, combining)
            except Exception as error:
                if is_out_of_memory(error):
                    raise  # that says nothing of the module
                return Compared(unclear=f"outputs of {rows} rows cannot be computed: {brief_of(error)}")
            what = "" if is_same else f"outputs of {rows} rows at once are not those of parts of {size} rows"
            what = what or changed_buffer(buffers, changed, after)
            return Compared(what and (name_of_norm(self._model) or what))

    def _same_losses(
        self, together: Any, parts: Sequence[Any], batch: Any, rows: int, size: int, combining: Combining
    ) -> bool:
        """Whether the losses of parts make that of the whole, for outputs that have no rows."""
        whole = self._calling.loss_of(together, batch)
        found = torch.zeros_like(whole)
        for outputs, (begin, end) in zip(parts, bounds(rows, size), strict=True):
            loss = self._calling.loss_of(outputs, part_of(batch, rows, begin, end))
            found += loss * ((end - begin) / rows) if combining.kind == "mean" else loss
        return same(found, whole)


def _norms(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """The norms of their gradients; 0 where there is none."""
    zero = torch.zeros((), dtype=torch.float64)
    found = [zero if each.grad is None else _norm_of(each.grad) for each in parameters]
    return torch.stack([each.to("cpu", torch.float64) for each in found]) if found else zero.reshape(1)


def _norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """The norm of a gradient, dense or sparse; those of half types are added up in float32."""
    values = gradient.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    return torch.linalg.vector_norm(values, dtype=torch.float32 if values.dtype in _HALVES else None)


_HALVES = (torch.bfloat16, torch.float16)


def _bound_of(parameter: torch.Tensor, device: torch.device) -> _Bound:
    """How far a parameter's gradient may be off, by its type and by whether products may have fewer bits."""
    found = _BOUNDS.get(parameter.dtype, _SINGLE)
    is_reduced = device.type == "cuda" or torch.get_float32_matmul_precision() != "highest"
    return _REDUCED if found is _SINGLE and is_reduced else found


def _same_state(one: Any, other: Any) -> bool:
    """Whether two random states are equal."""
    return all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(one, other, strict=True))
