"""How much memory a step of training will take, found out with tensors that have shapes and no data.

The module runs forward and backward on copies that are fakes, while living storages are counted; so does the optimiser.
What torch's kernels take beside their results is added where it is known (`scratch`). Nothing is allocated on the
device, and the module is not touched.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from anygpu.errors import AnyGPUError, InvalidOption, name_of, text_of
from anygpu.pytorch.batches import count_rows, leaves, mapped
from anygpu.pytorch.checkpointing import candidates, checkpointed, is_compiled, layer_of
from anygpu.pytorch.live_bytes import LiveBytes
from anygpu.pytorch.precision import autocast
from anygpu.pytorch.step_plans import PRECISIONS, Footprint, LayerCost, StepPrecision

# -- copies of modules, optimisers and batches that have shapes and no data. The originals are not touched


def fake_module(mode: Any, model: torch.nn.Module) -> tuple[torch.nn.Module, dict[int, torch.Tensor]]:
    """A copy whose tensors are fakes, and the fakes by the `id` of the tensor that each stands for."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper computes what the module inside does
    fakes: dict[int, torch.Tensor] = {}
    for tensor in _tensors(model):
        if id(tensor) not in fakes:
            fake = mode.from_tensor(tensor.detach() if tensor.grad_fn is not None else tensor)
            if fake.is_leaf:
                fake.grad = None
            fakes[id(tensor)] = fake
    memo: dict[int, Any] = dict(fakes)
    return copy.deepcopy(model, memo), fakes


def _tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors that are attributes, or in lists and dictionaries that are."""
    for module in model.modules():
        for value in vars(module).values():
            yield from _inside(value)


def _inside(value: object) -> Iterator[torch.Tensor]:
    """The tensors of a value, or directly inside of a list, tuple or dictionary."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (one for one in value if isinstance(one, torch.Tensor))
    elif isinstance(value, dict):
        yield from (one for one in value.values() if isinstance(one, torch.Tensor))


def fake_batch(mode: Any, batch: Any, rows: int) -> Any:
    """The batch with `rows` rows instead of its own."""
    usual = count_rows(leaves(batch))
    if usual is None:
        raise ValueError("the batch has no tensor with rows")

    def fake(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.dim() == 0 or leaf.shape[0] != usual:
            return mode.from_tensor(leaf.detach())
        with mode:
            return torch.empty_strided(
                (rows, *leaf.shape[1:]),
                leaf.stride(),
                dtype=leaf.dtype,
                device=leaf.device,
                requires_grad=leaf.requires_grad,
            )

    return mapped(batch, fake)


def fake_optimizer(
    mode: Any, optimizer: torch.optim.Optimizer, fakes: dict[int, torch.Tensor]
) -> torch.optim.Optimizer:
    """A copy that steps the fakes, and none of the hooks that others have put on the original."""

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            # A count of steps is read by the optimiser, so that its value must be known: torch keeps it with the fake.
            known = value.item() if value.dim() == 0 and value.device.type == "cpu" else None
            with mode:
                fakes[id(value)] = (
                    mode.from_tensor(value.detach()) if known is None else torch.tensor(known, dtype=value.dtype)
                )
        return fakes[id(value)]

    made = object.__new__(type(optimizer))
    made.__dict__.update({name: copy.copy(value) for name, value in vars(optimizer).items() if name not in _ITS_OWN})
    for name in _HOOKS:
        if name in made.__dict__:
            setattr(made, name, {})
    made.param_groups = [
        {key: [fake(one) for one in value] if key == "params" else fake(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    made.state.clear()
    for parameter, state in optimizer.state.items():
        made.state[fake(parameter)] = {key: fake(value) for key, value in state.items()}
    return made


#: What is made anew for the copy, or would lead back to the original: a schedule of learning rates wraps `step`.
_ITS_OWN = frozenset({"param_groups", "step"})
_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)


LossOf = Callable[[torch.nn.Module, Any], torch.Tensor]

#: Guesses of a processor's speed, for layers that nobody has timed: only their ratios matter.
_FLOPS_A_SECOND, _BYTES_A_SECOND = 5e10, 5e9
#: What an optimiser keeps for each parameter, as a multiple of it, when its step cannot run on fakes.
_CAUTIOUS_STATE = 2


class CannotPredict(AnyGPUError):
    """A module's memory cannot be predicted, as it does not run without data. It is found out by running it."""

    reason: str

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the memory of this step cannot be predicted: {reason}. It is measured on real steps instead, from small "
            "micro-batches upwards; nothing has to be done."
        )


def predict(
    model: torch.nn.Module,
    loss_of: LossOf,
    batch: Any,
    *,
    rows: int,
    checkpoint: Sequence[str] = (),
    precision: StepPrecision = "float32",
    optimizer: torch.optim.Optimizer | None = None,
    accumulate: bool = True,
) -> Footprint:
    """The memory of a forward and backward pass over `rows` rows of `batch`, and of the optimiser's step.

    `loss_of(model, batch)` is the forward pass and the loss. With `accumulate` the gradients of an earlier micro-batch
    are there already, as from the second on; without, the pass is the only one of its step. The batch itself is not
    counted: it is there before the step. Raises `CannotPredict` for modules that need data to run, such as those that
    branch on values.
    """
    if rows < 1:
        raise InvalidOption(f"a prediction needs at least one row, not {rows}")
    if precision not in PRECISIONS:
        raise InvalidOption(f"precision is one of {', '.join(PRECISIONS)}, not {precision!r}")
    with _without_data():
        return _predicted(model, loss_of, batch, rows, tuple(checkpoint), precision, optimizer, accumulate)


@contextlib.contextmanager
def _without_data() -> Iterator[None]:
    """A block that runs a module on fakes. Raises `CannotPredict` for whatever that raises, but for `InvalidOption`.

    Random numbers are as before afterwards.
    """
    random_state = torch.get_rng_state()
    # Where cycles of the user's are collected in the middle, what dies there would be missed or counted at random.
    with _collector_paused():
        try:
            yield
        except InvalidOption:
            raise
        except Exception as error:  # the user's code, and torch's own on fakes, raise what they like
            first = (text_of(error).strip().splitlines() or [""])[0]
            raise CannotPredict(f"{name_of(error)} without data ({first})") from error
        finally:
            torch.set_rng_state(random_state)


def _drop_untouched(trained: Sequence[torch.nn.Parameter], versions: Sequence[int]) -> int:
    """Drop the gradients that no pass has written since these versions; returns their bytes."""
    dropped = 0
    for parameter, version in zip(trained, versions, strict=False):
        if parameter.grad is not None and parameter.grad._version == version:
            dropped += parameter.grad.untyped_storage().nbytes()
            parameter.grad = None
    return dropped


def _predicted(
    model: torch.nn.Module,
    loss_of: LossOf,
    batch: Any,
    rows: int,
    checkpoint: tuple[str, ...],
    precision: StepPrecision,
    optimizer: torch.optim.Optimizer | None,
    accumulate: bool,
) -> Footprint:
    """Run a step with fake tensors, which have shapes and no memory, and count the bytes that are alive."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copied, fakes = fake_module(mode, model)
    inputs = fake_batch(mode, batch, rows)
    live = LiveBytes()
    for fake in fakes.values():
        live.add(fake)
    module_bytes = live.now
    device = next((one.device.type for one in copied.parameters()), "cpu")
    for leaf in leaves(inputs):
        live.add(leaf)
    batch_bytes = live.now - module_bytes
    trained = [one for one in copied.parameters() if one.requires_grad]
    layers = _Layers(live)
    with torch.enable_grad(), mode:
        if accumulate:
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
                live.add(parameter.grad)
        versions = [parameter.grad._version for parameter in trained] if accumulate else []
        live.peak = live.now
        with (
            live,
            layers.watched(copied, () if is_compiled(model) else candidates(copied)),
            checkpointed(copied, checkpoint, preserve_random_state=False),
        ):
            with autocast(device, precision):
                loss = loss_of(copied, inputs)
            layers.finished()
            forward_flops = live.flops
            live.is_backward = True
            loss.backward()
            live.is_backward = False
            del loss
        peak = live.peak - _drop_untouched(trained, versions)
        gradient_bytes = sum(one.grad.untyped_storage().nbytes() for one in trained if one.grad is not None)
        operations = live.operations
        state_bytes = 0
        if optimizer is not None:
            state_bytes, step_peak = _stepped(mode, optimizer, fakes, live)
            # What it keeps is there in the passes of the next step.
            peak = max(peak + state_bytes, step_peak)
    return Footprint(
        rows=rows,
        peak_bytes=peak - batch_bytes,
        fixed_bytes=module_bytes + gradient_bytes + state_bytes,
        layers=layers.costs(),
        flops=forward_flops,
        operations=operations,
    )


def predict_outputs(
    model: torch.nn.Module, outputs_of: Callable[[torch.nn.Module, Any], Any], batch: Any, rows: int
) -> int:
    """Bytes beside the module's own for the outputs of `rows` rows at once, without gradients, and for a second copy.

    `outputs_of(model, batch)` is the forward pass. Raises `CannotPredict` as `predict` does.
    """
    with _without_data():
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        copied, _ = fake_module(mode, model)
        inputs = fake_batch(mode, batch, rows)
        live = LiveBytes()
        for one in (*copied.parameters(), *copied.buffers(), *leaves(inputs)):
            live.add(one)
        before = live.peak = live.now
        with torch.no_grad(), mode, live:
            outputs = outputs_of(copied, inputs)
        needed: int = live.peak - before + sum(leaf.nbytes for leaf in leaves(outputs))
        return needed


def _stepped(
    mode: Any, optimizer: torch.optim.Optimizer, fakes: dict[int, torch.Tensor], live: LiveBytes
) -> tuple[int, int]:
    """Bytes that the optimiser keeps, and the peak of its step. The gradients are there."""
    before = live.now
    parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
    gradients = [
        fake.grad for key, fake in fakes.items() if key in parameters and fake.is_leaf and fake.grad is not None
    ]
    kept, largest = _state_bytes(optimizer), max((one.nbytes for one in gradients), default=0)
    # A wrapper around another optimiser would step the real one.
    wrapped = any(isinstance(value, torch.optim.Optimizer) for value in vars(optimizer).values())
    if not wrapped:
        with contextlib.suppress(Exception):  # it reads values: what it keeps is guessed below
            copied = fake_optimizer(mode, optimizer, fakes)
            for state in copied.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        live.add(value)
            live.peak = live.now
            with live:
                copied.step()
            return live.now - before, live.peak
    kept = kept or _CAUTIOUS_STATE * sum(one.nbytes for one in gradients)
    return kept, before + kept + 2 * largest


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the tensors in an optimiser's state."""
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


class _Layer(NamedTuple):
    freed_bytes: int
    flops: int
    made_bytes: int


class _Layers:
    """The bytes that each layer keeps after its forward pass: living storages that it made, without its results."""

    def __init__(self, live: LiveBytes) -> None:
        self._live = live
        self._found: dict[str, _Layer] = {}
        self._is_forward = True

    @contextlib.contextmanager
    def watched(self, model: torch.nn.Module, names: Sequence[str]) -> Iterator[None]:
        """The hooks stay on `model`, which is a copy of our own."""
        for name in names:
            modules = layer_of(model, name).modules
            modules[0].register_forward_pre_hook(lambda *_, name=name: self._begins(name))
            modules[-1].register_forward_hook(lambda _module, _inputs, result, name=name: self._ends(name, result))
        yield
        self._live.owner = None

    def _begins(self, name: str) -> None:
        if self._is_forward:
            self._live.owner = name

    def _ends(self, name: str, result: Any) -> None:
        """A layer has run forward: notes the bytes that it keeps beside its result, and its work."""
        if not self._is_forward:
            return
        flops, made = self._live.work.get(name, (0, 0))
        self._found[name] = _Layer(self._live.owned(name, without=leaves(result)), flops, made)
        self._live.owner = None

    def finished(self) -> None:
        """The forward pass has ended. What layers are called for afterwards is computed again."""
        self._is_forward = False

    def costs(self) -> tuple[LayerCost, ...]:
        """The cost of each layer that keeps something.

        Seconds are estimated from its operations and the bytes that it made.
        """
        return tuple(
            LayerCost(
                name=name,
                freed_bytes=layer.freed_bytes,
                again_bytes=layer.freed_bytes,
                seconds=layer.flops / _FLOPS_A_SECOND + layer.made_bytes / _BYTES_A_SECOND,
            )
            for name, layer in self._found.items()
            if layer.freed_bytes
        )


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector, which would make tensors die at other times than without it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
