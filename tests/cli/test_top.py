"""`anygpu top` on a screen and as text, and `anygpu run`: with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from anygpu.cli.top import VARIABLE as RUN_VARIABLE
from anygpu.cli.top.pages import NO_PROCESS, Watching
from anygpu.cli.top.screen import Rows, TextPage, Top
from anygpu.observe import VARIABLE
from anygpu.observe.looking import Following, observed_processes
from tests.cli.test_top_pages import HOSTILE, _Answers
from tests.observe.places import place  # noqa: F401 - a fixture
from tests.observe.snapshots import calls, eventful, snapshot, training

_SCRIPT = """
import os, sys
import numpy as np
import anygpu as ag

def double(x):
    return x * 2

double = ag.offload(double)
for _ in range(20):
    double(np.ones(8))
print(__name__, os.path.basename(__file__), sys.argv[1:], flush=True)
sys.stdin.read()
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)
    return path


class _Started:
    """Processes that `anygpu run` has started, and that wait."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self.children: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "anygpu", "run", str(self._script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def said(self, child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        return child.stdout.readline().strip()


@pytest.fixture
def started(script: Path, place: Path) -> Iterator[_Started]:  # noqa: F811
    found = _Started(script)
    yield found
    for child in found.children:
        child.kill()
        child.communicate()


def _anygpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anygpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# -- anygpu run


def test_a_script_runs_as_python_would_run_it_and_is_observed(started: _Started) -> None:
    child = started.start("--option", "-x", "word")
    assert started.said(child) == "__main__ script.py ['--option', '-x', 'word']"
    (found,) = observed_processes()
    assert found.pid == child.pid, "there is no second process"
    answer = found.ask(deadline=120.0)
    assert [(each.function, each.calls) for each in answer.statistics.calls] == [("double", 20)]
    assert answer.process.command.endswith("script.py --option -x word")
    child.communicate()
    assert child.returncode == 3
    assert observed_processes() == []


def test_a_module_runs(place: Path) -> None:  # noqa: F811
    done = _anygpu("run", "-m", "platform", "--terse")
    assert done.returncode == 0
    assert done.stdout.startswith(("Linux", "macOS", "Windows"))


def test_a_script_that_is_not_there(place: Path) -> None:  # noqa: F811
    done = _anygpu("run", "nowhere.py")
    assert done.returncode == 2
    assert "there is no file 'nowhere.py'" in " ".join(done.stderr.replace("│", " ").split())


def test_the_variable_is_the_same_everywhere() -> None:
    assert RUN_VARIABLE == VARIABLE
    import anygpu

    assert f'os.environ.get("{VARIABLE}")' in Path(anygpu.__file__).read_text()


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize(("value", "observed"), [("1", True), ("on", True), ("0", False), ("off", False), ("", False)])
def test_the_variable(place: Path, value: str, observed: bool) -> None:  # noqa: F811
    code = "import anygpu, sys; print('anygpu.observe' in sys.modules and anygpu.observe._answering is not None)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {VARIABLE: value}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(observed)


def test_a_folder_that_is_refused_keeps_no_script_from_running(place: Path) -> None:  # noqa: F811
    place.chmod(0o755)
    code = "import anygpu as ag; print(ag.run(abs, -3).value)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {VARIABLE: "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3"
    assert "anygpu top cannot look at this process" in done.stderr
    assert "0755" in done.stderr


# -- one picture as text


@pytest.mark.full
def test_one_picture_as_text_and_as_json(started: _Started) -> None:
    children = [started.start(), started.start()]
    for child in children:
        started.said(child)
    done = _anygpu("top", "--once")
    assert done.returncode == 0, done.stderr
    assert "2 processes" in done.stdout
    for child in children:
        assert f" {child.pid} " in done.stdout
    assert "\x1b" not in done.stdout, "a file gets no colours"
    document = json.loads(_anygpu("top", "--once", "--json").stdout)
    assert document["schema"] == "anygpu.top/1"
    assert sorted(each["process"]["pid"] for each in document["processes"]) == sorted(c.pid for c in children)


@pytest.mark.full
def test_nobody_is_observed(place: Path) -> None:  # noqa: F811
    done = _anygpu("top", "--once")
    assert done.returncode == 0
    assert NO_PROCESS in done.stdout
    assert json.loads(_anygpu("top", "--json").stdout)["processes"] == []


def test_without_a_terminal_it_says_what_to_do(place: Path) -> None:  # noqa: F811
    done = _anygpu("top")
    assert done.returncode == 2
    assert "anygpu top --once" in " ".join(done.stderr.replace("│", " ").split())


def test_without_textual_it_says_what_to_install(place: Path) -> None:  # noqa: F811
    code = "import sys; sys.modules['textual'] = None; from anygpu.cli import main; sys.argv[1:] = ['top']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "textual is not installed. Install it with: pip install textual" in done.stderr


# -- the screen


def _on_screen(app: Top, play: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await play(pilot)

    asyncio.run(run())


def _told(*answers: _Answers) -> Top:
    """A screen that follows processes which say what they are told to."""
    return Top(interval=0.3, watching=Watching(Following(find=lambda: answers)), probe=False)


async def _until(pilot: Pilot[None], words: str) -> str:
    """The screen, once it has these words."""
    for _ in range(6000):
        shown = screen(pilot.app)
        if words in shown:
            return shown
        await pilot.pause(0.02)
    raise AssertionError(f"{words!r} is not on the screen:\n{screen(pilot.app)}")


def screen(app: object) -> str:
    """What the terminal has, line by line."""
    lines = app.screen._compositor.render_strips()  # type: ignore[attr-defined]
    return "\n".join(strip.text for strip in lines)


def test_pages_by_keys() -> None:
    async def play(pilot: Pilot[None]) -> None:
        shown = await _until(pilot, "score")
        assert "1 process · " in shown
        assert "5 Losses (2)" in shown
        assert "6 Anomalies (1)" in shown
        for key, words in (("2", "script.py"), ("3", "late"), ("4", "reports"), ("5", "its process died"),
                           ("6", "score takes 2 ms, not 1"), ("7", "No training step has ended"), ("tab", "webgpu:0"),
                           ("left", "No training step"), ("left", "not 1")):  # fmt: skip
            await pilot.press(key)
            await _until(pilot, words)

    _on_screen(_told(_Answers(7, eventful(98.0), eventful(100.0))), play)


@pytest.mark.parametrize("size", [(80, 24), (132, 43)])
def test_steps_and_all_about_one(size: tuple[int, int]) -> None:
    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "train")
        await pilot.press("7")
        shown = await _until(pilot, "backward 50%")
        assert "96.0 M" in shown
        assert ("PREDICTED" in shown) == (size[0] > 80)
        await pilot.press("enter")
        await _until(pilot, "  optimizer ")

    _on_screen(_told(_Answers(7, snapshot(training()))), play, size)


@pytest.mark.parametrize("size", [(80, 24), (132, 43), (60, 16), (40, 10)])
def test_every_size_is_filled_and_never_exceeded(size: tuple[int, int]) -> None:
    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "sc")
        lines = screen(pilot.app).splitlines()
        assert len(lines) == size[1]
        assert "? help" in lines[-1]

    _on_screen(_told(_Answers(7, eventful())), play, size)


def test_sorting_by_keys_and_by_clicks() -> None:
    answer = snapshot(calls("b", count=5), calls("a", count=9), calls("c", count=1))

    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "numpy")
        table = pilot.app.query_one("#rows", Rows)

        def order() -> str:
            return "".join(row.cells[0].text for row in table.rows)

        await pilot.click("#rows", offset=(3, 0))
        assert order() == "cba"
        await pilot.click("#rows", offset=(3, 0))
        assert order() == "abc"
        await pilot.press("less_than_sign")  # the column before the first is the last
        assert "▲" not in screen(pilot.app).splitlines()[5][:14]
        await pilot.press("greater_than_sign", "r")
        assert order() == "cba"

    _on_screen(_told(_Answers(7, answer)), play)


def test_the_filter_and_its_end() -> None:
    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "scale")
        await pilot.press("slash", *"webgpu", "enter")
        shown = await _until(pilot, "filter: webgpu")
        assert "scale" not in shown
        await pilot.press("escape")
        await _until(pilot, "scale")
        await pilot.press("slash", *"nothing", "enter")
        await _until(pilot, "No line has 'nothing'. Esc shows all.")

    _on_screen(_told(_Answers(7, eventful())), play)


def test_the_cursor_stays_on_its_row_and_details_are_shown() -> None:
    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "scale")
        await pilot.press("r", "greater_than_sign", "down")
        table = pilot.app.query_one("#rows", Rows)
        chosen = table.chosen
        assert chosen is not None
        await pilot.press("r")
        assert table.chosen is not None
        assert table.chosen.name == chosen.name
        await pilot.press("home", "end", "pageup", "pagedown", "enter")
        assert isinstance(pilot.app.screen, TextPage)
        await _until(pilot, "Phases")
        await pilot.press("escape")
        await _until(pilot, "CALLS/S")

    _on_screen(_told(_Answers(7, eventful())), play)


def test_help_and_quit() -> None:
    app = _told(_Answers(7, eventful()))

    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "score")
        await pilot.press("question_mark")
        await _until(pilot, "move the cursor")
        await pilot.press("q")
        await _until(pilot, "CALLS/S")
        assert app.is_running
        await pilot.press("q")

    _on_screen(app, play)
    assert app.return_code == 0


def test_a_pause_holds_the_picture() -> None:
    process = _Answers(7, snapshot(calls("first")))

    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "first")
        await pilot.press("p")
        await _until(pilot, "paused")
        process._answers = [snapshot(calls("second"))]
        await pilot.pause(0.1)
        assert "second" not in screen(pilot.app)
        await pilot.press("p")
        await _until(pilot, "second")

    _on_screen(_told(process), play)


def test_names_of_users_do_nothing_to_the_screen() -> None:
    answer = snapshot(*(calls(name, count=9 - number) for number, name in enumerate(HOSTILE)))

    async def play(pilot: Pilot[None]) -> None:
        shown = await _until(pilot, "[bold red]x[/]"[:14])
        assert all(line.isprintable() for line in shown.splitlines())
        await pilot.press("enter")
        assert all(line.isprintable() for line in screen(pilot.app).splitlines())

    _on_screen(_told(_Answers(7, answer)), play, (100, 30))


def test_real_processes_are_followed_to_their_ends(started: _Started) -> None:
    children = [started.start() for _ in range(3)]
    for child in children:
        started.said(child)

    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "3 processes")
        await pilot.press("2")
        children[0].send_signal(signal.SIGKILL)
        children[0].wait()
        await _until(pilot, "2 processes")
        await _until(pilot, "ended")
        children[1].send_signal(signal.SIGSTOP)
        try:
            await _until(pilot, "1 silent")
        finally:
            children[1].send_signal(signal.SIGCONT)
        await _until(pilot, "2 processes")
        for child in children[1:]:
            child.kill()
            child.wait()
        await _until(pilot, "0 processes")

    following = Following(deadline=0.3)
    _on_screen(Top(interval=0.05, watching=Watching(following), probe=False), play, (120, 30))


def test_nobody_to_follow(place: Path) -> None:  # noqa: F811
    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, NO_PROCESS)

    _on_screen(Top(interval=0.05, probe=False), play)


def test_a_folder_of_others_is_said_on_the_screen(place: Path) -> None:  # noqa: F811
    place.chmod(0o755)

    async def play(pilot: Pilot[None]) -> None:
        await _until(pilot, "is not used")

    _on_screen(Top(interval=0.05, probe=False), play)
