"""A program as one function that XLA compiles whole, and which of its nodes jax has nothing for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anygpu.engines.jax import elementwise
from anygpu.engines.jax import structure as structure
from anygpu.engines.jax.elementwise import LOWER, JaxComplaint, JaxSite
from anygpu.engines.protocol import Lack, why_not_here
from anygpu.engines.value_analysis import IndexFacts, uniform_numbers, whole_exponent
from anygpu.hardware.device import Device
from anygpu.program.dtypes import KIND, DType
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.primitives import (
    LINEAR_PARTS,
    Binary,
    Gather,
    Input,
    Iota,
    Linear,
    Primitive,
    Scan,
    Scatter,
    Unary,
)

# `elementwise` and `structure` have filled LOWER when they were imported.

#: Between two operations XLA would leave out the rounding to float16.
_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}
#: XLA's simplifier takes x * x for positive, x * 2 / 2 for x, and sqrt(x * x) for abs(x), whether or not they overflow.
#: On the CPU it cannot see through a barrier after each operation, and these are gone before loops are fused. On
#: cards a barrier would keep loops apart, so there the simplifier is left out.
_WITHOUT_SIMPLIFIER = {**_OPTIONS, "xla_disable_hlo_passes": "algsimp"}


class JaxExecutable:
    """A compiled program. Its types are fixed when it is compiled, whatever jax is set to when it runs."""

    def __init__(self, program: Program, place: Any, device: Device) -> None:
        self.device = device
        self._complaints: list[JaxComplaint] = []
        sharding = jax.sharding.SingleDeviceSharding(place)
        inputs = [jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype), sharding=sharding) for spec in program.inputs]
        # Without x64 jax narrows 64-bit values to 32 bits silently.
        with jax.enable_x64(True):
            on_cpu = place.platform == "cpu"
            function = _function(program, self._complaints, barriers=on_cpu)
            traced = jax.jit(function, out_shardings=sharding, keep_unused=True)
            options = _OPTIONS if on_cpu else _WITHOUT_SIMPLIFIER
            self._compiled = traced.lower(*inputs).compile(compiler_options=options)

    def run(self, buffers: Sequence[jax.Array]) -> list[jax.Array]:
        results, flags = self._compiled(*buffers)
        if flags:
            raised = np.flatnonzero(np.asarray(flags[0]))
            if raised.size:
                raise self._complaints[raised[0]]()
        return results  # type: ignore[no-any-return]


def _function(program: Program, complaints: list[JaxComplaint], *, barriers: bool) -> Callable[..., Any]:
    program = with_references(program, None)
    facts = IndexFacts(program)
    numbers = uniform_numbers(program)

    def run(*inputs: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        flags: list[jax.Array] = []
        complaints.clear()

        def complain(flag: jax.Array, error: JaxComplaint) -> None:
            flags.append(flag)
            complaints.append(error)

        values: list[Any] = list(inputs)
        decompositions: dict[tuple[Any, ...], Any] = {}
        for position, (op, sources) in enumerate(program.nodes):
            if isinstance(op, Input):
                continue
            specs = tuple(program.specs[source] for source in sources)
            scalars = tuple(numbers.get(source) for source in sources)
            site = JaxSite(specs, program.specs[position], complain, scalars=scalars)
            if isinstance(op, Gather | Scatter):
                site = site._replace(
                    in_range=facts.surely_in_range(sources[1], specs[0].shape[op.axis]),
                    distinct=facts.surely_distinct(sources[1]),
                )
            arguments = [values[source] for source in sources]
            if isinstance(op, Linear) and op.fn in LINEAR_PARTS:
                key = (op.fn, op.full, sources)
                if key not in decompositions:
                    decompositions[key] = LOWER[Linear](op, site, *arguments)
                values.append(decompositions[key][op.part])
            else:
                result = LOWER[type(op)](op, site, *arguments)
                # In values that are only moved there is nothing to simplify wrongly.
                guarded = barriers and not (op.is_view or isinstance(op, Iota))
                values.append(jax.lax.optimization_barrier(result) if guarded else result)
        return [values[output] for output in program.outputs], [jnp.stack(flags)] if flags else []

    return run


#: What a platform's hardware has no room for.
_NOT_ON: dict[str, tuple[DType, ...]] = {
    "tpu": ("float64", "complex128"),
    "metal": ("float64", "complex64", "complex128"),
}


def home(dtype: DType, place: Any) -> Any:
    """Where buffers of this type live. What the device cannot hold stays on the host, where its nodes run too."""
    return jax.devices("cpu")[0] if dtype in _NOT_ON.get(place.platform.lower(), ()) else place


def lacks(program: Program, platform: str) -> list[Lack]:
    found = []
    numbers = uniform_numbers(program)
    for position, node in enumerate(program.nodes):
        if isinstance(node.op, Input):
            continue
        if isinstance(node.op, Custom):
            missing = why_not_here(node.op, "jax", lambda reference: lacks(reference, platform))
            found += [Lack(position, missing)] if missing is not None else []
            continue
        dtypes = [program.specs[each].dtype for each in (*node.inputs, position)]
        reason = _reason(node.op, dtypes, platform.lower())
        if reason is None and KIND[dtypes[0]] == "complex" and not _is_numpys(node, numbers):
            reason = f"jax's complex {node.op.name} is not NumPy's at zeros, infinities and NaN"
        if reason is not None:
            found.append(Lack(position, reason))
    return found


def _is_numpys(node: Node, numbers: dict[int, Any]) -> bool:
    """Whether a function of complex numbers is NumPy's for all of them."""
    match node.op:
        case Unary():
            return node.op.fn not in elementwise.COMPLEX_OTHERWISE
        case Binary("power"):
            return whole_exponent(numbers.get(node.inputs[1])) is not None
        case Scan():
            return node.op.fn != "prod"
    return True


def _reason(op: Primitive, dtypes: Sequence[DType], platform: str) -> str | None:
    for dtype in dtypes:
        if dtype in _NOT_ON.get(platform, ()):
            return f"jax has no {dtype} on {platform}"
    if isinstance(op, Linear) and op.fn == "eig" and platform != "cpu":
        return f"jax has no eig on {platform}"
    if isinstance(op, Scatter) and op.fn in ("maximum", "minimum") and KIND[dtypes[0]] == "complex":
        return f"jax has no scatter {op.fn} for {dtypes[0]}"
    return None
