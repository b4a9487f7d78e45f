"""`%load_ext anygpu` in a real IPython: what is decorated, what is said, and how errors look."""

from __future__ import annotations

import atexit
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import anygpu as ag
from anygpu.base import events
from anygpu.calls.offload import Offloaded
from anygpu.cli.notebook.magics import call_in, offload_options, receipt_count
from anygpu.cli.notebook.receipts import LastCalls
from anygpu.errors import InvalidOption
from anygpu.placement.plan.plan import Plan


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    settings = Config()
    settings.HistoryManager.enabled = False
    shell_class: Any = InteractiveShell  # IPython has types in part
    made = shell_class(config=settings)
    made.user_ns.update(np=np, ag=ag, x=np.ones((5, 5), np.float32))
    made.run_cell("%load_ext anygpu")
    yield made
    made.run_cell("%unload_ext anygpu")
    atexit.unregister(made.atexit_operations)


def run(shell: Any, cell: str) -> Any:
    done = shell.run_cell(cell)
    done.raise_error()
    return done.result


def refused(shell: Any, cell: str) -> str:
    with pytest.raises(UsageError) as raised:
        run(shell, cell)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_cell_decorates_its_functions_and_nothing_else(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cell = """%%offload check=off fallback=allow
@ag.offload(fallback="raise")
def own(x):
    return x

def score(x, w):
    def inner(x):
        return x
    return np.tanh(inner(x) @ w).mean(axis=0)

def rows():
    yield 1

class Model:
    def method(self):
        return 1

double = lambda x: 2 * x
score(x, x).shape
"""
    assert run(shell, cell) == (5,)
    names = shell.user_ns
    assert isinstance(names["score"], Offloaded)
    assert names["score"].options.check == "off"
    assert names["own"].options.fallback == "raise"
    assert not isinstance(names["rows"], Offloaded)
    assert inspect.isfunction(names["Model"].method)
    assert inspect.isfunction(names["double"])
    assert not [name for name in names if name.startswith("__anygpu")]
    assert "np.tanh(inner(x) @ w)" in inspect.getsource(names["score"].function)
    said = capsys.readouterr().out
    assert "score is offloaded" in said
    assert "own has a decorator of its own" in said
    assert "rows stays as it is" in said


def test_an_error_of_the_cell_is_the_users_and_ends_it(shell: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        run(shell, "%%offload\ndef f(x):\n    return 1 / x\nf(0)\n")
    assert not [name for name in shell.user_ns if name.startswith("__anygpu")]
    with pytest.raises(SyntaxError):
        run(shell, "%%offload\ndef f(x:\n")
    assert "found no function" in repr_of_display(shell, "%%offload\n1 + 1\n")


def repr_of_display(shell: Any, cell: str) -> str:
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        run(shell, cell)
    return "".join(str(output) for output in captured.outputs) + str(captured.stdout)


def test_options_that_make_no_sense_are_refused_before_anything_runs(shell: Any) -> None:
    assert "has no option 'of'" in refused(shell, "%%offload of=gpu\nnever = 1\n")
    assert "fallback is one of" in refused(shell, "%%offload fallback=never\nnever = 1\n")
    assert "name=value" in refused(shell, "%%offload gpu\nnever = 1\n")
    assert "await" in refused(shell, "%%offload\nimport asyncio\nawait asyncio.sleep(0)\n")
    assert "never" not in shell.user_ns


def test_explain_takes_a_call_as_it_would_be_written(shell: Any) -> None:
    run(shell, "@ag.offload(on='numpy')\ndef score(x, w):\n    return x @ w\n")
    for call in ("score(x, x)", "score(x, w=x)", "score(*[x, x])", "score(**dict(x=x, w=x))"):
        plan = run(shell, f"%anygpu explain {call}")
        assert isinstance(plan, Plan)
        assert plan.task == "score"


def test_receipts_are_kept_since_the_extension_was_loaded(shell: Any) -> None:
    assert run(shell, "%anygpu receipts") == []
    run(shell, "%%offload\ndef add(x):\n    return x + 1\nfor _ in range(12):\n    add(x)\n")
    found = run(shell, "%anygpu receipts")
    assert isinstance(found, LastCalls)
    assert [each.task for each in found] == ["add"] * 10
    assert len(run(shell, "%anygpu receipts 3")) == 3


def test_the_other_subcommands(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy")
    assert "%anygpu explain" in repr(run(shell, "%anygpu help"))
    assert repr(run(shell, "%anygpu")) == repr(run(shell, "%anygpu help"))
    assert run(shell, "%anygpu statistics").schema == "anygpu.statistics/1"
    assert [each.id for each in run(shell, "%anygpu devices")] == ["numpy"]
    assert run(shell, "%anygpu doctor").schema == "anygpu.doctor/1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%anygpu nonsense", "it has explain, receipts, devices, doctor, statistics, help"),
        ("%anygpu explain", "takes a call, such as score(x, w); got 'nothing'"),
        ("%anygpu explain 1 +", "takes a call"),
        ("%anygpu explain nobody(x)", "NameError: name 'nobody' is not defined"),
        ("%anygpu explain np.tanh(y)", "NameError: name 'y' is not defined"),
        ("%anygpu explain (3)(x)", "anygpu takes a function to run"),
        ("%anygpu receipts many", "takes a number from 1 to 200; got 'many'"),
        ("%anygpu doctor please", "takes no arguments"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is not callable.*:SyntaxWarning")
def test_a_mistake_is_answered_in_one_line(shell: Any, line: str, said: str) -> None:
    assert said in refused(shell, line)


def test_subcommands_and_options_are_completed(shell: Any) -> None:
    def completed(line: str) -> list[str]:
        with provisionalcompleter():
            return [each.text for each in shell.Completer.completions(line, len(line))]

    assert completed("%anygpu d") == ["devices", "doctor"]
    assert "on=" in completed("%%offload o")


def test_records_are_written_as_text_while_it_is_loaded(shell: Any) -> None:
    receipt = ag.run(np.tanh, np.zeros(3)).receipt
    written = shell.display_formatter.format(receipt)[0]["text/plain"]
    assert written == str(receipt)
    run(shell, "%unload_ext anygpu")
    assert shell.display_formatter.format(receipt)[0]["text/plain"] != written


def test_loading_twice_and_unloading_leaves_nothing(shell: Any) -> None:
    before = len(events.calls)
    ag.load_ipython_extension(shell)
    assert len(events.calls) == before
    ag.unload_ipython_extension(shell)
    ag.unload_ipython_extension(shell)
    assert len(events.calls) == before - 1
    assert "not found" in refused(shell, "%anygpu help")


def test_lines_become_options() -> None:
    assert offload_options("") == {}
    assert offload_options("on=gpu timeout=2.5 min_memory=100") == {"on": "gpu", "timeout": 2.5, "min_memory": 100}
    assert offload_options("on=webgpu,numpy") == {"on": ["webgpu", "numpy"]}
    assert offload_options("on='webgpu:0' # why") == {"on": "webgpu:0"}
    with pytest.raises(InvalidOption, match="quotation mark"):
        offload_options("on='gpu")
    assert receipt_count("", 200) == 10
    assert call_in(" f(x) ").args


def test_ipython_is_not_loaded_by_pages() -> None:
    script = (
        "import sys, numpy, anygpu as ag\n"
        "assert 'anygpu.cli.notebook' not in sys.modules\n"
        "assert ag.run(numpy.tanh, numpy.zeros(3)).receipt._repr_html_()\n"
        "loaded = {'IPython', 'torch', 'jax', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
