"""Attention on lavapipe and PoCL against NumPy's own sums, in every form there is, at odd sizes and with odd values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from anygpu import nn
from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.compiling_session import CompiledProgram
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import Broadcast, Spec
from tests.engines.compiled import NAMES, Running, running, spec_of

#: Queries, keys, and the lengths of keys and values: around vectors, and around blocks of keys.
SIZES = [(64, 64, 32, 32), (65, 33, 7, 5), (17, 100, 16, 24), (5, 9, 3, 1), (40, 1, 4, 4), (20, 130, 12, 9)]


@pytest.fixture(scope="module", params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


def attended(op: Attend, q: HostArray, k: HostArray, v: HostArray, bias: HostArray | None = None) -> HostArray:
    scores = np.einsum("...nd,...md->...nm", q.astype(np.float64), k.astype(np.float64)) * op.scale
    n, m = scores.shape[-2:]
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    if op.causal:
        scores = np.where(np.arange(m) <= np.arange(n)[:, None] + m - n, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray((weights / weights.sum(axis=-1, keepdims=True)) @ v.astype(np.float64))


def program_of(op: Attend, arrays: Sequence[HostArray]) -> Program:
    """A bias is broadcast, as a mask is."""
    recorder = Recorder()
    inputs = [recorder.input(spec_of(each)) for each in arrays]
    if len(inputs) == 4:
        scores = (*arrays[0].shape[:-1], arrays[1].shape[-2])
        inputs[3] = recorder.add(Broadcast(scores), inputs[3])
    return recorder.program([recorder.add(op, *inputs)])


def computed(opened: Running, op: Attend, *arrays: HostArray) -> HostArray:
    (found,) = opened.execute(program_of(op, arrays), [opened.up(each) for each in arrays])
    return opened.down(found)


def check(opened: Running, op: Attend, *arrays: HostArray, tolerance: float = 1e-5) -> None:
    found = computed(opened, op, *arrays)
    assert found.dtype == arrays[0].dtype
    np.testing.assert_allclose(found, attended(op, *arrays), rtol=tolerance, atol=tolerance)


def some(n: int, m: int, d: int, e: int, stack: tuple[int, ...] = (3,), dtype: str = "float32") -> list[HostArray]:
    rng = np.random.default_rng(n * m + d)
    shapes = ((n, d), (m, d), (m, e))
    return [rng.standard_normal((*stack, *shape)).astype(dtype) for shape in shapes]


def mask(shape: tuple[int, ...], seed: int = 0) -> HostArray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape)).astype(np.float32)


@pytest.mark.sampled(gate=8)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_any_size(opened: Running, size: tuple[int, int, int, int], causal: bool) -> None:
    check(opened, Attend(0.3, causal), *some(*size))


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("causal", [False, True])
def test_in_the_memory_of_a_group(opened: Running, causal: bool) -> None:
    """As graphics cards get it, of which this machine has none."""
    target = msgspec.structs.replace(opened.session.target, subgroup_size=0, group_memory=16384)
    op = Attend(0.3, causal)
    for arrays in (some(33, 40, 7, 6), some(65, 20, 8, 4), [*some(33, 40, 8, 8), mask((3, 33, 40))]):
        program = program_of(op, arrays)
        plan = schedule(program, target)
        assert "tile_k" in plan.kernels[0].source
        executable = CompiledProgram(opened.session, program, plan, tuple(False for _ in arrays), overwrites=True)
        (found,) = opened.engine.execute(executable, [opened.up(each) for each in arrays])
        np.testing.assert_allclose(opened.down(found), attended(op, *arrays), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("shape", [(1, 35), (18, 35), (2, 1, 1, 35), (2, 3, 18, 35), (18, 1)])
def test_a_bias_is_broadcast_on_the_way(opened: Running, shape: tuple[int, ...]) -> None:
    arrays = some(18, 35, 8, 8, stack=(2, 3))
    bias = mask(shape)
    check(opened, Attend(0.5, causal=len(shape) == 2), *arrays, bias)


def test_no_leading_axes_and_many(opened: Running) -> None:
    check(opened, Attend(1.0), *some(16, 16, 4, 4, stack=()))
    check(opened, Attend(1.0), *some(9, 8, 4, 4, stack=(2, 1, 3, 1)))


@pytest.mark.full
def test_one_query_and_long_keys_take_several_kernels(opened: Running) -> None:
    check(opened, Attend(0.2), *some(1, 300, 16, 16))
    check(opened, Attend(0.05), *some(9, 11, 600, 300))
    check(opened, Attend(0.05, True), *some(9, 11, 600, 300))


@pytest.mark.full
def test_half_precision_is_summed_in_single(opened: Running) -> None:
    arrays = some(33, 300, 16, 16, dtype="float16")
    check(opened, Attend(0.25), *arrays, tolerance=2e-3)
    check(opened, Attend(0.25), *some(1, 300, 16, 16, dtype="float16"), tolerance=2e-3)


@pytest.mark.full
def test_double_precision_stays(opened: Running) -> None:
    if "f64" not in opened.device.features:
        pytest.skip("the device has no 64-bit numbers")
    check(opened, Attend(0.25, True), *some(20, 20, 8, 8, dtype="float64"), tolerance=1e-12)


def test_heads_are_views(opened: Running) -> None:
    """Queries, keys and values out of one array, as models store them."""
    packed = np.random.default_rng(0).standard_normal((2, 20, 3, 4, 8)).astype(np.float32)

    def heads(x: Any) -> list[Any]:
        return [np.swapaxes(x[:, :, number], 1, 2) for number in range(3)]

    def attention(x: Any) -> Any:
        return np.swapaxes(nn.attention(*heads(x), scale=0.4), 1, 2).reshape(2, 20, 32)

    (found,) = opened.values(attention, packed)
    wanted = np.swapaxes(attended(Attend(0.4), *heads(packed)), 1, 2).reshape(2, 20, 32)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    planned = opened.engine.compile(record(attention, Spec(packed.shape, "float32")), opened.device).schedule
    assert sum(kernel.name.startswith("attend") for kernel in planned.kernels) == 1
    assert len(planned.kernels) <= 2, "heads are read where they are; only the result may be put in another order"


def test_great_scores_and_small_ones(opened: Running) -> None:
    q, k, v = some(16, 64, 8, 8)
    check(opened, Attend(100.0), q, k, v)
    check(opened, Attend(1e-6), q, k, v)
    # The greatest comes last, and what was summed before is nothing beside it.
    bias = np.linspace(-3000, 3000, 64, dtype=np.float32)[None]
    check(opened, Attend(1.0), q, k, v, bias)
    check(opened, Attend(1.0), q, k, v, bias[:, ::-1].copy())


def test_what_sees_nothing_is_not_a_number(opened: Running) -> None:
    q, k, v = some(24, 10, 8, 8)
    found = computed(opened, Attend(1.0, True), q, k, v)
    assert np.isnan(found[:, :14]).all()
    np.testing.assert_allclose(found[:, 14:], attended(Attend(1.0, True), q, k, v)[:, 14:], rtol=1e-5, atol=1e-5)
    bias = np.zeros((24, 10), np.float32)
    bias[[3, 20]] = -np.inf
    found = computed(opened, Attend(1.0), q, k, v, bias)
    assert np.isnan(found[:, [3, 20]]).all()
    assert not np.isnan(np.delete(found, [3, 20], axis=1)).any()


def test_not_a_number_stays_in_its_row(opened: Running) -> None:
    q, k, v = some(20, 40, 8, 8)
    q[1, 5, 2] = np.nan
    found = computed(opened, Attend(1.0), q, k, v)
    assert np.isnan(found[1, 5]).all()
    assert np.isnan(found).sum() == found.shape[-1]
    k[0, 39, 0] = np.nan
    found = computed(opened, Attend(1.0), q, k, v)
    assert np.isnan(found[0]).all()


def test_more_keys_than_a_loop_may_have_turns(opened: Running) -> None:
    q, k, v = some(8, 70_001, 4, 4, stack=())
    check(opened, Attend(0.5), q, k, v, tolerance=1e-4)


def test_nothing_at_all(opened: Running) -> None:
    assert computed(opened, Attend(1.0), *some(0, 5, 4, 4)).shape == (3, 0, 4)
    assert np.isnan(computed(opened, Attend(1.0), *some(5, 0, 4, 4))).all()
    found = computed(opened, Attend(1.0), *some(5, 6, 0, 4))
    np.testing.assert_allclose(found, attended(Attend(1.0), *some(5, 6, 0, 4)), rtol=1e-6, atol=1e-6)
