"""A cluster of a head and two nodes: the calls of a `Runtime`, on devices of other machines."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from anygpu.fleet.fleet import plain_address
from tests.support.ray_processes import RayProcesses

Floats = npt.NDArray[np.float32]

FIRST, SECOND = "opencl:0@node-1", "opencl:0@node-2"


def wave(x: Floats) -> Floats:
    return np.tanh(x) * 2 + 1


def values(size: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).random(size, np.float32)


# -- which devices there are


def test_every_machine_is_probed_and_named(fleet: Fleet) -> None:
    names = [device.id for device in fleet.devices()]
    assert {"numpy", "opencl:0", FIRST, SECOND} <= set(names)
    # The head is the machine that this process is on: its devices are the local ones.
    assert not any(name.endswith("@head") for name in names)
    assert sorted(node.name for node in fleet.nodes()) == ["head", "node-1", "node-2"]
    assert {device.node for device in fleet.devices()} == {None, "node-1", "node-2"}


def test_ray_is_not_loaded_here(fleet: Fleet) -> None:
    fleet.run(wave, values(10), on=FIRST)
    assert "ray" not in sys.modules


def test_a_device_that_nobody_has_is_refused_with_reasons(fleet: Fleet) -> None:
    with pytest.raises(ag.DeviceUnavailable, match="node-9"):
        fleet.run(wave, values(10), on="opencl@node-9", fallback="raise")


# -- calls


@pytest.mark.parametrize("size", [1, 2048, 30_000, 500_000, 3_000_000])
def test_a_call_there_computes_what_numpy_does(fleet: Fleet, size: int) -> None:
    given = values(size)
    result = fleet.run(wave, given, on=FIRST)
    np.testing.assert_allclose(result.value, wave(given), rtol=1e-5)
    assert result.value.flags.writeable
    receipt = result.receipt
    assert receipt.device == FIRST
    assert receipt.node == "node-1"
    assert receipt.asks >= 1
    assert 8 * size <= receipt.network_bytes <= 8 * size + 5_000
    assert receipt.bytes_to_device == 4 * size


def test_a_call_here_says_so(fleet: Fleet) -> None:
    receipt = fleet.run(wave, values(10), on="numpy").receipt
    assert (receipt.node, receipt.network_bytes, receipt.asks) == (None, 0, 0)


def test_a_receipt_can_be_written_and_read(fleet: Fleet) -> None:
    receipt = fleet.run(wave, values(10), on=FIRST).receipt
    assert ag.Receipt.from_json(receipt.to_json()) == receipt


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize(
    ("on", "expected"), [("@node-2", {SECOND}), ("fleet", {FIRST, SECOND}), ("opencl@node-1", {FIRST})]
)
def test_what_on_means(fleet: Fleet, on: str, expected: set[str]) -> None:
    assert fleet.run(wave, values(100), on=on).receipt.device in expected


def test_an_id_without_a_machine_is_the_local_device(fleet: Fleet) -> None:
    assert fleet.run(wave, values(100), on="opencl:0").receipt.device == "opencl:0"


def test_many_calls_become_launches_on_both_machines(fleet: Fleet) -> None:
    given = [values(2048, seed) for seed in range(600)]
    outcomes = fleet.map(wave, given, on="fleet")
    for outcome, each in zip(outcomes, given, strict=True):
        np.testing.assert_allclose(outcome.value, wave(each), rtol=1e-5)
    receipts = [outcome.receipt for outcome in outcomes]
    assert all(receipt is not None and receipt.node in ("node-1", "node-2") for receipt in receipts)
    assert any(receipt is not None and receipt.how is not None for receipt in receipts), "none was batched"


def test_submitted_and_awaited(fleet: Fleet) -> None:
    async def several() -> list[Floats]:
        return await asyncio.gather(*[fleet.submit(wave, values(50, seed), on=SECOND) for seed in range(5)])

    for seed, value in enumerate(asyncio.run(several())):
        np.testing.assert_allclose(value, wave(values(50, seed)), rtol=1e-5)


def test_the_users_own_error_is_raised(fleet: Fleet) -> None:
    def broken(x: Floats) -> Floats:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fleet.run(broken, values(10), on=FIRST)


def test_a_programs_own_error_is_raised(fleet: Fleet) -> None:
    def singular(x: Floats) -> Floats:
        return np.linalg.solve(x, x)

    with pytest.raises(np.linalg.LinAlgError):
        fleet.run(singular, np.zeros((3, 3), np.float32), on=FIRST)


def test_deadlines_and_priorities_are_those_of_a_runtime(fleet: Fleet) -> None:
    future = fleet.submit(wave, values(10), on=FIRST, priority=5, deadline=60, tenant="default")
    np.testing.assert_allclose(future.result(60), wave(values(10)), rtol=1e-5)
    assert any(lane.device == FIRST and lane.done > 0 for lane in fleet.health().lanes)


# -- predictions


@pytest.mark.software_devices("a call that names no device has candidates that compute on the processor")
def test_explain_shows_what_the_network_takes(fleet: Fleet) -> None:
    plan = fleet.explain(lambda x: np.sqrt(x) + 1, values(100_000))
    far, near = plan.candidate(FIRST), plan.candidate("opencl:0")
    assert far is not None
    assert near is not None
    assert near.network_seconds is None
    assert far.network_seconds is not None
    assert 1e-4 < far.network_seconds <= far.seconds
    assert "network" in str(plan)


def test_a_small_call_stays_here(fleet: Fleet) -> None:
    plan = fleet.explain(lambda x: x + 1, values(1000))
    assert ag.fleet.Fleet is Fleet
    assert plan.candidates[0].device in ("numpy", "opencl:0")


# -- arrays that stay there


def test_arrays_stay_on_their_machine_and_calls_go_to_them(fleet: Fleet) -> None:
    there = ag.asarray(values(500_000), device=FIRST)
    assert there.device == FIRST
    result = fleet.run(wave, there)
    assert result.receipt.device == FIRST
    assert result.receipt.bytes_skipped >= 4_000_000
    assert result.receipt.network_bytes < 5_000
    assert isinstance(result.value, ag.Array if hasattr(ag, "Array") else type(there))
    np.testing.assert_allclose(np.asarray(result.value), wave(values(500_000)), rtol=1e-5)


def test_a_store_keeps_its_tensors_on_their_machine(fleet: Fleet) -> None:
    with ag.Store(device=SECOND) as store:
        tensor = store.put("weights", values(100_000))
        result = fleet.run(lambda x: (x * 3).sum(), tensor)
        assert result.receipt.node == "node-2"
        assert result.receipt.network_bytes < 5_000


# -- connecting


@pytest.mark.parametrize(
    ("given", "plain"), [("auto", "auto"), ("ray://auto", "auto"), ("10.0.0.1:6379", "10.0.0.1:6379")]
)
def test_addresses(given: str, plain: str) -> None:
    assert plain_address(given) == plain


@pytest.mark.parametrize("given", ["", "10.0.0.1", "ray://10.0.0.1:10001", "host:port"])
def test_addresses_that_are_none(given: str) -> None:
    with pytest.raises(ag.InvalidOption, match="host and the port"):
        plain_address(given)


def test_no_cluster_there() -> None:
    with pytest.raises(ag.errors.ClusterUnavailable, match=r"127\.0\.0\.1:1 .*ray status"):
        ag.fleet.connect("127.0.0.1:1", insecure=True)


def test_without_ray_the_command_is_named() -> None:
    code = """
import sys
sys.modules["ray"] = None
import anygpu as ag
try:
    ag.fleet.connect("127.0.0.1:1")
except ag.MissingExtra as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "pip install ray grpcio" in said


def test_without_local_devices_only_numpy_is_here(cluster: RayProcesses) -> None:
    with ag.fleet.connect(cluster.address, devices="numpy@node-1", local=False, insecure=True) as remote:
        assert [device.id for device in remote.devices()] == ["numpy", "numpy@node-1"]
        given = values(1000)
        result = remote.run(wave, given, on="fleet")
        np.testing.assert_allclose(result.value, wave(given), rtol=1e-6)
        assert result.receipt.device == "numpy@node-1"
    with pytest.raises(ag.errors.RuntimeClosed):
        remote.submit(wave, given)


@pytest.mark.full
def test_a_machine_with_another_version_is_left_out(cluster: RayProcesses, tmp_path: Path) -> None:
    """It computes other values, which only its version tells."""
    shutil.copytree(Path(ag.__file__).parent, tmp_path / "anygpu", ignore=shutil.ignore_patterns("__pycache__"))
    version = tmp_path / "anygpu" / "base" / "version.py"
    assert "__version__" in version.read_text()
    version.write_text('__version__ = "0.0.9"\n')
    functions = tmp_path / "anygpu" / "program" / "functions.py"
    text, row = functions.read_text(), '_Row("sinh", _INEXACT, "slow monotone angle near", '
    assert row in text
    functions.write_text(text.replace(row, f'{row}numpy="cosh", '))
    cluster.add("old", env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        with (
            pytest.warns(UserWarning, match=rf"Devices of old are not used.*pip install 'anygpu=={ag.__version__}'"),
            ag.fleet.connect(cluster.address, devices="numpy@old", insecure=True) as fleet,
            pytest.raises(ag.DeviceUnavailable, match=r"old has anygpu 0\.0\.9"),
        ):
            fleet.run(np.sinh, values(5), on="numpy@old", fallback="raise")
        with ag.fleet.connect(cluster.address, devices="numpy@old", insecure=True, other_versions=True) as fleet:
            result = fleet.run(np.sinh, values(5), on="numpy@old")
        np.testing.assert_allclose(result.value, np.cosh(values(5)), rtol=1e-6)
    finally:
        cluster.remove("old")
