"""Which kernels attention becomes, without a device."""

from __future__ import annotations

import re

import msgspec
import pytest

from anygpu.engines.codegen.attention import decomposed, tilings_of
from anygpu.engines.codegen.kernel import Schedule
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.engines.codegen.templates import attention
from anygpu.engines.codegen.templates.attention import AttentionSizes
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import Broadcast, Gather, Spec, Unary
from tests.codegen.planning import CARD, LEAST, PROCESSOR, TARGETS, check_schedule, with_limits

NARROW = with_limits(CARD, features=("subgroups",), subgroup_size=8)
every_target = pytest.mark.parametrize("target", [*TARGETS.values(), NARROW], ids=[*TARGETS, "narrow"])


def program(
    n: int = 128, m: int = 128, d: int = 32, e: int = 32, *, dtype: DType = "float32", causal: bool = False,
    bias: tuple[int, ...] | None = None,
) -> Program:  # fmt: skip
    recorder = Recorder()
    shapes = ((2, 4, n, d), (2, 4, m, d), (2, 4, m, e))
    inputs = [recorder.input(Spec(shape, dtype)) for shape in shapes]
    if bias is not None:
        inputs.append(recorder.input(Spec(bias, dtype)))
        inputs[-1] = recorder.add(Broadcast((2, 4, n, m)), inputs[-1])
    return recorder.program([recorder.add(Attend(0.125, causal), *inputs)])


def planned(given: Program, target: Target) -> Schedule:
    found = schedule(given, target)
    check_schedule(given, found, target)
    return found


@every_target
@pytest.mark.parametrize("causal", [False, True])
def test_one_kernel_and_no_scores(target: Target, causal: bool) -> None:
    found = planned(program(causal=causal, bias=(2, 1, 1, 128)), target)
    assert [kernel.name.split("_")[0] for kernel in found.kernels] == ["attend"]
    scores = 2 * 4 * 128 * 128 * 4
    assert all(slot.nbytes < scores for slot in found.slots)
    assert found.kernels[0].flops > 0


@every_target
@pytest.mark.parametrize(
    "sizes",
    [
        AttentionSizes(1, 4, 1, 1, 1),
        AttentionSizes(8, 100, 3000, 64, 64),
        AttentionSizes(2, 70, 70, 96, 32),
        AttentionSizes(1, 5, 9, 13, 2),
    ],
)
def test_every_candidate_keeps_the_limits(target: Target, sizes: AttentionSizes) -> None:
    for tiling in attention.tilings(target, sizes):
        assert attention.shared_bytes(tiling, sizes) <= target.group_memory
        assert attention.turns(tiling, sizes) <= target.loop_limit
        assert tiling.lanes <= target.group_limit
        groups, group_size = attention.grid(sizes, tiling)
        assert groups * tiling.rows >= sizes.batch * sizes.n
        assert group_size == tiling.lanes


def test_keys_are_handed_from_lane_to_lane_where_subgroups_are_narrow() -> None:
    sizes = AttentionSizes(8, 128, 128, 32, 32)
    assert all(each.handed == 0 for each in attention.tilings(CARD, sizes))
    assert all(each.handed == 8 for each in attention.tilings(NARROW, sizes))


@pytest.mark.parametrize(
    "target", [PROCESSOR, msgspec.structs.replace(CARD, dialect="opencl")], ids=["processor", "card"]
)
def test_numbers_in_kernels_of_float32_are_no_doubles(target: Target) -> None:
    """Compilers for devices without doubles refuse a literal that is one; those on processors do not."""
    (kernel,) = planned(program(bias=(2, 1, 1, 128)), target).kernels
    assert re.findall(r"(?<![\w.])\d+\.\d*(?:e[+-]?\d+)?(?![\w.])", kernel.source) == []


def test_the_chosen_candidate_is_what_is_made() -> None:
    (choice,) = planned(program(), PROCESSOR).choices
    texts = {schedule(program(), PROCESSOR, chosen={choice.name: each}).kernels[0].source for each in choice.candidates}
    assert len(texts) == len(choice.candidates)


@every_target
def test_few_queries_long_keys_and_wide_numbers_take_several_kernels(target: Target) -> None:
    assert tilings_of(program(n=1), target, 3) == []
    assert len(planned(program(n=1), target).kernels) > 1
    assert len(planned(program(d=512, e=512), target).kernels) > 1
    if target.has("f64"):
        assert len(planned(program(dtype="float64"), target).kernels) > 1


def test_more_keys_than_turns_take_several_kernels() -> None:
    few = with_limits(NARROW, loop_limit=100)
    assert len(planned(program(m=128), few).kernels) == 1
    assert len(planned(program(m=2048), few).kernels) > 1


def test_nodes_know_where_they_came_from() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((3, 1, 8), "float32"))
    index = recorder.input(Spec((3,), "int32"))
    attended = recorder.add(Attend(1.0), x, x, x)
    taken = recorder.add(Gather(0), recorder.add(Unary("exp"), attended), index)
    given = recorder.program([taken])
    made, origins = decomposed(given, LEAST)
    assert len(origins) == len(made.nodes)
    gather = next(node for node, (op, _) in enumerate(made.nodes) if isinstance(op, Gather))
    assert origins[gather] == taken
    assert len(schedule(given, LEAST, in_range=lambda node: node == taken).checks) == 0
    assert len(schedule(given, LEAST, in_range=lambda node: node != taken).checks) == 1
    assert not any(isinstance(op, Attend) for op, _ in made.nodes)
    assert made.results == given.results


def test_without_attention_a_program_is_itself() -> None:
    recorder = Recorder()
    given = recorder.program([recorder.add(Unary("exp"), recorder.input(Spec((3,), "float32")))])
    assert decomposed(given, LEAST)[0] is given


def test_a_mask_for_keys_is_read_once_for_all_queries() -> None:
    source = planned(program(bias=(2, 1, 1, 128)), NARROW).kernels[0].source
    assert "subgroupBroadcast(bias" in source
    source = planned(program(bias=(2, 4, 128, 128)), NARROW).kernels[0].source
    assert "subgroupBroadcast(bias" not in source
    source = planned(program(bias=(2, 4, 128, 128)), PROCESSOR).kernels[0].source
    assert "load_bias(" in source


def test_causal_attention_leaves_out_what_nobody_sees() -> None:
    for target in (PROCESSOR, NARROW, CARD):
        found = planned(program(causal=True), target).kernels[0]
        assert "step < end" in found.source
        assert found.flops < planned(program(), target).kernels[0].flops


def test_tilings_are_plain_numbers() -> None:
    (choice,) = planned(program(), CARD).choices
    for each in choice.candidates:
        assert msgspec.json.decode(msgspec.json.encode(each), type=attention.AttentionTiling) == each
