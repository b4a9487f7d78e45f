"""A receipt of one run on a place: what the driver did, and that the steady state does nothing new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.array.tracing import record
from anygpu.receipts import Receipt
from anygpu.runtime.measuring import run_with_receipt
from anygpu.runtime.places import Places


def score(x: Any) -> Any:
    return np.tanh(x).mean(axis=0)


@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_the_steady_state_allocates_and_compiles_nothing(engine: str) -> None:
    places = Places()
    place = places.find(engine)
    x = np.linspace(-1, 1, 200, dtype=np.float32).reshape(20, 10)
    program = record(score, x)
    buffers = [place.upload(x)]
    _, first = run_with_receipt(place, program, buffers, task="score")
    for _ in range(3):
        results, receipt = run_with_receipt(place, program, buffers, task="score")
    assert first.driver is not None
    assert first.driver.compilations >= 1
    assert receipt.driver is not None
    assert (receipt.driver.allocations, receipt.driver.compilations) == (0, 0)
    # One for the work, and one where the device's clock has to be fetched.
    assert receipt.driver.submits <= 2
    assert receipt.kernels == receipt.driver.dispatches >= 1
    assert receipt.device_seconds is not None
    assert receipt.device_seconds > 0
    assert receipt.peak_bytes is not None
    assert receipt.bytes_to_host == 0
    assert Receipt.from_json(receipt.to_json()) == receipt
    np.testing.assert_allclose(place.download(results[0]), score(x), atol=1e-6)
    places.close()


def test_an_engine_that_does_not_count_says_so() -> None:
    place = Places().find("numpy")
    x = np.ones((3, 4))
    results, receipt = run_with_receipt(place, record(score, x), [place.upload(x)])
    assert receipt.driver is None
    assert receipt.unknown["device_seconds"]
    np.testing.assert_allclose(results[0], score(x))
