"""No primitive lacks a rule, in programs or in an engine."""

import importlib

import pytest

from anygpu.agreement.elementwise import BOUNDS
from anygpu.engines import driver
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


def lowered(engine: str) -> set[type[Primitive]]:
    importlib.import_module(f"anygpu.engines.{engine}.{'engine' if engine == 'jax' else 'lowering'}")
    table = {"numpy": "numpy.lowering", "torch": "torch.elementwise", "jax": "jax.elementwise"}[engine]
    return set(importlib.import_module(f"anygpu.engines.{table}").LOWER)


#: What an engine does itself instead of looking it up: inputs, decompositions of several results, user's kernels.
APART: dict[str, set[type[Primitive]]] = {
    "numpy": {Input, Linear},
    "torch": {Input, Constant, Custom},
    "jax": {Input, Custom},
}


@pytest.mark.parametrize("engine", APART)
def test_every_engine_lowers_every_primitive(engine: str) -> None:
    assert lowered(engine) | APART[engine] == set(PRIMITIVES)


def test_what_kernels_cannot_compute_is_told() -> None:
    """Engines that compile refuse by a list, and lower everything else."""
    assert set(driver._WITHOUT) == {Linear}


def test_there_is_a_bound_after_every_primitive_that_computes() -> None:
    importlib.import_module("anygpu.agreement.analysis")
    computing = {each for each in PRIMITIVES if not (each.is_source or each.is_movement)}
    assert BOUNDS.keys() | {Custom} == computing
