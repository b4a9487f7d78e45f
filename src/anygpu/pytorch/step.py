"""One training step, in the memory there is: `Step`.

`Step` runs the steps and undoes those that fail; `forms` has what is known of batches of one form, `planning` decides
how the next step runs, and `accumulation` computes. The functions at the end check what the user gave, and say why a
step is not possible.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
import torch

from anygpu.base import events
from anygpu.base.events import drawn
from anygpu.base.units import bytes_from
from anygpu.engines.torch.engine import is_out_of_memory
from anygpu.errors import InvalidOption, OutOfMemory, Unsupported, name_of
from anygpu.pytorch import measuring
from anygpu.pytorch.accumulation import Disagreement, Passes, StepCalling
from anygpu.pytorch.batches import bounds, count_rows, form_of, leaves, moved
from anygpu.pytorch.checkpointing import checkpointed, first_overlap, is_compiled, layer_of
from anygpu.pytorch.forms import BatchForm, MakePlanner, PlanningWork
from anygpu.pytorch.gradient_comparison import Comparisons
from anygpu.pytorch.measuring import Laps, StepMeter, laps_on
from anygpu.pytorch.planning import bytes_of, planner_for
from anygpu.pytorch.precision import Casting, precisions_for
from anygpu.pytorch.step_plans import StepPlan, StepPrecision
from anygpu.pytorch.undoing import (
    Buffers,
    Gradients,
    OptimizerBefore,
    RandomState,
    brief,
    forget,
    random_state,
    release,
    set_random_state,
)
from anygpu.receipts.notes import Failure, publish
from anygpu.receipts.receipt import Attempt, Phases, PhaseTimer, Receipt

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step: the loss of the whole batch, the receipt, and what the optimiser did."""

    #: The loss of the whole batch, without a graph.
    loss: torch.Tensor
    receipt: Receipt
    #: Whether the optimiser has made its step: not while batches accumulate, nor when float16 gradients overflowed.
    stepped: bool = True
    #: The norm of all gradients before they were clipped, if they were.
    grad_norm: torch.Tensor | None = None

    def _repr_html_(self) -> str | None:
        return drawn(self)


class _Applied(NamedTuple):
    """The outcome of the optimiser's part of a step; `note` is for the receipt."""

    stepped: bool
    grad_norm: torch.Tensor | None = None
    note: str = ""


class Step:
    """One training step of a module, in the memory there is, with the gradients of the whole batch.

    `step(batch)` moves the batch to the module's device, computes the loss and its gradients, clips them, and makes
    the optimiser's step. A batch that does not fit is cut into micro-batches and layers are checkpointed; how is
    planned ahead, and corrected when memory runs out all the same. A batch is only cut while the gradients of as many
    rows as fit at once are those of their parts; they are compared before the first cut, and again now and then.

    - `loss` is called with the outputs and the targets of a pair; with the outputs and the batch if that is a mapping,
      or if `forward(model, batch)` is given to compute the outputs.
    - `precision` is "float32", "bfloat16", "float16" or "auto", which measures what the device has units for.
    - `micro_batch` is the most rows that go through the module at once, and `checkpoint` names the submodules whose
      activations are computed again; both are found out by themselves ("auto").
    - `clip_norm` is the largest norm of all gradients together.
    - `accumulate` batches make one step of the optimiser, with the mean of their gradients.
    - `memory` is a budget in bytes, or a text such as "4GB"; without one, it is what the device has left.

    It neither wraps the module nor keeps a thread: it may be used in any loop.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Any, Any], torch.Tensor],
        *,
        forward: Callable[[Any, Any], Any] | None = None,
        precision: Literal["auto"] | StepPrecision = "auto",
        micro_batch: int | Literal["auto"] = "auto",
        checkpoint: Sequence[str] | Literal["auto"] = "auto",
        clip_norm: float | None = None,
        accumulate: int = 1,
        memory: int | str | None = None,
        name: str | None = None,
        make_planner: MakePlanner | None = None,
    ) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise InvalidOption(
                f"a Step takes one optimizer of torch, and this is a {type(optimizer).__name__}. For several, make one "
                "with several groups of parameters."
            )
        self.model = model
        self.optimizer = optimizer
        self.plan: StepPlan | None = None
        self._device = _only_device(model)
        self._task = name or f"train {type(getattr(model, '_orig_mod', model)).__name__}"
        self._calling = StepCalling(model, loss, forward)
        self._precisions = precisions_for(precision, model, self._device)
        self._micro_batch = _positive("micro_batch", micro_batch)
        self._checkpoint = _names("checkpoint", checkpoint, model)
        if clip_norm is not None and not clip_norm > 0:
            raise InvalidOption(
                f"clip_norm={clip_norm!r} has to be a positive number: the largest norm of all gradients."
            )
        self._clip_norm = clip_norm
        self._accumulate = _positive("accumulate", accumulate) or 1
        self._memory = _budget(memory)
        self._make_planner = make_planner or planner_for
        self._casting = Casting(model, self._device)
        self._meter = StepMeter(self._device, lambda: bytes_of(model, optimizer))
        self._loss = loss
        self._modules: list[torch.nn.Module] = []
        self._made_of: tuple[Any, ...] = ()
        self._notice_changes()
        #: Batches whose gradients wait for the optimiser's step, and their precision.
        self._pending = 0
        self._pending_precision: StepPrecision | None = None
        self._needs_closure = _needs_closure(optimizer)
        if self._needs_closure and (self._accumulate > 1 or "float16" in self._precisions):
            raise InvalidOption(
                f"{type(optimizer).__name__} computes gradients several times for one step, which neither accumulate= "
                "nor float16 can do. Leave them out, or use another optimizer."
            )

    # -- one step

    def __call__(self, batch: Any) -> StepResult:
        """Runs one step on a batch, as the class says, and returns its loss and receipt.

        If it raises, parameters, buffers, gradients and random states are as before, unless the optimiser had begun to
        change them; the error says so then. Not for several threads at once.
        """
        began = time.perf_counter()
        try:
            return self._step(batch)
        except BaseException as error:
            if events.calls:
                name = self._name_of_device()
                events.calls.tell(Failure(self._task, name, name_of(error), began, time.perf_counter()), None)
            raise

    def _smaller(self, plan: StepPlan, form: BatchForm, batch: Any, rows: int, failure: str) -> StepPlan:
        """The next plan after one that ran out of memory. Raises `OutOfMemory` if there is none."""
        smaller = form.failed(plan, batch, rows)
        if smaller is None:
            raise _nothing_smaller(self._name_of_device(), plan, rows, form.whole, failure)
        return self._held(smaller)

    def _step(self, batch: Any) -> StepResult:
        """Run one step, with smaller plans after each that runs out of memory."""
        timer = PhaseTimer()
        if waited := measuring.take_data_wait():
            timer.waited(waited)
        self._calling.check(batch)
        self._notice_changes()
        with timer.phase("write"):
            batch, sent = moved(batch, self._device)
        tensors = leaves(batch)
        rows = count_rows(tensors) or 1
        before = self._set_aside()
        attempts: list[Attempt] = []
        try:
            with timer.phase("plan"):
                form = self._form(batch, tensors, rows)
                plan = self._held(form.next(batch, rows))
            while True:
                attempted = time.perf_counter()
                self._meter.begin(plan)
                failure: str | None = None
                with timer.phase("run"):
                    laps = laps_on(self._device)
                    try:
                        passes = self._passes(plan, form, laps)
                        loss = self._compute(passes, plan, form, batch, rows)
                        break
                    except Disagreement:
                        form.loss_differs("its values differed from those of parts on a batch")
                    except Exception as error:
                        if not is_out_of_memory(error):
                            raise
                        failure = brief(error)
                        forget(error)
                    # Here the error is gone, and with it what its frames have kept alive.
                    self._undo(before)
                if failure is None:
                    continue
                attempts.append(self._out_of_memory(plan, rows, time.perf_counter() - attempted, failure))
                with timer.phase("plan"):
                    plan = self._smaller(plan, form, batch, rows, failure)
        except BaseException:
            # Nothing of the step is left, whatever has ended it.
            self._undo(before)
            self._gradients.give_back()
            raise
        with timer.phase("run"):
            laps.lap("")
            self._gradients.add_back()
            applied = self._apply(plan, loss, before, lambda: self._again(passes, plan, form, batch, rows, before))
            laps.lap("optimizer")
            parts = laps.seconds()
        peak = self._meter.peak_bytes()
        self._buffers.ran()
        self.plan = plan
        form.ran(plan, rows, time.perf_counter() - attempted, peak)
        receipt = self._receipt(plan, form, rows, timer, attempts, parts, peak, self._meter.why, sent, applied.note)
        publish(receipt)
        return StepResult(loss, receipt, applied.stepped, applied.grad_norm)

    def _out_of_memory(self, plan: StepPlan, rows: int, seconds: float, failure: str) -> Attempt:
        """Empties torch's cache of device memory, and returns the receipt's record of an attempt that filled it.

        `failure` is the first line of torch's error. The error itself must be gone: its frames keep tensors alive.
        """
        release(self._device)
        message = f"there was not enough memory ({_how(plan, rows)}; torch raised {failure})"
        return self._attempt(Phases(run=seconds), OutOfMemory.__name__, message)

    def _compute(self, passes: Passes, plan: StepPlan, form: BatchForm, batch: Any, rows: int) -> torch.Tensor:
        """The loss of the whole batch; its gradients are in the parameters then."""
        with checkpointed(self.model, plan.checkpoint) if plan.checkpoint else nullcontext():
            if plan.micro_batch >= rows:
                return passes.whole(batch)
            return passes.cut(batch, rows, plan.micro_batch, form.combining, plan.precision)

    def _passes(self, plan: StepPlan, form: BatchForm, laps: Laps) -> Passes:
        """The forward and backward passes of a plan: its precision and its loss scaling.

        Losses are divided by the number of batches that accumulate, so that gradients are their mean.
        """
        scaler = self._casting.scaler(plan.precision)
        count = self._accumulate

        def backward(loss: torch.Tensor) -> None:
            if count > 1:
                loss = loss / count
            (loss if scaler is None else scaler.scale(loss)).backward()

        return Passes(
            self._calling,
            backward=backward,
            cast=lambda: self._casting.cast(plan.precision),
            device=self._device,
            laps=laps,
            # A module that the user has cut in spite of what its rows have shown counts each part for itself.
            buffers=None if form.whole else self._buffers,
        )

    def _apply(
        self, plan: StepPlan, loss: torch.Tensor, before: RandomState, again: Callable[[], torch.Tensor]
    ) -> _Applied:
        """Clips, and makes the optimiser's step, unless more batches are to come before.

        `again` computes loss and gradients once more, for optimisers with a closure. Raises `OutOfMemory` if the
        optimiser has too little, after undoing what can be undone.
        """
        self._pending += 1
        if self._pending < self._accumulate:
            self._pending_precision = plan.precision
            return _Applied(False, note=f"batch {self._pending} of {self._accumulate} that accumulate")
        self._pending, self._pending_precision = 0, None
        scaler = self._casting.scaler(plan.precision)
        optimizer = OptimizerBefore(self.optimizer)
        try:
            if self._needs_closure:
                return self._apply_with_closure(loss, again)
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            norm = self._clip()
            if scaler is None:
                return _Applied(True, norm, optimizer.step(self.optimizer.step, self._device))
            note = optimizer.step(lambda: scaler.step(self.optimizer), self._device)
            scale = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() < scale:
                return _Applied(False, norm, "float16 gradients overflowed, and the optimizer made no step")
            return _Applied(True, norm, note)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = brief(error)
            forget(error)
        if scaler is not None:
            scaler.update(scaler.get_scale())  # else it takes the next gradients for those that it has unscaled
        raise self._no_memory_for_optimizer(optimizer, before, failure)

    def _no_memory_for_optimizer(self, optimizer: OptimizerBefore, before: RandomState, failure: str) -> OutOfMemory:
        """Undoes the optimiser's step as far as that can be proved, and returns the error that says what is left."""
        optimizer.undo()
        # The gradients are of no more use: the batch is given again, or everything is loaded.
        self._undo(before)
        count = self._accumulate
        lost = f" The {count} batches that had accumulated have to be given again." if count > 1 else ""
        name = self._name_of_device()
        return OutOfMemory(
            name,
            message=f"{name} has not enough memory for the step of {type(self.optimizer).__name__} (torch raised "
            f"{failure}); {optimizer.sentence()}.{lost} Use an optimizer with less state or a smaller model, or free "
            "memory.",
        )

    def _apply_with_closure(self, loss: torch.Tensor, again: Callable[[], torch.Tensor]) -> _Applied:
        """Makes the step of an optimiser that asks for gradients several times; the first are there."""
        first = True
        norm: torch.Tensor | None = None

        def closure() -> torch.Tensor:
            nonlocal first, norm
            found = loss if first else again()
            first = False
            norm = self._clip()
            return found

        self.optimizer.step(closure)
        return _Applied(True, norm)

    def _again(
        self, passes: Passes, plan: StepPlan, form: BatchForm, batch: Any, rows: int, before: RandomState
    ) -> torch.Tensor:
        """Loss and gradients once more, of other parameters and the same random numbers."""
        self._gradients.drop()
        set_random_state(before, self._device)
        with torch.enable_grad():
            return self._compute(passes, plan, form, batch, rows)

    def _clip(self) -> torch.Tensor | None:
        """Clips the gradients to `clip_norm`, and returns their norm before; `None` if they are not clipped."""
        if self._clip_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(list(self._optimized), self._clip_norm)

    # -- before a step, and after one that broke

    def _set_aside(self) -> RandomState:
        """Takes note of buffers, gradients and random states before a step, and returns the latter."""
        self._buffers.keep()
        self._gradients.set_aside(set() if self._pending else self._optimized.keys())
        return random_state(self._device)

    def _notice_changes(self) -> None:
        """Begins anew if the module, the optimiser's parameters or the loss's settings are not those of the last step.

        A layer that was replaced, a group that the optimiser got, another reduction: what was found out is void.
        """
        if self._made_of == self._parts():
            return
        self._modules = list(self.model.modules())
        self._made_of = self._parts()
        optimized = [each for group in self.optimizer.param_groups for each in group["params"]]
        #: In the optimiser's order, so that a norm is the same in every run.
        self._optimized = dict.fromkeys(optimized)
        self._buffers = Buffers(self.model)
        self._gradients = Gradients(_all_parameters(self.model, self.optimizer, self._loss))
        self._forms: dict[tuple[Any, ...], BatchForm] = {}
        self._comparisons = Comparisons()

    def _parts(self) -> tuple[Any, ...]:
        """Identities that change when a layer, a parameter of the optimiser or a setting of the loss is replaced.

        Only the children of known modules are looked at: `modules()` takes as long as the rest of a step's overhead.
        """
        children = [id(child) for module in self._modules for child in module._modules.values()]
        optimized = [id(each) for group in self.optimizer.param_groups for each in group["params"]]
        return children, optimized, _settings_of(self._loss)

    def _undo(self, before: RandomState) -> None:
        """Drops the gradients of an attempt, and puts buffers and random states back."""
        self._gradients.drop()
        self._buffers.restore()
        set_random_state(before, self._device)

    # -- plans

    def _form(self, batch: Any, tensors: Sequence[torch.Tensor], rows: int) -> BatchForm:
        """What is known of batches of this form; made anew for a batch with more rows than were planned for.

        A form also depends on which modules train and which parameters want gradients.
        """
        trained = [each.requires_grad for each in self._gradients.parameters]
        key = (*[module.training for module in self._modules], *trained, *form_of(tensors, rows))
        form = self._forms.get(key)
        if form is None or rows > form.rows:
            form = self._forms[key] = BatchForm(
                self._calling, self._work(batch, rows), self._make_planner, self._comparisons
            )
        return form

    def _work(self, batch: Any, rows: int) -> PlanningWork:
        """What a planner needs to know of this step, with this batch as the example."""
        calling = self._calling
        return PlanningWork(
            model=self.model,
            optimizer=self.optimizer,
            loss_of=calling.loss_by,
            outputs_of=calling.outputs_by,
            parameters=self._gradients.parameters,
            batch=batch,
            rows=rows,
            device=self._device,
            precisions=self._precisions,
            whole="",
            micro_batch=self._micro_batch,
            checkpoint=self._checkpoint,
            memory=self._memory,
        )

    def _held(self, plan: StepPlan) -> StepPlan:
        """The plan in the precision of gradients that wait for others: they are scaled as their precision needs it."""
        if self._pending and self._pending_precision not in (None, plan.precision):
            return msgspec.structs.replace(plan, precision=self._pending_precision)
        return plan

    # -- what is said of a step

    def _name_of_device(self) -> str:
        """The device as receipts name it, such as "torch:cuda:0"."""
        kind, index = self._device.type, self._device.index
        if kind == "cuda" and torch.version.hip is not None:
            kind = "rocm"
        return f"torch:{kind}" if kind in ("cpu", "mps") else f"torch:{kind}:{index or 0}"

    def _attempt(self, phases: Phases, error: str | None = None, message: str | None = None) -> Attempt:
        return Attempt(device=self._name_of_device(), phases=phases, error=error, message=message)

    def _receipt(
        self,
        plan: StepPlan,
        form: BatchForm,
        rows: int,
        timer: PhaseTimer,
        attempts: Sequence[Attempt],
        parts: dict[str, float],
        peak: int | None,
        why_no_peak: str,
        sent: int,
        note: str,
    ) -> Receipt:
        """The receipt of a step: its plan, its phases and parts, its memory, and its failed attempts."""
        on_card = self._device.type == "cuda"
        is_cut = plan.micro_batch < rows
        notes = [f"the module is on {self._device}", plan.reason, note]
        if is_cut and form.whole:
            notes.append(f"micro_batch= was set, but the gradients are not those of the whole batch: {form.whole}")
        elif is_cut and form.combining.kind == "unknown":
            notes.append(f"each micro-batch goes through twice, for the loss of all: {form.combining.reason}")
        notes.append(form.note)
        unknown = {"kernels": "torch does not count them", "predicted_seconds": "steps are measured, not predicted"}
        if not on_card:
            unknown["device_seconds"] = "a CPU has no clock of its own"
        if peak is None:
            unknown["peak_bytes"] = why_no_peak
        phases = timer.finish()
        return Receipt(
            task=self._task,
            device=self._name_of_device(),
            kind="cpu" if self._device.type == "cpu" else "gpu",
            reason="; ".join(filter(None, notes)),
            phases=phases,
            attempts=(*attempts, self._attempt(phases)),
            device_seconds=sum(parts.values()) if on_card else None,
            bytes_to_device=sent,
            peak_bytes=peak,
            predicted_bytes=plan.predicted_bytes,
            parts=parts,
            how=_how(plan, rows),
            unknown=unknown,
        )

    # -- across runs

    def state_dict(self) -> dict[str, Any]:
        """The scaler, gradients that wait for the optimiser's step, random states, and the plan.

        The module's and the optimiser's own are not in it. It can be read with `torch.load(weights_only=True)`.
        """
        waiting = [each.grad for each in self._gradients.parameters] if self._pending else []
        cpu, card = random_state(self._device)
        return {
            "version": _VERSION,
            "scaler": self._casting.state_dict(),
            "pending": self._pending,
            "pending_precision": self._pending_precision,
            "gradients": [None if each is None else each.detach().clone() for each in waiting],
            "random": {"cpu": cpu, "device": card},
            "plan": None if self.plan is None else msgspec.to_builtins(self.plan),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`. Raises `InvalidOption` for the state of another module."""
        parameters = self._gradients.parameters
        gradients = state.get("gradients", [])
        if state.get("version") != _VERSION or (gradients and len(gradients) != len(parameters)):
            raise InvalidOption(
                "this state is not of a Step of this module: "
                + (
                    f"it has {len(gradients)} gradients for {len(parameters)} parameters."
                    if state.get("version") == _VERSION
                    else f"its version is {state.get('version')!r}, not {_VERSION}."
                )
                + " Load what state_dict() of a Step of the same module returned."
            )
        self._casting.load_state_dict(state["scaler"])
        self._pending, self._pending_precision = state["pending"], state["pending_precision"]
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        card = state["random"]["device"]
        same_kind = card is not None and self._device.type == "cuda"
        set_random_state((state["random"]["cpu"].cpu(), card.cpu() if same_kind else None), self._device)
        self.plan = None if state["plan"] is None else msgspec.convert(state["plan"], StepPlan)


# -- what the user gave


def _only_device(model: torch.nn.Module) -> torch.device:
    """The device of all parameters. Raises `Unsupported` for modules on several devices."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
        raise Unsupported(
            "Step for a module on several devices",
            "torch",
            message=f"a Step does not train a {type(model).__name__}, whose other processes would not repeat a step.",
            instead="Give it the module inside, on one device.",
        )
    found = {each.device for each in (*model.parameters(), *model.buffers())}
    if len(found) > 1 or torch.device("meta") in found:
        names = ", ".join(sorted(map(str, found)))
        raise Unsupported(
            "Step for a module on several devices",
            "torch",
            message=f"the module's parameters are on {names}, and a Step trains on one device.",
            instead="Move the module with model.to(device).",
        )
    return found.pop() if found else torch.device("cpu")


def _positive(name: str, value: int | str) -> int | None:
    """The number of an option, `None` for "auto". Raises `InvalidOption` unless it is a positive integer."""
    if value == "auto" and name != "accumulate":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(
            f"{name}={value!r} has to be a positive number{' or auto' if name != 'accumulate' else ''}."
        )
    return value


def _budget(memory: int | str | None) -> int | None:
    """The bytes of an option; `None` if there is none. Raises `InvalidOption`."""
    found = bytes_from(memory) if isinstance(memory, str) else memory
    if memory is not None and (isinstance(found, bool) or not isinstance(found, int) or found < 1):
        raise InvalidOption(f'memory={memory!r} has to be a positive number of bytes, or a text such as "4GB".')
    return found


def _settings_of(loss: Any) -> tuple[Any, ...]:
    """The settings of a loss module that decide how the losses of parts combine: its reduction, its weights."""
    if not isinstance(loss, torch.nn.Module):
        return ()
    plain = [(name, value) for name, value in vars(loss).items() if isinstance(value, bool | int | float | str | None)]
    return (*plain, *map(id, loss.buffers()))


def _names(name: str, value: Sequence[str] | str, model: torch.nn.Module) -> tuple[str, ...] | None:
    """The names of submodules in an option, checked; `None` for "auto"."""
    if isinstance(value, str):
        if value == "auto":
            return None
        raise InvalidOption(f"{name}={value!r} has to be 'auto' or a sequence of names, such as [{value!r}].")
    if value and is_compiled(model):
        raise InvalidOption(
            f"{name}= names layers of a module that torch.compile made, whose compiler decides what is kept. Leave it "
            "out, or give the Step the module as it was before it was compiled."
        )
    given: Sequence[object] = value
    strange = next((each for each in given if not isinstance(each, str)), None)
    if strange is not None:
        kind = type(strange).__name__
        raise InvalidOption(
            f"{name}= takes names, not objects of type {kind}. Names are those of model.named_modules()."
        )
    missing = [each for each in sorted(set(value)) if not _is_layer(model, each)]
    if missing:
        raise InvalidOption(
            f"{name}= names {', '.join(map(repr, missing))}, which the module does not have. Names are those of "
            "model.named_modules(), or such as 'body.2:5' for the children 2, 3 and 4 of an nn.Sequential 'body'."
        )
    names = tuple(dict.fromkeys(value))
    overlap = first_overlap(names)
    if overlap is not None:
        first, second = overlap
        raise InvalidOption(f"{name}= names {first!r} and {second!r}, which have layers in common. Leave one out.")
    return names


def _is_layer(model: torch.nn.Module, name: str) -> bool:
    """Whether the module has a submodule or segment of that name."""
    try:
        layer_of(model, name)
    except InvalidOption:
        return False
    return True


def _all_parameters(model: torch.nn.Module, optimizer: Any, loss: Any) -> list[torch.nn.Parameter]:
    """The parameters of the module, the loss and the optimiser; some may come twice."""
    found = [*model.parameters(), *(loss.parameters() if isinstance(loss, torch.nn.Module) else ())]
    return [*found, *(each for group in optimizer.param_groups for each in group["params"])]


def _needs_closure(optimizer: Any) -> bool:
    """Whether the optimiser's `step` has to be called with a closure, as that of LBFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


# -- what is said


def _nothing_smaller(device: str, plan: StepPlan, rows: int, whole: str, failure: str) -> OutOfMemory:
    """The error for a step that does not fit, however it is cut."""
    uncut = f" The batch cannot be cut: {whole}." if whole else ""
    return OutOfMemory(
        device,
        message=f"{device} has not enough memory for this step ({_how(plan, rows)}; torch raised {failure}), and "
        f"nothing smaller is left.{uncut} Use smaller inputs or a smaller model, an optimizer with less state, or free "
        "memory.",
    )


def _how(plan: StepPlan, rows: int) -> str:
    """How a step is run, in words: its micro-batches, checkpoints and precision."""
    parts = [f"{rows} rows at once"]
    if plan.micro_batch < rows:
        size = f"{plan.micro_batch} row{'s' if plan.micro_batch > 1 else ''}"
        parts = [f"in {len(bounds(rows, plan.micro_batch))} micro-batches of at most {size}"]
    if plan.checkpoint:
        parts.append(f"{len(plan.checkpoint)} layer{'s' if len(plan.checkpoint) > 1 else ''} recomputed")
    return ", ".join([*parts, plan.precision])
