"""What torch or jax refuses to compile or to run, whatever its error, runs on NumPy; what a user did wrong raises."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.trace.tracing import record
from anygpu.receipts.receipt import host_operations
from anygpu.workers.device_arrays.registry import registry

X = np.linspace(0.1, 1.0, 71, dtype=np.float32)


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("an internal check of the library failed")


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("when", ["compiling", "running"])
def test_an_error_of_the_library_is_a_refusal(engine: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which sends a call to the next device, and an array's computation to the host."""
    lowering = importlib.import_module(f"anygpu.engines.{engine}.{'lowering' if engine == 'torch' else 'engine'}")
    if when == "running":
        executable = lowering.TorchExecutable if engine == "torch" else lowering.JaxExecutable
        monkeypatch.setattr(executable, "run", broken)
    elif engine == "torch":
        monkeypatch.setattr(lowering, "compile_program", broken)
    else:
        monkeypatch.setattr(lowering, "_function", broken)
    factor = {"compiling": 2.5, "running": 3.5}[when]

    def score(x: Any) -> Any:
        return np.exp(x) * factor

    place = registry.find(engine)
    with pytest.raises(ag.errors.CannotCompile, match="an internal check of the library failed"):
        place.worker.run(record(score, X), [X])
    with host_operations() as hosted:
        got = np.asarray(score(ag.asarray(X, device=engine)))
    np.testing.assert_array_equal(got, score(X))
    assert [each.reason for each in hosted] == [f"{place.device} cannot compile it"]


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_an_error_of_the_user_is_raised(engine: str) -> None:
    with pytest.raises(np.linalg.LinAlgError):
        np.asarray(np.linalg.inv(ag.asarray(np.zeros((3, 3)), device=engine)))


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_constant_is_one_on_both_sides_of_what_runs_on_the_host(engine: str) -> None:
    """A complex square is computed on the device, and a sine on the host; both squares have one exponent."""
    z = np.array([1 + 2j, -0.5j, 3.0])

    def squares(z: Any) -> Any:
        return np.power(np.arctanh(np.power(z, 5)), 5)

    with host_operations() as hosted:
        got = np.asarray(squares(ag.asarray(z, device=engine)))
    np.testing.assert_allclose(got, squares(z), rtol=1e-12)
    assert {each.operation for each in hosted} == ({"atanh"} if engine == "jax" else set())
