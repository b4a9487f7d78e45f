"""The WebGPU driver on a real adapter: bytes in and out, copies, kernels, time and counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.driver import Clear, Command, Dispatch, Driver, Extent, Move
from anygpu.engines.webgpu import encoder, pipelines
from anygpu.engines.webgpu.engine import WebGPUDriver, WebGPUEngine
from anygpu.engines.webgpu.pipelines import complaint_of_naga
from anygpu.errors import DeviceLost, InvalidProgram, TooBig, Unsupported
from tests.engines.webgpu_kernels import (
    ODD_SIZES,
    add_kernel,
    adding,
    count_kernel,
    first_device,
    get,
    opened,
    put,
    random_bytes,
    room,
    spin_kernel,
    whole,
    words,
)


@pytest.fixture(scope="module")
def driver() -> Iterator[WebGPUDriver]:
    with opened() as one:
        yield one


def test_it_is_a_driver(driver: WebGPUDriver) -> None:
    seam: Driver = driver
    assert seam.target.dialect == "wgsl"
    assert seam.alignment in (32, 64, 128, 256)


# Bytes


@pytest.mark.parametrize("nbytes", [0, *ODD_SIZES])
def test_what_was_written_is_read(driver: WebGPUDriver, nbytes: int) -> None:
    extent = whole(driver.allocate(nbytes), nbytes)
    data = random_bytes(nbytes, seed=nbytes)
    driver.write(extent, data)
    np.testing.assert_array_equal(driver.read(extent), data)


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 5, 63, 64, 255, 257])
@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 7, 64, 65, 1025])
def test_odd_offsets_keep_what_comes_before(driver: WebGPUDriver, offset: int, nbytes: int) -> None:
    block = driver.allocate(2048)
    expected = random_bytes(2048)
    driver.write(whole(block, 2048), expected)
    data = random_bytes(nbytes, seed=1)
    driver.write(Extent(block, offset, nbytes), data)
    expected[offset : offset + nbytes] = data
    end = offset + nbytes
    np.testing.assert_array_equal(driver.read(Extent(block, 0, end)), expected[:end])
    np.testing.assert_array_equal(driver.read(Extent(block, offset, nbytes)), data)
    # The rest of the last word belongs to the extent; what is behind it does not.
    behind = -(-end // 4) * 4
    np.testing.assert_array_equal(driver.read(Extent(block, behind, 2048 - behind)), expected[behind:])


def test_data_that_cannot_be_written_to_or_is_not_contiguous(driver: WebGPUDriver) -> None:
    frozen = np.frombuffer(bytes(range(200)), np.uint8)
    extent = whole(driver.allocate(200), 200)
    driver.write(extent, frozen)
    np.testing.assert_array_equal(driver.read(extent), frozen)
    driver.write(extent, np.repeat(frozen, 3)[::3])
    np.testing.assert_array_equal(driver.read(extent), frozen)


def test_data_may_be_reused_after_write(driver: WebGPUDriver) -> None:
    data = random_bytes(1 << 20)
    extent = whole(driver.allocate(data.nbytes), data.nbytes)
    expected = data.copy()
    driver.write(extent, data)
    data[:] = 0
    np.testing.assert_array_equal(driver.read(extent), expected)
    driver.release(extent.block)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_transfers_of_several_pieces(driver: WebGPUDriver, extra: int) -> None:
    nbytes = encoder.DOWNLOAD_BATCH + encoder.UPLOAD_PIECE // 2 + extra
    data = random_bytes(nbytes)
    extent = whole(driver.allocate(nbytes), nbytes)
    driver.write(extent, data)
    np.testing.assert_array_equal(driver.read(extent), data)
    driver.release(extent.block)
    assert driver.live().staging_bytes <= encoder.KEPT_BYTES


def test_many_extents_are_read_with_one_submission(driver: WebGPUDriver) -> None:
    extents = [whole(driver.allocate(size), size) for size in (0, *ODD_SIZES)]
    contents = [random_bytes(extent.nbytes, seed) for seed, extent in enumerate(extents)]
    for extent, content in zip(extents, contents, strict=True):
        driver.write(extent, content)
    before = driver.counters.submits
    read = driver.read_many(extents)
    assert driver.counters.submits == before + 1
    for content, result in zip(contents, read, strict=True):
        np.testing.assert_array_equal(result, content)


def test_results_can_be_written_to_and_stay(driver: WebGPUDriver) -> None:
    extent = put(driver, words(100))
    first = get(driver, extent)
    kept = first.copy()
    driver.write(extent, np.zeros(400, np.uint8))
    assert not get(driver, extent).any()
    np.testing.assert_array_equal(first, kept)
    first[:] = 1


# Copies and clears


@pytest.mark.parametrize("count", [1, 2, 64, 257])
def test_move_and_clear(driver: WebGPUDriver, count: int) -> None:
    source = put(driver, words(count))
    target = put(driver, words(count + 2, seed=1))
    expected = words(count + 2, seed=1)
    expected[2:] = words(count)
    expected[0] = 0
    driver.submit([Move(source, Extent(target.block, 8, 4 * count)), Clear(Extent(target.block, 0, 4))])
    np.testing.assert_array_equal(get(driver, target), expected)


def test_moves_inside_of_one_block_may_overlap(driver: WebGPUDriver) -> None:
    values = words(100)
    extent = put(driver, values)
    driver.submit([Move(Extent(extent.block, 0, 320), Extent(extent.block, 80, 320))])
    np.testing.assert_array_equal(get(driver, extent), np.concatenate([values[:20], values[:80]]))


def test_nothing_is_moved_or_cleared(driver: WebGPUDriver) -> None:
    extent = put(driver, words(4))
    nothing = Extent(extent.block, 0, 0)
    driver.submit([Clear(nothing), Move(nothing, nothing)])
    driver.submit([])
    np.testing.assert_array_equal(get(driver, extent), words(4))


# Kernels


@pytest.mark.parametrize("count", [0, *ODD_SIZES])
def test_a_kernel_at_odd_sizes(driver: WebGPUDriver, count: int) -> None:
    source, target = put(driver, words(count)), room(driver, count)
    driver.submit([adding(driver, source, target, 7)])
    np.testing.assert_array_equal(get(driver, target), words(count) + np.uint32(7))


def test_commands_keep_their_order_in_one_submission(driver: WebGPUDriver) -> None:
    x, y, z = put(driver, words(300)), room(driver, 300), room(driver, 300)
    count = Dispatch(driver.build(count_kernel(300)), (z,))
    commands: list[Command] = [
        Clear(z),
        count,
        adding(driver, x, y, 1),
        Move(y, z),
        count,
        count,
        adding(driver, z, y, 5),
    ]
    before = driver.counters.submits
    driver.submit(commands)
    assert driver.counters.submits == before + 1
    expected = words(300) + 1 + 2 * np.arange(300, dtype=np.uint32) + 5
    np.testing.assert_array_equal(get(driver, y), expected)


def test_writes_are_in_order_with_submissions(driver: WebGPUDriver) -> None:
    x, y, z = room(driver, 50), room(driver, 50), room(driver, 50)
    driver.write(x, words(50, seed=1).view(np.uint8))
    driver.submit([adding(driver, x, y, 1)])
    driver.write(x, words(50, seed=2).view(np.uint8))
    driver.submit([adding(driver, x, z, 1)])
    driver.write(x, np.zeros(200, np.uint8))
    results = driver.read_many([y, z, x])
    np.testing.assert_array_equal(results[0].view(np.uint32), words(50, seed=1) + 1)
    np.testing.assert_array_equal(results[1].view(np.uint32), words(50, seed=2) + 1)
    assert not results[2].any()


def test_fifty_kernels_in_one_submission_and_nothing_new_the_second_time(driver: WebGPUDriver) -> None:
    chain = [put(driver, words(1000)), *(room(driver, 1000) for _ in range(50))]
    commands = [adding(driver, chain[i], chain[i + 1], i) for i in range(50)]
    driver.submit(commands)
    np.testing.assert_array_equal(get(driver, chain[-1]), words(1000) + np.uint32(sum(range(50))))
    before, held = driver.counters.submits, driver.live()
    dispatches, allocations, compilations = (
        driver.counters.dispatches,
        driver.counters.allocations,
        driver.counters.compilations,
    )
    driver.submit(commands)
    assert driver.counters.submits == before + 1
    assert driver.counters.dispatches == dispatches + 50
    assert (driver.counters.allocations, driver.counters.compilations) == (allocations, compilations)
    assert driver.live() == held


def test_more_numbers_than_the_table_holds(driver: WebGPUDriver) -> None:
    x, y = put(driver, words(3)), room(driver, 3)
    built = driver.build(add_kernel(3))
    sets = pipelines.TABLE_BYTES // 32 + 10
    driver.submit([Dispatch(built, (x, y), (0, amount)) for amount in range(sets)])
    np.testing.assert_array_equal(get(driver, y), words(3) + np.uint32(sets - 1))
    driver.submit([Dispatch(built, (x, y), (0, 17))])
    np.testing.assert_array_equal(get(driver, y), words(3) + np.uint32(17))


def test_groups_are_folded_past_the_limit_of_one_dimension(driver: WebGPUDriver) -> None:
    count = 65535 * 256 + 1
    extent = room(driver, count)
    driver.submit([Clear(extent), Dispatch(driver.build(count_kernel(count, group_size=256)), (extent,))])
    np.testing.assert_array_equal(get(driver, extent), np.arange(count, dtype=np.uint32))
    driver.release(extent.block)


def test_windows_of_a_block_past_the_binding_limit(driver: WebGPUDriver) -> None:
    window = driver.target.binding_bytes
    nbytes = min(600_000_000, 5 * window) // 4 * 4
    block = driver.allocate(nbytes)
    commands: list[Command] = [Clear(whole(block, nbytes))]
    for first in range(0, nbytes, window):
        size = min(window, nbytes - first)
        kernel = count_kernel(size // 4, group_size=256, start=first // 4)
        commands.append(Dispatch(driver.build(kernel), (Extent(block, first, size),)))
    driver.submit(commands)
    borders = [edge for edge in range(0, nbytes, window) if edge] + [64, nbytes - 64]
    around = driver.read_many([Extent(block, edge - 64, 128) for edge in borders])
    for edge, part in zip(borders, around, strict=True):
        begin = (edge - 64) // 4
        np.testing.assert_array_equal(part.view(np.uint32), np.arange(begin, begin + 32, dtype=np.uint32))
    driver.release(block)


def test_a_bound_extent_may_begin_inside_of_its_block(driver: WebGPUDriver) -> None:
    step = driver.alignment
    block = driver.allocate(4 * step)
    driver.write(whole(block, 4 * step), np.zeros(4 * step, np.uint8))
    target = put(driver, words(step // 4))
    driver.submit([adding(driver, Extent(block, 2 * step, step), target, 9)])
    assert (get(driver, target) == 9).all()
    with pytest.raises(ValueError, match="cannot be bound"):
        driver.submit([adding(driver, Extent(block, step + 4, 4), target, 9)])


# What is refused


def test_more_than_a_buffer_can_be_is_too_big(driver: WebGPUDriver) -> None:
    before = driver.counters.allocations
    with pytest.raises(TooBig) as caught:
        driver.allocate(1 << 40)
    assert caught.value.requested == 1 << 40
    assert caught.value.limit is not None
    assert caught.value.limit < 1 << 40
    assert driver.counters.allocations == before


def test_more_than_a_binding_can_see_is_too_big(driver: WebGPUDriver) -> None:
    limit = driver.target.binding_bytes
    block = driver.allocate(limit + 1024)
    with pytest.raises(TooBig):
        driver.submit([Dispatch(driver.build(count_kernel(10)), (whole(block, limit + 4),))])
    driver.release(block)
    driver.synchronize()


def test_kernels_past_the_limits_are_unsupported(driver: WebGPUDriver) -> None:
    with pytest.raises(Unsupported, match="invocations in a group"):
        driver.build(count_kernel(10, group_size=driver.target.group_limit + 1))
    with pytest.raises(Unsupported, match="groups of the kernel"):
        driver.build(count_kernel(65536 * 65536, group_size=1))


@pytest.mark.parametrize("fault", ["text", "type", "binding", "entry"])
def test_a_bad_shader_says_what_the_compiler_said(driver: WebGPUDriver, fault: str) -> None:
    good = count_kernel(10)
    changed = {
        "text": ("this is not a shader", "count"),
        "type": (good.source.replace("y[i] + i", "y[i] + 1.5"), "count"),
        "binding": (good.source.replace("binding(0)", "binding(3)"), "count"),
        "entry": (good.source, "elsewhere"),
    }
    source, name = changed[fault]
    bad = Kernel(name=name, source=source, bindings=good.bindings, groups=1, group_size=64)
    before = driver.counters.compilations
    with pytest.raises(InvalidProgram, match=f"the kernel {name} does not compile") as caught:
        driver.build(bad)
    assert len(str(caught.value).splitlines()) >= 2
    assert driver.counters.compilations == before
    extent = room(driver, 10)
    driver.submit([Clear(extent), Dispatch(driver.build(good), (extent,))])
    np.testing.assert_array_equal(get(driver, extent), np.arange(10, dtype=np.uint32))


def test_a_mistake_in_a_submission_leaves_the_device_as_it_was(driver: WebGPUDriver) -> None:
    x, y = put(driver, words(10)), put(driver, words(10, seed=1))
    good = adding(driver, x, y, 1)
    gone = driver.allocate(40)
    driver.release(gone)
    for bad in (
        Dispatch(good.built, (x,), (0, 1)),
        Dispatch(good.built, (x, x), (0, 1)),
        Dispatch(good.built, (whole(gone, 40), y), (0, 1)),
        Move(x, Extent(y.block, 0, 20)),
        Move(Extent(x.block, 0, 4000), Extent(y.block, 0, 4000)),
        Clear(whole(gone, 40)),
    ):
        with pytest.raises(Exception, match=r".") as caught:
            driver.submit([good, bad])
        assert not isinstance(caught.value, DeviceLost)
        np.testing.assert_array_equal(get(driver, y), words(10, seed=1))
    with pytest.raises(ValueError, match="released"):
        driver.read(whole(gone, 40))
    driver.submit([good])
    np.testing.assert_array_equal(get(driver, y), words(10) + 1)


# Time


def test_device_time_is_inside_of_wall_time(driver: WebGPUDriver) -> None:
    extent = room(driver, 64 * 128)
    spin = Dispatch(driver.build(spin_kernel(128, 2000)), (extent,), (0,))
    driver.submit([spin])
    driver.synchronize()
    clear = Clear(extent)
    timed: list[list[Command]] = [[spin], [clear, spin], [spin, clear], [clear, spin, clear, spin]]
    for commands in timed:
        shares: list[float] = []
        # On a busy machine a round may wait longer than it runs, and some do not.
        while max(shares, default=0.0) <= 1 / 4:
            assert len(shares) < 100, shares
            begin = time.perf_counter()
            driver.submit(commands, timed=True)
            driver.synchronize()
            wall = time.perf_counter() - begin
            measured = driver.device_seconds()
            assert measured is not None
            assert 0 < measured < wall
            shares.append(measured / wall)


def test_device_time_is_of_the_last_submission_that_was_timed(driver: WebGPUDriver) -> None:
    extent = room(driver, 64 * 256)
    long = Dispatch(driver.build(spin_kernel(256, 5000)), (extent,), (0,))
    short = Clear(extent)
    driver.submit([long], timed=True)
    first = driver.device_seconds()
    driver.submit([short], timed=True)
    second = driver.device_seconds()
    driver.submit([long])
    assert driver.device_seconds() == second
    assert first is not None
    assert second is not None
    assert second < first


def test_without_a_clock_there_is_no_device_time_and_pace_is_learned_all_the_same() -> None:
    engine = WebGPUEngine()
    plain = engine._views[first_device(engine).id][0].request_device_sync(required_features=[])
    driver = WebGPUDriver(plain, device_id="webgpu:0", software=True)
    x, y = put(driver, words(6400)), room(driver, 6400)
    launch = Dispatch(driver.build(add_kernel(6400, flops=3e9)), (x, y), (0, 1))
    dispatches = []
    for _ in range(2):
        before = driver.counters.dispatches
        driver.submit([launch], timed=True)
        dispatches.append(driver.counters.dispatches - before)
        np.testing.assert_array_equal(get(driver, y), words(6400) + 1)
        assert driver.device_seconds() is None
    assert dispatches[1] < dispatches[0]
    driver.close()


def test_a_submission_that_fails_is_not_timed(driver: WebGPUDriver) -> None:
    extent = room(driver, 64)
    driver.submit([Clear(extent)], timed=True)
    seconds = driver.device_seconds()
    with pytest.raises(ValueError, match="cannot be moved"):
        driver.submit([Clear(extent), Move(extent, Extent(extent.block, 0, 4))], timed=True)
    assert driver.device_seconds() == seconds


def test_waiting_lets_other_threads_run(driver: WebGPUDriver) -> None:
    extent = room(driver, 64 * 128)
    spin = Dispatch(driver.build(spin_kernel(128, 5000)), (extent,), (0,))
    steps = 0
    done = threading.Event()

    def count() -> None:
        nonlocal steps
        while not done.is_set():
            steps += 1

    driver.submit([spin])
    other = threading.Thread(target=count)
    other.start()
    driver.synchronize()
    done.set()
    other.join()
    assert steps > 1000


# Long kernels


def test_a_long_kernel_is_cut_and_the_parts_cover_it_once(driver: WebGPUDriver) -> None:
    count = 64 * 1000
    x, y = put(driver, words(count)), room(driver, count)
    # Guessed to take seconds, so that it is cut, although it is short.
    built = driver.build(add_kernel(count, flops=3e9))
    submits, dispatches = driver.counters.submits, driver.counters.dispatches
    driver.submit([Clear(y), Dispatch(built, (x, y), (0, 3)), Dispatch(built, (y, x), (0, 3))])
    assert driver.counters.dispatches - dispatches > 20
    # Each part alone: watchdogs count submissions.
    assert driver.counters.submits - submits >= driver.counters.dispatches - dispatches
    np.testing.assert_array_equal(get(driver, y), words(count) + 3)
    np.testing.assert_array_equal(get(driver, x), words(count) + 6)
    # What was measured is not guessed again. A part that met a busy moment of the machine tells more than it takes.
    dispatches = driver.counters.dispatches
    driver.submit([Dispatch(built, (x, y), (0, 3))])
    assert driver.counters.dispatches - dispatches < 10
    np.testing.assert_array_equal(get(driver, y), words(count) + 9)


def test_no_part_of_a_long_kernel_runs_much_longer_than_it_should() -> None:
    with opened() as driver:
        groups, turns = 256, 6000
        extent = room(driver, 64 * groups)
        built = driver.build(spin_kernel(groups, turns, flops=64.0 * groups * turns * 3))
        launch = Dispatch(built, (extent,), (0,))
        each: list[float] = []
        # The least counts: whatever else ran meanwhile made the others longer.
        while min(each, default=1.0) >= 0.3:
            assert len(each) < 30, each
            dispatches = driver.counters.dispatches
            driver.submit([launch], timed=True)
            total = driver.device_seconds()
            assert total
            each.append(total / (driver.counters.dispatches - dispatches))
        assert (get(driver, extent) == turns).all()


# The end


def test_after_close_nothing_works_and_nothing_is_held() -> None:
    with opened() as driver:
        extent = put(driver, words(10))
        driver.submit([adding(driver, extent, room(driver, 10), 1)])
        driver.close()
        driver.close()
        assert driver.live() == (0, 0, 0, 0, 0)
        driver.release(extent.block)
        for call in (
            lambda: driver.allocate(4),
            lambda: driver.write(extent, np.zeros(40, np.uint8)),
            lambda: driver.read(extent),
            lambda: driver.build(count_kernel(1)),
            lambda: driver.submit([]),
            driver.device_seconds,
            driver.synchronize,
        ):
            with pytest.raises(DeviceLost, match="closed"):
                call()


def test_words_of_naga() -> None:
    words = (
        "Validation Error\n\nCaused by:\n  In wgpuDeviceCreateShaderModule\n\nShader '' parsing error: expected "
        'expression, found ";"\n  ┌─ wgsl:3:11\n  │\n3 │   let x = ;\n  │           ^ expected expression\n\n'
    )
    found = complaint_of_naga("mine", words)
    assert (found.kernel, found.line, found.column) == ("mine", 3, 11)
    assert 'mine, line 3, column 11: expected expression, found ";"' in str(found)
    assert "Validation Error" not in str(found)
    assert complaint_of_naga("mine", "something else").line is None
