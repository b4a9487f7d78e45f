"""A fleet behind a server: requests of a public client are computed on another machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as triton

from anygpu.fleet import Fleet
from benchmarks.serving_client import Connection, http_request
from tests.fleet.test_fleet import FIRST, values, wave


@pytest.mark.full
def test_requests_are_computed_on_another_machine(fleet: Fleet) -> None:
    before = {lane.device: lane.done for lane in fleet.health().lanes}
    with fleet.server({"wave": wave}, port=0, on=FIRST, notice=0.0, examples={"wave": (values(64),)}) as server:

        def ask(number: int) -> bool:
            with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
                given = triton.InferInput("x", [64], "FP32")
                given.set_data_from_numpy(values(64, number))
                found = client.infer("wave", [given]).as_numpy("output")
                return np.allclose(found, wave(values(64, number)), rtol=1e-5)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(40)))
        with Connection(server.port) as connection:
            assert connection.ask(http_request("/v2/health/ready", method="GET")).status == 200
            metrics = connection.ask(http_request("/metrics", method="GET")).body
    assert FIRST.encode() in metrics
    done = {lane.device: lane.done for lane in fleet.health().lanes}
    assert done[FIRST] - before.get(FIRST, 0) >= 41
    # The fleet is the caller's, and goes on.
    assert server.finished
    assert fleet.run(wave, values(10), on=FIRST).receipt.node == "node-1"
