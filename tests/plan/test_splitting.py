"""Parts of a program on two devices give what the whole gives, and are found where they pay."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.engines.numpy.lowering import run
from anygpu.placement.plan.calibration import Calibration, Transfer
from anygpu.placement.plan.predicting import predict
from anygpu.placement.plan.splitting import (
    GAIN,
    MOST_PARTS,
    ProgramPart,
    Side,
    Split,
    operations_of,
    part_of,
    parts_of,
    split,
)
from anygpu.program.graph import Program
from anygpu.program.primitives import Contract, Linear, Primitive
from anygpu.testing.random_programs import WEIGHTS, random_inputs, random_program
from anygpu.testing.random_programs.error_bounds import disagreement
from tests.plan.sampling import NUMPY, OPENCL, calibrations, faster, recorded
from tests.support.random_programs import programs

WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, Linear: 3.0}
FREE = Transfer(0.0, 1e15)


def in_parts(parts: Sequence[ProgramPart], outputs: Sequence[int], inputs: Sequence[HostArray]) -> list[HostArray]:
    values: dict[int, HostArray] = dict(enumerate(inputs))
    for part in parts:
        found = run(part.program, [values[source] for source in part.sources])
        values.update(zip(part.results, found, strict=True))
    return [values[output] for output in outputs]


def random_sides(program: Program, rng: random.Random) -> dict[int, Side]:
    side: Side = 0
    sides: dict[int, Side] = {}
    for position in operations_of(program):
        if rng.random() < 0.4:
            side = 0 if side else 1
        sides[position] = side
    return sides


@settings(deadline=None, max_examples=150)
@given(programs(primitives=WITH_LINEAR), st.integers(0, 2**32))
def test_any_parts_give_what_the_whole_gives(program: Program, seed: int) -> None:
    rng = random.Random(seed)
    sides = random_sides(program, rng)
    parts = parts_of(program, sides)
    inputs = random_inputs(program, rng)
    assert disagreement(run(program, inputs), in_parts(parts, program.outputs, inputs), program) is None
    for part in parts:
        assert part.program.inputs == tuple(program.specs[source] for source in part.sources)
        assert part.program.results == tuple(program.specs[result] for result in part.results)
    for one, other in itertools.pairwise(parts):
        assert one.device != other.device, "neighbours on one device are one part"


@settings(deadline=None, max_examples=60)
@given(programs(primitives=WITH_LINEAR), calibrations(), calibrations(), st.integers(0, 2**32))
def test_what_is_found_pays_and_is_right(program: Program, one: Calibration, other: Calibration, seed: int) -> None:
    found = split(program, one, other)
    if found is None:
        return
    alone = min(predict(program, each).seconds for each in (one, other))
    assert found.alone == alone
    assert found.seconds <= GAIN * alone
    assert {part.device for part in found.parts} == {0, 1}
    assert len(found.parts) <= MOST_PARTS
    inputs = random_inputs(program, random.Random(seed))
    assert disagreement(run(program, inputs), in_parts(found.parts, found.outputs, inputs), program) is None


def chain_after_product(x: Any, w: Any) -> Any:
    y = x @ w
    for _ in range(16):
        y = np.tanh(y) + y * 0.5
    return y


#: As measured on a machine without a GPU: matrix products are faster in NumPy, chains are faster where they are fused.
BLAS = msgspec.structs.replace(NUMPY, read=FREE, write=FREE)
FUSING = faster(OPENCL, "transcendental", 4.0)
SQUARE = ((1024, 1024), "float32")


def sides_of(found: Split, kind: type) -> set[int]:
    return {part.device for part in found.parts for node in part.program.nodes if isinstance(node.op, kind)}


def test_a_large_product_and_a_long_chain_are_put_on_both() -> None:
    program = recorded(chain_after_product, SQUARE, SQUARE)
    found = split(program, BLAS, FUSING)
    assert found is not None
    assert [part.device for part in found.parts] == [0, 1]
    assert sides_of(found, Contract) == {0}
    first, second = found.parts
    assert len(operations_of(first.program)) == 1
    assert second.sources == first.results, "nothing but the product is moved"


def test_nothing_is_split_where_one_device_does_everything_better() -> None:
    program = recorded(chain_after_product, SQUARE, SQUARE)
    assert split(program, BLAS, faster(FUSING, "contraction", 50.0)) is None


def test_nothing_is_split_where_moving_takes_too_long() -> None:
    program = recorded(chain_after_product, SQUARE, SQUARE)
    slow = Transfer(1e-3, 1e7)
    assert split(program, BLAS, msgspec.structs.replace(FUSING, write=slow, read=slow)) is None


def test_small_programs_are_not_split() -> None:
    small = ((32, 32), "float32")
    assert split(recorded(chain_after_product, small, small), BLAS, FUSING) is None


def test_what_is_known_of_single_devices_counts_more_than_predictions() -> None:
    program = recorded(chain_after_product, SQUARE, SQUARE)
    found = split(program, BLAS, FUSING)
    assert found is not None
    assert split(program, BLAS, FUSING, whole=(found.seconds, None)) is None
    better = faster(FUSING, "contraction", 50.0)
    assert split(program, BLAS, better, whole=(10.0, 10.0)) is not None or predict(program, better).seconds < 10.0


def test_what_a_device_lacks_is_put_on_the_other() -> None:
    def solved(x: Any, y: Any) -> Any:
        z = np.linalg.solve(x, y)
        for _ in range(64):
            z = np.tanh(z) + z * 0.5
        return z

    program = recorded(solved, ((512, 512), "float32"), ((512, 4096), "float32"))
    lacks = [position for position, node in enumerate(program.nodes) if isinstance(node.op, Linear)]
    found = split(program, BLAS, faster(FUSING, "linear", 1e6), lacks=((), lacks))
    assert found is not None
    assert sides_of(found, Linear) == {0}
    assert split(program, BLAS, FUSING, lacks=(lacks, lacks)) is None


def test_the_parts_of_a_decomposition_stay_together() -> None:
    def decomposed(x: Any, y: Any) -> Any:
        values, vectors = np.linalg.eigh(x)
        z = y * values
        for _ in range(64):
            z = np.tanh(z) + z * 0.5
        return z, vectors

    program = recorded(decomposed, ((64, 64), "float32"), ((4096 * 16, 64), "float32"))
    for times in (1e-6, 1.0, 1e6):
        found = split(program, BLAS, faster(FUSING, "linear", times))
        if found is not None:
            assert len(sides_of(found, Linear)) == 1


def test_few_parts() -> None:
    """Products and functions in turns: every change would have to pay for itself."""

    def turns(x: Any, w: Any) -> Any:
        for _ in range(8):
            x = np.tanh(np.tanh(np.tanh(np.tanh(x @ w))))
        return x

    found = split(recorded(turns, SQUARE, SQUARE), BLAS, FUSING)
    assert found is None or len(found.parts) <= MOST_PARTS


def test_views_and_constants_are_not_moved() -> None:
    def moved_about(x: Any, w: Any) -> Any:
        y = (x @ w).T[None, :, :]
        return chain(y + 3)

    def chain(y: Any) -> Any:
        for _ in range(16):
            y = np.tanh(y) + y * 0.5
        return y

    program = recorded(moved_about, SQUARE, SQUARE)
    found = split(program, BLAS, FUSING)
    assert found is not None
    moved = [program.nodes[source].op for source in found.parts[1].sources]
    assert [type(op) for op in moved] == [Contract]


def brute_force(program: Program, one: Calibration, other: Calibration) -> float:
    operations = operations_of(program)
    best = float("inf")
    for choice in itertools.product((0, 1), repeat=len(operations)):
        sides: Mapping[int, Side] = dict(zip(operations, choice, strict=True))  # type: ignore[arg-type]
        parts = parts_of(program, sides)
        best = min(best, sum(predict(part.program, (one, other)[part.device]).seconds for part in parts))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_cut_is_close_to_the_best_of_all(seed: int) -> None:
    """Of devices that do not fuse, where the price of a cut is what it really costs."""
    program = random_program(seed, max_nodes=9)
    if len(operations_of(program)) > 8:
        pytest.skip("too many ways to try them all")
    free = msgspec.structs.replace(BLAS, launch=1e-12, kernel=1e-12)
    other = msgspec.structs.replace(
        faster(faster(free, "elementwise", 1e3), "movement", 1e-3),
        read=Transfer(1e-9, 1e12),
        write=Transfer(1e-9, 1e12),
    )
    best = brute_force(program, free, other)
    alone = min(predict(program, each).seconds for each in (free, other))
    found = split(program, free, other)
    if best < 0.5 * alone:
        assert found is not None
        assert found.seconds <= best * 1.3
    if found is not None:
        assert found.seconds >= best * 0.999


def test_a_part_is_a_program_of_its_own() -> None:
    program = recorded(lambda x, w: np.tanh(x @ w).T + 1, SQUARE, SQUARE)
    first, second, *_ = operations_of(program)
    part, sources = part_of(program, [second], [second])
    assert sources == (first,)
    assert part.input_count == 1
    assert part.results == (program.specs[second],)
