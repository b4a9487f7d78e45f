"""A profile says where a script's time went, and leaves the script as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from anygpu.errors import MissingExtra
from anygpu.observe import profile as profile_module
from anygpu.observe.profile import FunctionProfile, LineProfile, OperationProfile, Profile, to_html
from anygpu.observe.profiler import LineSampler, ThreadPosition, UsersFiles, seconds_by_line
from benchmarks.profile import FOLDER, first_lines, hot_line, sum_error

MAIN, CALL, INSIDE = ("a.py", 1), ("a.py", 2), ("a.py", 3)


def profiled(tmp_path: Path, text: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], Profile | None]:
    script = tmp_path / "script.py"
    script.write_text(text)
    out = tmp_path / "profile.json"
    command = [sys.executable, "-m", "anygpu.observe.script", str(out), str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done, msgspec.json.decode(out.read_bytes(), type=Profile) if out.exists() else None


def plainly(tmp_path: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# -- seconds


def test_seconds_of_lines_are_those_of_the_script() -> None:
    found = seconds_by_line(10.0, {CALL: 4.0}, {MAIN: 0.5, CALL: 0.5}, {CALL: {CALL: 1.0, INSIDE: 3.0}}, MAIN)
    assert found == {CALL: pytest.approx(1 + 3), INSIDE: pytest.approx(3), MAIN: pytest.approx(3)}
    assert sum(found.values()) == pytest.approx(10)


def test_what_no_sample_has_met_still_belongs_somewhere() -> None:
    assert seconds_by_line(10.0, {CALL: 4.0}, {}, {}, MAIN) == {CALL: 4.0, MAIN: 6.0}


def test_a_sample_after_a_long_call_counts_for_what_is_outside_of_it() -> None:
    sampler = LineSampler(UsersFiles("a.py"), lambda: 0.0, lambda: 0.0)
    for _ in range(10):
        sampler.add(ThreadPosition(CALL, CALL, CALL, 1), 0.1, 0.0)
    sampler.add(ThreadPosition(MAIN, None, None, 0), 0.1, 1.04)
    assert sampler.outside[MAIN] == pytest.approx(0.06)
    assert sampler.inside == {CALL: {CALL: pytest.approx(1.0)}}


@pytest.mark.full
@pytest.mark.parametrize("name", ["python_loop", pytest.param("nested", marks=pytest.mark.long), "quick_calls"])
def test_hot_lines_are_found(name: str, tmp_path: Path) -> None:
    script = FOLDER / f"{name}.py"
    _, profile = profiled(tmp_path, script.read_text())
    assert profile is not None
    assert sum_error(profile) < 0.05
    assert first_lines(profile)[0] == hot_line(script)


CALLS = """
import numpy as np
import anygpu as ag
@ag.offload(on="opencl", fallback="raise")
def score(x):
    return np.tanh(x).sum()
@ag.offload
def quiet(x):
    return x + 1
def broken(x):
    raise KeyError
for n in (1000, 1000, 2000):
    score(np.ones(n, np.float32))
for _ in range(100):
    quiet(np.ones(3))
tasks = [ag.submit(quiet, np.ones(3)) for _ in range(5)]
for task in tasks:
    task.result()
try:
    ag.run(broken, np.ones(3))
except KeyError:
    pass
"""


def test_calls_belong_to_the_users_own_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "opencl")  # one is quicker to find and to open than all
    done, profile = profiled(tmp_path, CALLS)
    assert (done.returncode, done.stderr) == (0, "")
    assert profile is not None
    calls = {each.line: each.calls for each in profile.lines if each.calls}
    assert calls == {13: 3, 15: 100, 16: 5, 20: 1}
    functions = {(each.function, each.device): each for each in profile.functions}
    scored = functions["score", "opencl:0"]
    assert (scored.calls, scored.recompilations, scored.bytes_to_device) == (3, 1, 4 * 4000)
    assert functions["broken", "numpy"].errors == 1
    assert sum(each.seconds for each in profile.functions) == pytest.approx(sum(profile.phases.values()), rel=0.01)
    operations = {each.operation: each for each in profile.operations}
    assert operations["tanh"].runs == 3
    assert operations["tanh"].line == f"{tmp_path / 'script.py'}:6"
    ran = scored.device_seconds if scored.device_seconds is not None else scored.phases["run"]
    assert sum(each.seconds for each in profile.operations) == pytest.approx(ran, rel=0.01)


# -- the script is left as it is


SAME = {
    "arguments": "import sys; print(sys.argv[1:], sys.path[0], __name__, __file__, len(sys.argv))",
    "status": "import sys; print('a'); sys.exit(7)",
    "words": "raise SystemExit('no more')",
    "nothing": "raise SystemExit",
    "error": "def f():\n    return 1 / 0\nprint('a')\nf()\n",
    "syntax": "print('a'\nx = = 1\n",
    "main": "import __main__, pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is __main__.A)",
    "exit": "import atexit; atexit.register(print, 'over'); print('a')",
    "thread": "import threading; threading.Thread(target=print, args=('b',)).start()",
}


@pytest.mark.sampled(gate=7)
@pytest.mark.parametrize("name", SAME)
def test_a_script_does_what_it_does_without(name: str, tmp_path: Path) -> None:
    wanted = plainly(tmp_path, SAME[name], "--x", "1", "-m")
    done, profile = profiled(tmp_path, SAME[name], "--x", "1", "-m")
    assert (done.returncode, done.stdout, done.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr)
    assert profile is not None
    assert (profile.exit_status, profile.arguments) == (wanted.returncode, ("--x", "1", "-m"))


def test_the_command_reports_on_standard_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('out', sys.argv[1:])\nsys.exit(3)\n")
    options = ["--html", str(tmp_path / "a.html"), "--json", str(tmp_path / "a.json")]
    command = [sys.executable, "-m", "anygpu", "profile", *options, str(script), "--html", "b"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (3, "out ['--html', 'b']\n")
    assert "It took" in done.stderr
    assert msgspec.json.decode((tmp_path / "a.json").read_bytes(), type=Profile).exit_status == 3
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_a_script_that_is_killed_leaves_no_profile_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    command = [sys.executable, "-m", "anygpu", "profile", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 128 + 9
    assert "There is no profile" in done.stderr


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anygpu", "profile", str(tmp_path / "none.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
    assert done.returncode == 2
    assert "there is no file" in done.stderr


# -- what it looks like


HOSTILE = "<script>alert(1)</script>\"'>\x1b[2J\ud800&"


def hostile_profile() -> Profile:
    return Profile(
        script=HOSTILE,
        arguments=(HOSTILE,),
        seconds=1.0,
        exit_status=0,
        call_seconds=0.5,
        samples=10,
        interval=0.1,
        lines=(LineProfile(file=HOSTILE, line=1, code=HOSTILE, seconds=1.0, calls=1, devices={HOSTILE: 1.0}),),
        functions=(
            FunctionProfile(
                function=HOSTILE,
                device=HOSTILE,
                calls=1,
                errors=1,
                seconds=0.5,
                phases={"run": 0.5},
                device_seconds=None,
                bytes_to_device=0,
                bytes_to_host=0,
                bytes_skipped=0,
                recompilations=0,
                fallbacks=0,
            ),
        ),
        operations=(OperationProfile(operation=HOSTILE, device=HOSTILE, line=HOSTILE, seconds=0.5, runs=1),),
        phases={"run": 0.5},
        scalene=HOSTILE,
    )


def test_nothing_of_the_script_gets_into_the_page() -> None:
    page = to_html(hostile_profile())
    page.encode("utf-8")
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")


def test_nothing_of_the_script_gets_into_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from anygpu.cli.scripts import show_profile

    show_profile(Console(width=200, force_terminal=False), hostile_profile())
    assert "\x1b" not in capsys.readouterr().out


# -- Scalene

LINE = b'{"lineno": 2, "line": "y = f(x)", "n_cpu_percent_c": 60.0, "n_cpu_percent_python": 5.0, "n_peak_mb": 12.0}'


def test_lines_of_scalene_join_ours() -> None:
    data = b'{"files": {"a.py": {"lines": [%s, {"lineno": 9, "n_malloc_mb": 3.0}, {"lineno": 10}]}}}' % LINE
    ours = msgspec.structs.replace(
        hostile_profile(), lines=(LineProfile(file="a.py", line=2, code="y = f(x)", seconds=1.0),)
    )
    both = profile_module.joined(ours, profile_module.read_scalene(data), "Scalene 2.4.0")
    first, second = both.lines
    assert first.scalene is not None
    assert (first.seconds, first.scalene.percent, first.scalene.peak_megabytes) == (1.0, 65.0, 12.0)
    assert (second.line, second.seconds) == (9, 0.0)
    assert "65.0 %" in to_html(both)


def test_what_scalene_has_not_written_is_refused() -> None:
    with pytest.raises(profile_module.ScaleneFailed, match="Profile without --scalene"):
        profile_module.read_scalene(b"nothing")


def test_scalene_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(MissingExtra, match=r"pip install .scalene"):
        profile_module.version()
