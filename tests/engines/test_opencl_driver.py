"""The OpenCL driver on a real device (PoCL), in each of the three ways to reach its memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from anygpu.engines.driver import Clear, Dispatch, Extent, GridCut, Move
from anygpu.engines.opencl.builder import OpenCLKernel
from anygpu.engines.opencl.device import HostSharing
from anygpu.engines.opencl.engine import OpenCLDriver
from anygpu.errors import DeviceLost, InvalidProgram, TooBig
from tests.engines.opencl_kernels import affine, as_bytes, open_first, room, whole

Floats = npt.NDArray[np.float32]

ODD_SIZES = (1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025)
WAYS: tuple[HostSharing, ...] = ("shared", "mapped", "staged")


@pytest.fixture(scope="module", params=WAYS)
def opened(request: pytest.FixtureRequest) -> Iterator[OpenCLDriver]:
    engine, _, driver = open_first(request.param)
    yield driver
    driver.close()
    engine.close()


@pytest.fixture
def driver(opened: OpenCLDriver) -> Iterator[OpenCLDriver]:
    """With nothing left over by the test."""
    gc.collect()
    before = opened.live()
    yield opened
    opened.synchronize()
    gc.collect()
    after = opened.live()
    assert (after.blocks, after.nbytes) == (before.blocks, before.nbytes)


@pytest.fixture
def shared() -> Iterator[OpenCLDriver]:
    engine, _, driver = open_first("shared")
    yield driver
    driver.close()
    engine.close()


def run_affine(driver: OpenCLDriver, values: Floats) -> Floats:
    source, target = whole(driver, values), room(driver, values.nbytes)
    driver.submit([Dispatch(driver.build(affine(len(values))), (source, target), (0,))])
    return driver.read(target).view(np.float32)


class TestMemory:
    @pytest.mark.parametrize("size", [0, *ODD_SIZES, (9 << 20) + 5])
    def test_bytes_come_back(self, driver: OpenCLDriver, size: int) -> None:
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        np.testing.assert_array_equal(driver.read(whole(driver, data)), data)

    def test_writes_and_reads_are_in_order_with_kernels(self, driver: OpenCLDriver) -> None:
        source, target = room(driver, 4096), room(driver, 4096)
        built = driver.build(affine(1024))
        for value in range(20):
            driver.write(source, as_bytes(np.full(1024, value, np.float32)))
            driver.submit([Dispatch(built, (source, target), (0,))])
        assert (driver.read(target).view(np.float32) == 2 * 19 + 1).all()

    def test_the_source_may_be_reused_when_a_write_returns(self, driver: OpenCLDriver) -> None:
        data = np.ones((5 << 20) + 3, np.uint8)
        extent = room(driver, len(data))
        driver.write(extent, data)
        data[:] = 2
        assert (driver.read(extent) == 1).all()

    def test_bytes_cross_apart_while_kernels_run(self, driver: OpenCLDriver) -> None:
        values = np.arange((5 << 20) // 4, dtype=np.float32)
        built = driver.build(affine(len(values)))
        source, target, other = whole(driver, values), room(driver, values.nbytes), room(driver, values.nbytes)
        arrived = np.zeros(values.nbytes, np.uint8)
        for _ in range(5):
            driver.submit([Dispatch(built, (source, target), (0,))])
            free = driver.until_free(other)
            if free is not None:
                free()
            driver.write_apart(other, as_bytes(values + 1))
            driver.until_done()()
            driver.submit([Dispatch(built, (other, source), (0,))])
            driver.until_done()()
            driver.read_apart(source, arrived)
            np.testing.assert_array_equal(arrived.view(np.float32), 2 * (values + 1) + 1)
            driver.write_apart(source, as_bytes(values))
        np.testing.assert_array_equal(driver.read(target).view(np.float32), 2 * values + 1)

    def test_what_is_released_while_in_use_stays_until_it_is_done(self, driver: OpenCLDriver) -> None:
        values = np.arange(1 << 20, dtype=np.float32)
        target = room(driver, values.nbytes)
        built = driver.build(affine(len(values)))
        for _ in range(5):
            source = whole(driver, values)
            driver.submit([Dispatch(built, (source, target), (0,))])
            driver.release(source.block)
            del source
        np.testing.assert_array_equal(driver.read(target).view(np.float32), 2 * values + 1)

    def test_a_size_that_never_fits_is_refused_with_its_numbers(self, driver: OpenCLDriver) -> None:
        limit = driver.target.binding_bytes
        with pytest.raises(TooBig) as caught:
            driver.allocate(limit + 1)
        assert (caught.value.device, caught.value.limit) == ("opencl:0", limit)

    def test_extents_inside_of_a_block(self, driver: OpenCLDriver) -> None:
        step = driver.alignment
        block = driver.allocate(8 * step)
        floats = step // 4
        source, target = Extent(block, step, step), Extent(block, 3 * step, step)
        driver.write(Extent(block, 0, 8 * step), np.zeros(8 * step, np.uint8))
        driver.write(source, as_bytes(np.arange(floats, dtype=np.float32)))
        for _ in range(2):
            driver.submit([Dispatch(driver.build(affine(floats)), (source, target), (0,))])
        everything = driver.read(Extent(block, 0, 8 * step)).view(np.float32).reshape(8, floats)
        np.testing.assert_array_equal(everything[3], 2 * np.arange(floats) + 1)
        assert not everything[[0, 2, 4, 5, 6, 7]].any()

    def test_an_empty_extent_at_the_end_of_a_block(self, driver: OpenCLDriver) -> None:
        source, target = whole(driver, np.ones(64, np.float32)), room(driver, 256)
        nothing = Extent(source.block, source.block.nbytes, 0)
        driver.submit([Clear(nothing), Move(nothing, nothing)])
        kernel = msgspec.structs.replace(affine(64), groups=1)
        driver.submit([Dispatch(driver.build(kernel), (nothing, target), (5,))])
        assert driver.read(nothing).nbytes == driver.read_view(nothing).nbytes == 0

    @pytest.mark.parametrize("size", [1, 3, 4, 64, 1025])
    def test_moves_and_clears(self, driver: OpenCLDriver, size: int) -> None:
        block = whole(driver, np.full(4096, 7, np.uint8)).block
        driver.submit([Clear(Extent(block, 5, size)), Move(Extent(block, 0, size), Extent(block, 2048, size))])
        expected = np.full(4096, 7, np.uint8)
        expected[5 : 5 + size] = 0
        expected[2048 : 2048 + size] = expected[:size].copy()
        np.testing.assert_array_equal(driver.read(Extent(block, 0, 4096)), expected)


class TestViews:
    def test_a_view_holds_the_block_and_its_owner(self, driver: OpenCLDriver) -> None:
        class Owner:
            pass

        owner, values = Owner(), np.arange(257, dtype=np.float32)
        extent = whole(driver, values)
        view = driver.read_view(extent, owner=owner).view(np.float32)[3:]
        owned, held = weakref.ref(owner), weakref.ref(extent.block)
        driver.release(extent.block)
        del owner, extent
        assert (owned() is not None, held() is not None) == (driver.views_are_free, driver.views_are_free)
        np.testing.assert_array_equal(view, values[3:])
        del view
        assert owned() is None
        assert held() is None

    def test_a_view_is_for_reading(self, driver: OpenCLDriver) -> None:
        if not driver.views_are_free:
            pytest.skip("there are only copies")
        extent = whole(driver, np.zeros(64, np.uint8))
        assert not driver.read_view(extent).flags.writeable

    def test_a_view_waits_for_what_writes_it(self, driver: OpenCLDriver) -> None:
        values = np.arange(1 << 18, dtype=np.float32)
        source, target = whole(driver, values), room(driver, values.nbytes)
        driver.submit([Dispatch(driver.build(affine(len(values))), (source, target), (0,))])
        np.testing.assert_array_equal(driver.read_view(target).view(np.float32), 2 * values + 1)

    def test_nothing_is_copied(self, shared: OpenCLDriver) -> None:
        extent = whole(shared, np.arange(100, dtype=np.uint8))
        before = shared.counters.bytes_to_host
        assert np.shares_memory(shared.read_view(extent), shared.read_view(extent))
        assert shared.counters.bytes_to_host == before

    def test_a_view_outlives_its_driver(self) -> None:
        for way in WAYS:
            engine, _, driver = open_first(way)
            view = driver.read_view(whole(driver, np.arange(256, dtype=np.uint8)))
            driver.close()
            engine.close()
            del driver
            gc.collect()
            np.testing.assert_array_equal(view, np.arange(256))


class TestKernels:
    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("size", ODD_SIZES)
    def test_odd_sizes(self, driver: OpenCLDriver, size: int) -> None:
        values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        np.testing.assert_allclose(run_affine(driver, values), 2 * values + 1, rtol=1e-6, atol=1e-6)

    def test_fifty_kernels_are_one_submission(self, driver: OpenCLDriver) -> None:
        values = np.zeros(257, np.float32)
        extents = [whole(driver, values), room(driver, values.nbytes)]
        built = driver.build(affine(257, scale=1.0))
        before = msgspec.structs.replace(driver.counters)
        driver.submit([Dispatch(built, (extents[turn % 2], extents[1 - turn % 2]), (0,)) for turn in range(50)])
        assert driver.counters.submits - before.submits == 1
        assert driver.counters.dispatches - before.dispatches == 50
        assert driver.counters.allocations == before.allocations
        assert (driver.read(extents[0]).view(np.float32) == 50).all()

    def test_the_same_text_is_compiled_once(self, driver: OpenCLDriver) -> None:
        kernel = affine(12345)
        first = driver.build(kernel)
        before = driver.counters.compilations
        other_slots = msgspec.structs.replace(kernel, bindings=tuple(reversed(kernel.bindings)))
        assert driver.build(other_slots).function is first.function
        assert driver.counters.compilations == before

    def test_two_kernels_of_one_text_do_not_mix_up_their_arguments(self, driver: OpenCLDriver) -> None:
        kernel = affine(64)
        built = driver.build(kernel), driver.build(msgspec.structs.replace(kernel, flops=9.0))
        sources = [whole(driver, np.full(64, value, np.float32)) for value in (1, 2)]
        targets = [room(driver, 256) for _ in range(2)]
        driver.submit([Dispatch(built[turn], (sources[turn], targets[turn]), (0,)) for turn in (0, 1, 0, 1)])
        assert [driver.read(target).view(np.float32)[63] for target in targets] == [3, 5]

    def test_device_time(self, driver: OpenCLDriver) -> None:
        values = np.zeros(1 << 20, np.float32)
        source, target = whole(driver, values), room(driver, values.nbytes)
        launch = Dispatch(driver.build(affine(len(values))), (source, target), (0,))
        alone: list[float] = []
        # The best of several: on a busy machine one launch alone can be held up for longer than twenty take.
        for _ in range(5):
            driver.submit([launch], timed=True)
            seconds = driver.device_seconds()
            assert seconds is not None
            alone.append(seconds)
        driver.submit([launch] * 20, timed=True)
        often = driver.device_seconds()
        assert often is not None
        assert 0 < min(alone) < 5
        assert often > min(alone)

    def test_an_empty_grid_runs_nothing(self, driver: OpenCLDriver) -> None:
        kernel = msgspec.structs.replace(affine(64), groups=0)
        extents = (room(driver, 0), room(driver, 0))
        before = driver.counters.dispatches
        driver.submit([Dispatch(driver.build(kernel), extents, (0,))], timed=True)
        assert driver.counters.dispatches == before
        assert driver.device_seconds() == 0.0

    def test_wrong_numbers_of_arguments_never_reach_the_device(self, driver: OpenCLDriver) -> None:
        built = driver.build(affine(64))
        extent = room(driver, 256)
        with pytest.raises(InvalidProgram, match="2 buffers and 1 numbers; it was given 1 and 1"):
            driver.submit([Dispatch(built, (extent,), (0,))])

    def test_a_refused_command_leaves_the_ones_before_it_running(self, driver: OpenCLDriver) -> None:
        built = driver.build(affine(64))
        source, target = whole(driver, np.ones(64, np.float32)), room(driver, 256)
        with pytest.raises(InvalidProgram):
            driver.submit([Dispatch(built, (source, target), (0,)), Dispatch(built, (source,), ())])
        assert (driver.read(target).view(np.float32) == 3).all()


class TestCutting:
    def test_a_kernel_that_is_estimated_to_run_long_is_cut(self, driver: OpenCLDriver) -> None:
        kernel = msgspec.structs.replace(affine(6400, scale=3.0), flops=2e9)
        values = np.arange(6400, dtype=np.float32)
        source, target = whole(driver, values), room(driver, values.nbytes)
        before = driver.counters.dispatches
        driver.submit([Dispatch(driver.build(kernel), (source, target), (0,))])
        assert driver.counters.dispatches - before == 5
        np.testing.assert_array_equal(driver.read(target).view(np.float32), 3 * values + 1)

    def test_it_is_cut_no_more_once_it_is_known_to_be_quick(self, driver: OpenCLDriver) -> None:
        built = driver.build(msgspec.structs.replace(affine(6400, scale=3.0), flops=2e9))
        source, target = room(driver, 25600), room(driver, 25600)
        for _ in range(2):
            driver.submit([Dispatch(built, (source, target), (0,))])
            driver.synchronize()
        before = driver.counters.dispatches
        driver.submit([Dispatch(built, (source, target), (0,))])
        assert driver.counters.dispatches - before == 1
        driver.synchronize()  # the kernel writes to blocks that end with this test

    def test_a_caller_may_begin_later_in_the_grid(self, driver: OpenCLDriver) -> None:
        kernel = msgspec.structs.replace(affine(256), groups=2)
        values = np.arange(256, dtype=np.float32)
        source, target = whole(driver, values), room(driver, values.nbytes)
        driver.submit([Clear(target), Dispatch(driver.build(kernel), (source, target), (2,))])
        result = driver.read(target).view(np.float32)
        assert not result[:128].any()
        np.testing.assert_array_equal(result[128:], 2 * values[128:] + 1)

    def test_a_kernel_without_that_number_is_left_whole(self) -> None:
        kernel = msgspec.structs.replace(affine(6400), numbers=(), flops=1e15)
        built = OpenCLKernel(kernel, function=None)  # type: ignore[arg-type]
        assert built.cuts(pace=None) == (GridCut(0, 100),)  # type: ignore[arg-type]


def build_alone(function: str, sharing: str) -> None:
    """In a process of its own, as in a worker.

    Where its compiler had something to say, PoCL has twice ended the process of all these tests.
    """
    script = f"import sys, tests.engines.test_opencl_driver as tests; tests.{function}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, sharing], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def build_what_is_no_kernel(sharing: HostSharing) -> None:
    engine, _, driver = open_first(sharing)
    kernel = msgspec.structs.replace(affine(64), source="__kernel void affine() { this is not a kernel }")
    with pytest.raises(InvalidProgram, match=r"(?s)refuses kernel affine\..*undeclared identifier"):
        driver.build(kernel)
    driver.close()
    engine.close()


def build_with_a_remark(sharing: HostSharing) -> None:
    engine, _, driver = open_first(sharing)
    kernel = affine(65, name="remarked")
    driver.build(msgspec.structs.replace(kernel, source="#warning something\n" + kernel.source))
    driver.close()
    engine.close()


class TestBuilding:
    @pytest.mark.parametrize("sharing", WAYS)
    def test_the_compilers_words_come_back(self, sharing: str) -> None:
        build_alone("build_what_is_no_kernel", sharing)

    @pytest.mark.parametrize("sharing", WAYS)
    def test_what_a_compiler_remarks_on_a_good_text_is_nobodys_business(self, sharing: str) -> None:
        build_alone("build_with_a_remark", sharing)

    def test_a_function_that_is_not_in_the_text(self, driver: OpenCLDriver) -> None:
        with pytest.raises(InvalidProgram, match="refuses kernel elsewhere"):
            driver.build(msgspec.structs.replace(affine(64), name="elsewhere"))

    def test_a_text_with_other_arguments(self, driver: OpenCLDriver) -> None:
        with pytest.raises(InvalidProgram, match="takes 3 arguments, and its record 2"):
            driver.build(msgspec.structs.replace(affine(64), numbers=()))

    def test_groups_that_are_too_large(self, driver: OpenCLDriver) -> None:
        limit = driver.target.group_limit
        with pytest.raises(InvalidProgram, match=f"groups of at most {limit}"):
            driver.build(affine(64, group_size=2 * limit))


class TestClosing:
    def test_twice_is_once(self) -> None:
        _, _, driver = open_first()
        driver.close()
        driver.close()

    def test_a_closed_driver_says_so(self) -> None:
        _, _, driver = open_first()
        extent = room(driver, 64)
        driver.close()
        for action in (
            lambda: driver.allocate(64),
            lambda: driver.read(extent),
            lambda: driver.write(extent, np.zeros(64, np.uint8)),
            lambda: driver.submit([]),
            lambda: driver.build(affine(64)),
            lambda: driver.synchronize(),
        ):
            with pytest.raises(DeviceLost, match="closed"):
                action()
        driver.release(extent.block)

    def test_everything_is_let_go(self) -> None:
        _, _, driver = open_first()
        context = weakref.ref(driver._opened.context)
        run_affine(driver, np.zeros(64, np.float32))
        driver.close()
        gc.collect()
        assert driver.live() == (0, 0, 0)
        assert context() is None
