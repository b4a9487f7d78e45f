"""The gallery: building the documentation runs its scripts, so here it is only seen that each has all of its parts."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

import anygpu as ag

mpl.use("agg")

from examples.gallery.engines_chart import Measured, check_agreement, drawn, readable, reason

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*/plot_*.py"))


def test_every_script_has_its_place_in_the_gallery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = runpy.run_path(str(ROOT / "docs" / "gallery_settings.py"))
    listed = [f"{section}/plot_{name}.py" for section, names in settings["ORDER"].items() for name in names]
    assert sorted(listed) == [f"{script.parent.name}/{script.name}" for script in SCRIPTS]
    assert len(listed) >= 18
    for section in settings["ORDER"]:
        assert (ROOT / "examples" / "gallery" / section / "GALLERY_HEADER.rst").is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_shows_its_result_its_receipt_and_every_engine(script: Path) -> None:
    text = script.read_text()
    title, line, _, explanation = (ast.get_docstring(ast.parse(text)) or "").split("\n", 3)
    assert len(title) == len(line)
    assert explanation.count(". ") + explanation.count(".\n") + explanation.endswith(".") in (2, 3)
    picture, receipt, chart = text.index("plt.subplots("), text.index("receipt"), text.index("engines_chart(")
    assert max(picture, receipt) < chart
    assert any(
        f"print({what}" in text for what in ("ag.last_receipt()", "receipt", "streamed.receipt", "next((receipt")
    )
    assert text.endswith("# sphinx_gallery_thumbnail_number = 1\n")


def test_the_chart_has_the_fastest_first_and_says_why_an_engine_is_missing() -> None:
    rows = [
        Measured("opencl:0", "PoCL, software on the CPU", first=1.0, best=0.2),
        Measured("torch", refusal="torch is not installed"),
        Measured("numpy", "the CPU", first=0.01, best=0.002),
    ]
    figure = drawn("score", rows, "two cores")
    (axes,) = figure.axes
    written = [text.get_text() for text in axes.texts]
    ids = [each for each in written if each in ("numpy", "opencl:0", "torch")]
    assert ids == ["numpy", "opencl:0", "torch"]
    assert {"2 ms", "200 ms", "first 1 s", "does not run there: torch is not installed"} <= set(written)
    assert axes.get_xscale() == "log", "one of them takes a hundred times as long"
    assert figure.get_supxlabel() == "Best call after the first, copies included. Logarithmic.\ntwo cores"


def test_seconds_are_readable() -> None:
    seconds = (2.5e-6, 0.000999, 0.0012345, 0.9996, 12.0, 1234.0)
    assert [readable(each) for each in seconds] == ["2 µs", "999 µs", "1.23 ms", "1 s", "12 s", "1234 s"]


def test_a_wrong_answer_of_an_engine_is_not_charted() -> None:
    right = np.linspace(0, 1, 100)
    check_agreement("jax:cpu:0", (right * 1.0001, right), (right, right), tolerance=1e-3)
    with pytest.raises(AssertionError, match=r"jax:cpu:0 differs from NumPy in 99\.0% of the elements"):
        check_agreement("jax:cpu:0", (right, right * 1.1), (right, right), tolerance=1e-6)


def test_an_engine_that_is_missing_has_its_own_reason() -> None:
    refused = ag.DeviceUnavailable('on="torch"', ["numpy is not torch", "torch: torch is not installed."])
    assert reason("torch", refused) == "torch is not installed."
    assert reason("jax", refused) == "no device of it was found. `anygpu doctor` says more."
    assert reason("jax", ag.InvalidOption("it takes no text. Pass numbers.")) == "it takes no text"
