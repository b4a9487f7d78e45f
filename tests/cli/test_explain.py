"""`anygpu explain` as a person or a script meets it. Where llvmpipe or PoCL is missing, these tests fail."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from anygpu.cli.commands import app
from anygpu.placement.plan.plan import Plan
from anygpu.receipts.receipt import Receipt

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]

MODULE = """
import numpy as np

import anygpu as ag


def plain(x, factor):
    return np.sqrt(x) * factor


@ag.offload
def placed(x, w):
    return np.tanh(x @ w).mean(axis=0)


def decides(x):
    return x if x.sum() > 0 else -x


def broken(x):
    raise ZeroDivisionError("mine")


def shown(*arguments):
    print([(type(each).__name__, each) for each in arguments])
    return arguments[0]


class Filter:
    @staticmethod
    def twice(x):
        return x * 2


LIMIT = 3
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: what is tested here is not the probe."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def explain(tmp_path: Path, cache: Path) -> Run:
    """Runs `anygpu explain`, as the command that is installed, in a folder with the module `mine`."""
    (tmp_path / "mine.py").write_text(MODULE)
    command = Path(sys.executable).parent / "anygpu"
    ours = {"ANYGPU_CACHE_DIR": str(cache), "ANYGPU_ENGINES": "numpy,webgpu", "ANYGPU_SOFTWARE_DEVICES": "on"}
    ours |= {"COLUMNS": "200", "PYTHONUTF8": "1"}
    usual = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "NO_COLOR", "PYTHONPATH") and not name.startswith("ANYGPU_")
    }

    def run(*arguments: str, **more: str) -> Result:
        return subprocess.run(
            [command, "explain", *arguments],
            cwd=tmp_path,
            env=usual | ours | more,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=120,
        )

    return run


def document_of(result: Result) -> dict[str, Any]:
    assert (result.returncode, result.stderr) == (0, "")
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["schema"] == "anygpu.explain/1"
    return document


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What the box on standard error says of a mistake, on one line. In this process: nothing is opened for it."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    importlib.invalidate_caches()

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["explain", *arguments])
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        assert result.exit_code == 2
        return " ".join(line.strip("│ ") for line in result.stderr.splitlines() if line.startswith("│"))

    return run


class TestPlan:
    def test_a_plain_function_from_the_current_folder(self, explain: Run) -> None:
        result = explain("mine:plain", "--args", "float32[100,100]", "0.5")
        assert (result.returncode, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert lines[0] == "plain would run on numpy: the first call is measured on numpy."
        assert lines[1].endswith("39.1 KiB of inputs and returns 39.1 KiB.")
        devices = [line.split()[0 if not line.strip().startswith("→") else 1] for line in lines[3:] if " · " in line]
        assert sorted(devices) == ["numpy", "webgpu:0"]

    def test_json_is_a_plan(self, explain: Run) -> None:
        document = document_of(explain("mine:placed", "float32[20,30]", "float32[30,40]", "--json"))
        plan = Plan.from_json(json.dumps(document["plan"]))
        assert (plan.task, plan.chosen) == ("placed", "numpy")
        assert {each.device for each in plan.candidates} == {"numpy", "webgpu:0"}
        assert plan.bytes_in == 4 * (20 * 30 + 30 * 40)
        assert (document["receipts"], document["afterwards"]) == ([], None)

    def test_what_cannot_be_recorded_says_why(self, explain: Run) -> None:
        result = explain("mine:decides", "float32[100]")
        assert result.returncode == 0
        assert "It could not be traced: it branches on an array value" in result.stdout
        assert "mine.py:" in result.stdout

    @pytest.mark.full
    def test_options_win_over_those_of_the_function(self, explain: Run) -> None:
        document = document_of(explain("mine:placed", "float32[9,9]", "float32[9,9]", "--on", "webgpu", "--json"))
        assert document["plan"]["chosen"] == "webgpu:0"
        assert [each["device"] for each in document["plan"]["refused"]] == ["numpy"]

    def test_a_device_that_is_not_there(self, explain: Run) -> None:
        result = explain("mine:plain", "float32[100]", "0.5", "--on", "npu", "--fallback", "raise")
        assert result.returncode == 1
        assert result.stderr.startswith('anygpu: no device is available for on="npu".')

    def test_a_fallback_is_said_as_a_sentence(self, explain: Run) -> None:
        result = explain("mine:plain", "float32[100]", "0.5", "--on", "npu")
        assert result.returncode == 0
        assert result.stderr.startswith("Warning: plain runs on NumPy instead: no device is available")
        assert "typer" not in result.stderr

    def test_a_nested_name(self, explain: Run) -> None:
        assert document_of(explain("mine:Filter.twice", "int32[4]", "--json"))["plan"]["program"]

    def test_a_bug_of_the_user_s_is_the_user_s(self, explain: Run) -> None:
        result = explain("mine:broken", "float32[4]")
        assert result.returncode == 1
        assert result.stderr.endswith("ZeroDivisionError: mine\n")


class TestRun:
    def test_receipts_and_the_plan_afterwards(self, explain: Run) -> None:
        document = document_of(
            explain(
                "mine:plain", "float32[1000]", "0.5", "--on", "webgpu", "--fallback", "raise", "--run", "2", "--json"
            )
        )
        receipts = [Receipt.from_json(json.dumps(each)) for each in document["receipts"]]
        assert [receipt.device for receipt in receipts] == ["webgpu:0", "webgpu:0"]
        assert receipts[1].bytes_to_device >= 4000
        assert Plan.from_json(json.dumps(document["afterwards"])).candidates[0].basis == "measured"

    def test_the_screen(self, explain: Run) -> None:
        result = explain("mine:plain", "float32[1000]", "0.5", "--run", "2")
        assert (result.returncode, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        calls = [line for line in lines if " ran on " in line]
        assert [line.partition(" ran ")[0] for line in calls] == ["1. plain", "2. plain"]
        assert "After 2 calls:" in lines


class TestArguments:
    def test_kinds(self, explain: Run, tmp_path: Path) -> None:
        np.save(tmp_path / "data.npy", np.arange(3))
        result = explain(
            "mine:shown", "--args", "bool[1,]", "int8[]", "data.npy", "3", "-0.5", "1e3", "2j", "text", "--run", "1"
        )
        assert result.returncode == 0, result.stderr
        arrays = "('ndarray', array([ True])), ('ndarray', array(6, dtype=int8)), ('ndarray', array([0, 1, 2]))"
        others = "('int', 3), ('float', -0.5), ('float', 1000.0), ('complex', 2j), ('str', 'text')"
        assert f"[{arrays}, {others}]" in result.stdout

    @pytest.mark.full
    def test_random_numbers_are_the_same_each_time(self, explain: Run) -> None:
        first, second = (explain("mine:shown", "float64[3]", "float64[3]", "--run", "1").stdout for _ in range(2))
        values = [next(line for line in each.splitlines() if "ndarray" in line) for each in (first, second)]
        assert values[0] == values[1]
        assert "array([0.6369" in values[0]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("mine",), "'mine' is not of the form module:function"),
            (("mine.py:plain",), "'mine.py' is a file; name the module instead, as in mine:plain"),
            (("nothere:plain",), "there is no module 'nothere', neither installed nor in "),
            (("mine:plian",), "mine has no 'plian'; it has Filter, broken, decides, placed, plain, shown"),
            (("mine:LIMIT",), "mine:LIMIT is a int, not a function"),
            (("mine:plain", "float99[3]"), "'float99[3]': 'float99' is not a NumPy dtype"),
            (("mine:plain", "float32[3,x]"), "'float32[3,x]': a shape is integers separated by commas"),
            (("mine:plain", "float32[3,,3]"), "'float32[3,,3]': a shape is integers separated by commas"),
            (("mine:plain", "float32[1000000000,1000000000,99]"), "99]' is larger than this machine's memory"),
            (("mine:plain", "float32[-3]"), "'float32[-3]': lengths cannot be negative"),
            (("mine:plain", "object[3]"), "'object[3]': cannot make random object arrays"),
            (("mine:plain", "lost.npy"), "there is no file 'lost.npy' in "),
            (("mine:plain", "--onn", "gpu"), "'--onn' is neither an option nor a number"),
        ],
    )
    def test_mistakes_say_what_was_wrong_and_show_an_example(
        self, refused: Callable[..., str], arguments: tuple[str, ...], said: str
    ) -> None:
        message = refused(*arguments)
        assert said in message
        assert 'anygpu explain mymodule:score --args "float32[1000,1000]" weights.npy 0.5' in message

    def test_a_file_that_is_no_array(self, refused: Callable[..., str], tmp_path: Path) -> None:
        (tmp_path / "bad.npy").write_bytes(b"not an array")
        assert "'bad.npy' cannot be loaded: " in refused("mine:plain", "bad.npy")

    def test_what_is_pickled_is_not_loaded(self, refused: Callable[..., str], tmp_path: Path) -> None:
        np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
        assert "'objects.npy' cannot be loaded: " in refused("mine:plain", "objects.npy")

    def test_options_that_make_no_sense(self, refused: Callable[..., str]) -> None:
        message = refused("mine:plain", "float32[3]", "0.5", "--fallback", "never")
        assert message.endswith("""fallback is one of "raise", "warn", "allow"; got 'never'.""")

    def test_a_module_that_needs_a_missing_one(self, explain: Run, tmp_path: Path) -> None:
        (tmp_path / "needy.py").write_text("import nowhere_to_be_found\n")
        result = explain("needy:anything")
        assert result.returncode == 1
        assert result.stderr.endswith("ModuleNotFoundError: No module named 'nowhere_to_be_found'\n")
