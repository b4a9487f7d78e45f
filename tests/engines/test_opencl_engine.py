"""The OpenCL engine's own parts: opening, errors by code, sub-devices."""

from __future__ import annotations

import msgspec
import numpy as np
import pyopencl as cl
import pytest

from anygpu.engines.driver import Dispatch, Extent
from anygpu.engines.opencl import device
from anygpu.engines.opencl.device import VARIABLE, Partition, read_partition
from anygpu.engines.opencl.engine import OpenCLDriver, OpenCLEngine
from anygpu.errors import AnyGPUError, DeviceLost, InvalidOption, InvalidProgram, OutOfMemory, TooBig
from anygpu.hardware.device import Device, Unavailable
from tests.engines.opencl_kernels import affine, open_first, room, whole


def library_error(name: str) -> cl.Error:
    return cl.RuntimeError(cl._cl._ErrorRecord(msg="", code=getattr(cl.status_code, name), routine="clSomething"))


class TestTarget:
    def test_what_kernels_must_know_of_the_device(self) -> None:
        engine, device, driver = open_first()
        target = driver.target
        assert target.dialect == "opencl"
        assert set(target.features) == set(device.features) & {"f16", "f64", "i64", "subgroups"}
        assert target.group_limit == device.limits["max-compute-invocations-per-workgroup"]
        assert target.group_memory == device.limits["max-compute-workgroup-storage-size"]
        assert target.binding_bytes == device.limits["max-buffer-size"]
        assert target.groups_per_dimension is None
        assert target.loop_limit >= 1 << 30
        assert target.bindings >= 32
        assert driver.alignment == device.limits["min-storage-buffer-offset-alignment"]
        driver.close()
        engine.close()

    def test_as_many_bindings_as_it_says_with_an_offset_each(self) -> None:
        engine, _, driver = open_first()
        count = driver.target.bindings
        kernel = affine(64, name="many")
        buffers = ", ".join(f"__global const float *x{number}" for number in range(count - 1))
        numbers = ", ".join(f"uint offset_{number}" for number in range(count))
        terms = " + ".join(f"x{number}[offset_{number} + i]" for number in range(count - 1))
        kernel = msgspec.structs.replace(
            kernel,
            source=f"""\
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void many({buffers}, __global float *y, uint first_group, {numbers}) {{
    const size_t i = get_local_id(0);
    y[i] = {terms};
}}
""",
            bindings=(kernel.bindings[0],) * (count - 1) + (kernel.bindings[1],),
            numbers=("first_group", *(f"offset_{number}" for number in range(count))),
        )
        source, target = whole(driver, np.arange(128, dtype=np.float32)), room(driver, 256)
        offsets = tuple(number % 64 for number in range(count))
        driver.submit([Dispatch(driver.build(kernel), (source,) * (count - 1) + (target,), (0, *offsets))])
        expected = np.arange(64) * (count - 1) + sum(offsets[:-1])
        np.testing.assert_array_equal(driver.read(target).view(np.float32), expected)
        driver.close()
        engine.close()

    def test_memory_of_the_host_is_recognised(self) -> None:
        engine, device, driver = open_first()
        assert driver._opened.sharing == ("shared" if device.kind == "cpu" else driver._opened.sharing)
        driver.close()
        engine.close()

    def test_division_and_square_root_are_rounded_as_numpy_rounds_them(self) -> None:
        engine, _, driver = open_first()
        values = np.random.default_rng(0).uniform(1e-3, 1e3, 4096).astype(np.float32)
        kernel = affine(4096, name="rounded")
        source = kernel.source.replace("2.0f * x[i] + 1.0f", "sqrt(x[i]) / (x[i] + 3.0f)")
        assert source != kernel.source
        built = driver.build(msgspec.structs.replace(kernel, source=source))
        block, target = whole(driver, values), room(driver, values.nbytes)
        driver.submit([Dispatch(built, (block, target), (0,))])
        np.testing.assert_array_equal(driver.read(target).view(np.float32), np.sqrt(values) / (values + np.float32(3)))
        driver.close()
        engine.close()


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("MEM_OBJECT_ALLOCATION_FAILURE", OutOfMemory),
            ("OUT_OF_RESOURCES", OutOfMemory),
            ("OUT_OF_HOST_MEMORY", OutOfMemory),
            ("INVALID_BUFFER_SIZE", TooBig),
            ("DEVICE_NOT_AVAILABLE", DeviceLost),
            ("BUILD_PROGRAM_FAILURE", InvalidProgram),
            ("INVALID_KERNEL_NAME", InvalidProgram),
        ],
    )
    def test_each_code_has_its_error(self, name: str, expected: type[AnyGPUError]) -> None:
        assert type(device.classify(library_error(name), "opencl:0", 7)) is expected

    @pytest.mark.parametrize("error", [library_error("INVALID_VALUE"), ValueError("mine"), OutOfMemory("opencl:0")])
    def test_others_are_raised_as_they_are(self, error: BaseException) -> None:
        assert device.classify(error, "opencl:0") is None

    def test_memory_that_python_cannot_get_is_the_devices(self) -> None:
        assert type(device.classify(MemoryError(), "opencl:0")) is OutOfMemory

    def test_the_engine_names_the_device_and_its_limit(self) -> None:
        engine = OpenCLEngine(subdevices="")
        device = engine.discover()[0]
        assert isinstance(device, Device)
        error = engine.classify(library_error("INVALID_BUFFER_SIZE"), device)
        assert isinstance(error, TooBig)
        assert (error.device, error.limit) == (device.id, device.limits["max-buffer-size"])


class TestSubdevices:
    @pytest.mark.parametrize("text", ["", " ", "0"])
    def test_whole_devices(self, text: str) -> None:
        assert read_partition(text) is None

    @pytest.mark.parametrize(
        ("text", "partition"),
        [("2", Partition(equal=2)), ("3,1", Partition(counts=(3, 1))), ("3,", Partition(counts=(3,)))],
    )
    def test_parts(self, text: str, partition: Partition) -> None:
        assert read_partition(text) == partition

    @pytest.mark.parametrize("text", ["two", "-1", "1,,2", ",", "1.5", "2,0"])
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidOption, match=VARIABLE):
            read_partition(text)

    def test_units(self) -> None:
        assert Partition(equal=2).units_of(5) == (2, 2)
        assert Partition(equal=6).units_of(5) is None
        assert Partition(counts=(3, 2)).units_of(5) == (3, 2)
        assert Partition(counts=(3, 3)).units_of(5) is None

    def test_nothing_is_cut_unless_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        assert OpenCLEngine().discover()[0].id == "opencl:0"

    def test_two_parts_compute_side_by_side(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(VARIABLE, "2")
        engine = OpenCLEngine()
        parts = [found for found in engine.discover() if isinstance(found, Device) and found.id.startswith("opencl:0")]
        assert [part.id for part in parts] == ["opencl:0.0", "opencl:0.1"]
        assert len({part.limits["compute-units"] for part in parts}) == 1
        assert all(engine.verify(part).state == "verified" for part in parts)
        values = np.arange(1025, dtype=np.float32)
        running: list[tuple[OpenCLDriver, Extent, Extent]] = []
        for part in parts:
            driver = engine.open(part)
            source, target = whole(driver, values), room(driver, values.nbytes)
            driver.submit([Dispatch(driver.build(affine(1025)), (source, target), (0,))])
            # The source as well: nobody else holds its memory while the kernel reads it.
            running.append((driver, source, target))
        for driver, _, target in running:
            np.testing.assert_array_equal(driver.read(target).view(np.float32), 2 * values + 1)
            driver.close()
        engine.close()

    def test_a_part_alone_leaves_the_rest_free(self) -> None:
        engine, device, driver = open_first(subdevices="1,")
        assert device.id == "opencl:0.0"
        assert device.limits["compute-units"] == 1
        driver.close()
        engine.close()

    def test_too_many_parts_are_an_unusable_device_with_a_fix(self) -> None:
        found = OpenCLEngine(subdevices="100000").discover()[0]
        assert isinstance(found, Unavailable)
        assert found.id == "opencl:0"
        assert VARIABLE in found.reason
        assert VARIABLE in (found.fix or "")
