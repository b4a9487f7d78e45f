"""What is known of a training step, as plain values: how it is run, and what it takes."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a step runs."""

    precision: Precision
    #: Rows of a batch that go through the module at once.
    micro_batch: int
    #: Submodules, by name, whose activations are computed again in the backward pass instead of being kept.
    checkpoint: tuple[str, ...] = ()
    #: The peak of memory that is predicted for it, parameters and optimiser included; `None` if nobody predicted it.
    predicted_bytes: int | None = None
    #: One sentence: why so.
    reason: str


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of a batch may go through a module at once, to be compared with their parts."""

    #: With gradients: how many to begin with, and the most that may fit if that does; equal where they are predicted.
    rows: int
    most_rows: int
    #: To be checkpointed for that.
    checkpoint: tuple[str, ...] = ()
    #: Without gradients, the most that may fit.
    outputs: int


class LayerCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a submodule keeps for its backward pass, and what computing that again would cost."""

    #: As in `named_modules`.
    name: str
    #: Bytes that are freed for the time between its forward and its backward pass when it is checkpointed.
    freed_bytes: int
    #: Bytes that are back while its backward pass runs.
    again_bytes: int
    #: Of one forward pass; an estimate from its operations until it was measured.
    seconds: float


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one forward and backward pass over `rows` rows, and of the optimiser's step."""

    rows: int
    #: The most that is allocated at once, `fixed_bytes` included.
    peak_bytes: int
    #: Parameters, buffers, gradients and the optimiser's state.
    fixed_bytes: int
    #: Submodules that can be checkpointed; none contains another.
    layers: tuple[LayerCost, ...] = ()
    #: Floating-point operations of the forward pass.
    flops: int = 0
    #: Operations that torch was asked for in forward and backward.
    operations: int = 0
