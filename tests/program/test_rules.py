"""No primitive lacks a rule, in programs or in an engine."""

from collections.abc import Callable
from typing import Any

import pytest

from anygpu.program.primitive import Primitive
from anygpu.program.primitives import PRIMITIVES, Constant, Custom, Input, Linear

#: What `Primitive` leaves to its subclasses.
REQUIRED = ("infer", "passed_axes", "batched", "flops", "details")


@pytest.mark.parametrize("primitive", PRIMITIVES)
@pytest.mark.parametrize("rule", REQUIRED)
def test_every_primitive_has_every_rule(primitive: type[Primitive], rule: str) -> None:
    assert getattr(primitive, rule) is not getattr(Primitive, rule)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_every_primitive_is_of_one_kind_for_fusion(primitive: type[Primitive]) -> None:
    kinds = (primitive.is_source, primitive.is_elementwise, primitive.is_movement, primitive.has_own_kernels)
    assert sum(kinds) <= 1
    assert primitive.is_movement or not primitive.is_view
    assert primitive.family


def test_a_primitive_without_a_rule_is_found() -> None:
    class Halve(Primitive, frozen=True):
        family = "elementwise"

    assert all(getattr(Halve, rule) is getattr(Primitive, rule) for rule in REQUIRED)


def tables() -> dict[str, dict[type[Primitive], Callable[..., Any]]]:
    from anygpu.engines.jax import lowering as of_jax
    from anygpu.engines.numpy import lowering as of_numpy
    from anygpu.engines.torch import lowering as of_torch

    return {"numpy": of_numpy.LOWER, "torch": of_torch.LOWER, "jax": of_jax.LOWER}


#: What an engine does itself instead of looking it up: inputs, decompositions of several results, user's kernels.
APART: dict[str, set[type[Primitive]]] = {
    "numpy": {Input, Linear},
    "torch": {Input, Constant, Custom},
    "jax": {Input, Custom},
}


@pytest.mark.parametrize("engine", APART)
def test_every_engine_lowers_every_primitive(engine: str) -> None:
    assert tables()[engine].keys() | APART[engine] == set(PRIMITIVES)
