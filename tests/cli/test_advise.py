"""`anygpu advise` on scripts as people have them: nothing that they print, read or return changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anygpu.cli.scripts import _plain, write_copy
from anygpu.observe.advising.judging import AdviceReport, FunctionAdvice

SCRIPT = '''
"""Reads, prints, and computes."""
import sys
import pickle
import numpy as np


def kernel(x, y, *, scale=1.0):
    d = x[:, None] - y[None, :]
    return np.exp(-d * d).sum(axis=1) * scale


def shown(x):
    print("sum", x.sum())
    return np.sin(x) * np.cos(x)


def written(x):
    x += np.sin(x) * 0.1
    return x


def decides(x):
    return np.exp(np.sin(x)) * np.cos(x) if x.sum() > 0 else x


def main():
    x = np.linspace(0, 1, 2000, dtype=np.float32)
    for _ in range(4):
        y = kernel(x, x, scale=2.0)
    big = np.ones((900, 900), np.float32)
    for _ in range(4):
        shown(big), written(big), decides(big)
    print(repr(sys.stdin.readline()), sys.argv[1:], __name__, round(float(y.sum()), 1))
    print(pickle.loads(pickle.dumps(kernel)) is kernel, "anygpu" in sys.modules)
    print("to stderr", file=sys.stderr)


if __name__ == "__main__":
    main()
    sys.exit(7)
'''


def run(*command: str, cwd: Path, given: bytes = b"a line\n") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, input=given, capture_output=True, check=False, timeout=120, env=os.environ
    )


def advise(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return run("-m", "anygpu", "advise", *arguments, cwd=cwd)


@pytest.mark.software_devices("functions are judged for a device that stands in for a GPU")
def test_a_script_runs_as_ever_and_its_functions_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "opencl")  # one is quicker to find and to open than all
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    alone = run("script.py", "--apply", "-x", "1", cwd=tmp_path)
    done = advise("--json", "--output", "report.json", "--apply", "script.py", "--apply", "-x", "1", cwd=tmp_path)
    assert (done.stdout, done.returncode) == (alone.stdout, 7)
    assert done.stderr == alone.stderr
    assert script.read_text() == SCRIPT
    report = AdviceReport.from_json((tmp_path / "report.json").read_bytes())
    assert not report.uses_anygpu
    by_name = {each.name: each for each in report.functions}
    assert by_name["kernel"].calls == 4
    assert by_name["kernel"].line == f"{script}:8"
    assert by_name["kernel"].estimates
    reasons = {name: each.sentence for name, each in by_name.items() if each.verdict == "not traceable"}
    assert set(reasons) == {"shown", "written", "decides"}
    assert "print" in reasons["shown"]
    assert "writes to" in reasons["written"]
    assert "np.where" in reasons["decides"]
    if by_name["kernel"].verdict == "gains":
        copy = (tmp_path / "script_offloaded.py").read_text()
        assert copy == SCRIPT.replace("import sys\n", "import anygpu\nimport sys\n", 1).replace(
            "def kernel", "@anygpu.offload\ndef kernel"
        )


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import numpy as np\ndef f(x):\n    return 1 / 0\nf(np.ones(3))\n", 1),
        ("import sys\nsys.exit('that is why')\n", 1),
        ("print('as far as here')\nthis is no Python\n", 1),
        ("import os\nprint('gone', flush=True)\nos._exit(5)\n", 5),
        (
            "import atexit, cProfile, threading\n"
            "atexit.register(print, 'at the end')\n"
            "p = cProfile.Profile()\np.enable()\nprint(1)\np.disable()\n"
            "t = threading.Thread(target=print, args='b')\nprint('a', flush=True)\nt.start()\n",
            0,
        ),
    ],
    ids=["raises", "says why", "no Python", "leaves", "own profiler, a thread, something at exit"],
)
def test_however_a_script_ends_it_ends_the_same(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "script.py").write_text(text)
    alone = run("script.py", cwd=tmp_path)
    done = advise("script.py", cwd=tmp_path)
    assert (done.stdout, done.returncode) == (alone.stdout, code)
    # What Python says of it comes first, without a line of ours.
    expected = alone.stderr.replace(b'File "script.py"', f'File "{tmp_path / "script.py"}"'.encode())
    assert done.stderr.replace(b'File "script.py"', f'File "{tmp_path / "script.py"}"'.encode()).startswith(expected)


def test_a_script_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    done = advise("missing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert b"missing.py" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"would gain" not in done.stderr


def report_of(script: Path, *lines: int) -> AdviceReport:
    functions = tuple(
        FunctionAdvice(
            name="f",
            line=f"{script}:{line}",
            calls=1,
            seconds=1.0,
            verdict="gains",
            sentence="",
            numpy_seconds=1.0,
        )
        for line in lines
    )
    return AdviceReport(script=str(script), seconds=1.0, outside_functions=0.0, uses_anygpu=False, functions=functions)


def test_a_copy_never_replaces_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f(x):\n    return x\n")
    first = write_copy(script, report_of(script, 1))
    second = write_copy(script, report_of(script, 1))
    assert first is not None
    assert second is not None
    assert [first[0].name, second[0].name] == ["script_offloaded.py", "script_offloaded_2.py"]
    assert write_copy(script, report_of(script)) is None
    assert write_copy(script, report_of(tmp_path / "other.py", 1)) is None


def test_names_cannot_write_to_the_terminal() -> None:
    assert _plain("f\x1b[2J\n\u202eé") == "f\\x1b[2J\\n\\u202eé"


def test_the_schema_of_the_report_is_stable() -> None:
    document = json.loads(report_of(Path("s.py"), 1).to_json())
    assert document["schema"] == "anygpu.advice/1"
    assert set(document) == {
        "schema",
        "script",
        "seconds",
        "outside_functions",
        "uses_anygpu",
        "functions",
        "findings",
        "notes",
    }
