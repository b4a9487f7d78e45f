"""Models from functions and programs: names, types, and what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption, InvalidProgram
from anygpu.program.wire import to_bytes
from anygpu.runtime.serving.limits import RequestRefused
from anygpu.runtime.serving.models import Model, model_of, models_of

ONES = np.ones((2, 3), np.float32)


def score(x: Any, w: Any, scale: Any = 2.0, *, shift: Any = 0.0) -> Any:
    return x @ w * scale + shift


class Ends(NamedTuple):
    low: Any
    high: Any


def tensors(model: Model, which: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {each.name: (each.datatype, each.shape) for each in model.metadata()[which]}


def test_inputs_are_named_as_parameters() -> None:
    model = model_of("score", ag.offload(score))
    assert model.input_names == ("x", "w", "scale", "shift")
    function, arguments = model.call({"x": ONES, "w": ONES.T})
    np.testing.assert_array_equal(function(*arguments), score(ONES, ONES.T))
    function, arguments = model.call({"w": ONES.T, "x": ONES, "shift": np.float32(1) + ONES[:, :2]})
    np.testing.assert_array_equal(function(*arguments), score(ONES, ONES.T, shift=2 * ONES[:, :2]))


@pytest.mark.parametrize(
    ("given", "says"),
    [({"x": ONES}, "needs the input 'w'"), ({"x": ONES, "w": ONES, "y": ONES}, "has no input 'y'; it has x, w, scale")],
)
def test_inputs_that_do_not_fit(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestRefused, match=says):
        model_of("score", score).call(given)


def test_types_are_known_after_the_first_call() -> None:
    model = model_of("score", score)
    assert tensors(model, "inputs")["x"] == ("UNKNOWN", (-1,))
    model.learn({"x": ONES, "w": ONES.T}, model.outputs(ONES @ ONES.T))
    assert tensors(model, "inputs")["x"] == ("FP32", (2, 3))
    assert tensors(model, "outputs") == {"output": ("FP32", (2, 2))}
    longer = np.ones((5, 3), np.float32)
    model.learn({"x": longer, "w": ONES.T}, model.outputs(longer @ ONES.T))
    assert tensors(model, "inputs")["x"] == ("FP32", (-1, 3))


def test_types_from_annotations_are_kept() -> None:
    def scored(x: Annotated[Any, "float32[-1, 3]"], n: "int64[]") -> Any:  # type: ignore[valid-type] # noqa: F722
        return x * n

    model = model_of("scored", scored)
    assert tensors(model, "inputs") == {"x": ("FP32", (-1, 3)), "n": ("INT64", ())}
    model.call({"x": ONES, "n": np.array(3)})
    with pytest.raises(RequestRefused, match=r"has the shape \[-1, 3\], not \[2, 2\]"):
        model.call({"x": ONES[:, :2], "n": np.array(3)})
    with pytest.raises(RequestRefused, match="is FP32, not FP64"):
        model.call({"x": ONES.astype(float), "n": np.array(3)})


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONES, ["output"]),
        (3.5, ["output"]),
        ((ONES, 1), ["output_0", "output_1"]),
        (Ends(ONES, ONES), ["low", "high"]),
        ({"a": ONES}, ["a"]),
    ],
)
def test_outputs_have_names(value: Any, names: list[str]) -> None:
    assert list(model_of("score", score).outputs(value)) == names


def test_programs(tmp_path: Path) -> None:
    program = ag.record(lambda x, w: (x @ w, x + 1), ONES, ONES.T)
    path = tmp_path / "score.program"
    path.write_bytes(to_bytes(program))
    for given in (program, path, str(path)):
        model = model_of("score", given)
        assert tensors(model, "inputs") == {"input_0": ("FP32", (2, 3)), "input_1": ("FP32", (3, 2))}
        assert tensors(model, "outputs") == {"output_0": ("FP32", (2, 2)), "output_1": ("FP32", (2, 3))}
        function, arguments = model.call({"input_0": ONES, "input_1": ONES.T})
        product, more = function(*arguments)
        np.testing.assert_array_equal(product, ONES @ ONES.T)
        np.testing.assert_array_equal(more, ONES + 1)
    with pytest.raises(RequestRefused, match="shape"):
        model.call({"input_0": ONES, "input_1": ONES})


def test_a_program_runs_on_a_device_too() -> None:
    program = ag.record(lambda x: np.tanh(x).sum(axis=1), ONES)
    found = ag.run(model_of("score", program).function, ONES, on="opencl")
    assert found.receipt.device.startswith("opencl")
    np.testing.assert_allclose(found.value, np.tanh(ONES).sum(axis=1), rtol=1e-5)


async def later(x: Any) -> Any:
    return x


def several(*xs: Any) -> Any:
    return xs


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "functions by name"),
        ([score], "functions by name"),
        ({"a/b": score}, "letters, digits"),
        ({"score": 3}, "takes a function"),
        ({"score": later}, "async function"),
        ({"score": several}, "parameter for each"),
        ({"score": "no/such/file"}, "cannot be read"),
    ],
)
def test_what_cannot_be_served(given: Any, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        models_of(given)


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "score.program"
    path.write_bytes(b"not one")
    with pytest.raises(InvalidProgram, match="is not a saved program"):
        models_of({"score": path})
