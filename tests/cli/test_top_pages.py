"""What `anygpu top` shows, as values: rows, their order, columns that fit, and names that do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from anygpu.base.printable import printable
from anygpu.base.tables import clock, compact, percent
from anygpu.cli.top import pages as devices
from anygpu.cli.top.pages import PAGES, details, filtered, fit, heading, headline, in_order, widths
from anygpu.hardware.usage import Readings
from anygpu.observe.looking import Following, Look, NoAnswer, ObservedProcess, processor_share, rates
from anygpu.observe.snapshot import DeviceMemoryUse, FallbackRecord, Snapshot
from anygpu.observe.tables import bar, short_command
from tests.observe.snapshots import calls, eventful, snapshot, training

FUNCTIONS, PROCESSES, QUEUES, TENANTS, LOSSES, ANOMALIES, STEPS = PAGES


class _Answers(ObservedProcess):
    """A process that says what it is told to."""

    def __init__(self, pid: int, *answers: Snapshot | NoAnswer) -> None:
        super().__init__(Path(f"/nowhere/{pid}-0.sock"))
        self._answers = list(answers)

    def ask(self, since: int | None = 0, *, deadline: float = 1.0) -> Snapshot:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, NoAnswer):
            raise answer
        return answer


def _look(before: Snapshot | None = None, after: Snapshot | None = None, **more: object) -> Look:
    after = after or eventful()
    return Look(_Answers(after.process.pid, after), after, before, **more)  # type: ignore[arg-type]


def _texts(page: object, *looks: Look) -> list[list[str]]:
    rows = page.rows(looks)  # type: ignore[attr-defined]
    return [[cell.text for cell in row.cells] for row in rows]


def test_calls_per_second_are_those_between_two_answers() -> None:
    before = snapshot(calls("score", count=100, seconds=1e-3), time=100.0)
    after = snapshot(calls("score", count=300, seconds=1e-3), calls("new", count=10), time=102.0)
    found = rates(_look(before, after))
    assert found["score", "numpy"].calls == 100.0
    assert found["score", "numpy"].busy == pytest.approx(0.1)
    assert found["new", "numpy"].calls == 5.0
    assert processor_share(_look(before, after)) == pytest.approx(0.1)
    assert rates(_look(None, after)) == {}, "after one answer nothing is known"
    assert rates(_look(after, after)) == {}, "nor when no time has passed"


def test_a_process_that_was_begun_again_has_no_negative_rates() -> None:
    before = snapshot(calls("score", count=300), time=100.0)
    after = snapshot(calls("score", count=3), time=102.0)
    assert rates(_look(before, after))["score", "numpy"].calls == 0.0


def test_functions() -> None:
    (row, _) = _texts(FUNCTIONS, _look(eventful(98.0)))
    by_name = dict(zip((heading(column) for column in FUNCTIONS.columns), row, strict=True))
    assert by_name == {
        "FUNCTION": "score", "PID": "7", "DEVICE": "webgpu:0", "CALLS/S": "0", "BUSY": "0.0%", "P50": "2 ms",
        "P99": "4 ms", "ERR": "3", "FALL": "4", "CALLS": "500", "MOVED": "1.0 M", "QUEUE": "0.0%", "PRED": "–",
    }  # fmt: skip


def test_the_other_pages() -> None:
    look = _look(eventful(98.0))
    assert _texts(PROCESSES, look)[0][:9] == ["7", "script.py", "answers", "0", "10%", "5.0 M", "3", "12", "590"]
    assert _texts(QUEUES, look)[1][:4] == ["7", "webgpu:0", "late", "score"]
    assert _texts(TENANTS, look) == [["reports", "7", "12", "4.0 K", "1.5 s", "0.0%"]]
    assert [row[0] for row in _texts(LOSSES, look)] == ["lost", "fallback"]
    assert _texts(LOSSES, look)[1][3:] == ["30s", "score: webgpu:0: DeviceLost: gone"]
    assert _texts(ANOMALIES, look) == [["5s", "7", "slower", "score", "score takes 2 ms, not 1"]]


def test_steps() -> None:
    look = _look(snapshot(training(count=8), time=98.0), snapshot(training(), calls("score"), time=100.0))
    (row,) = _texts(STEPS, look)
    by_name = dict(zip((heading(column) for column in STEPS.columns), row, strict=True))
    assert by_name == {
        "FUNCTION": "train", "PID": "7", "DEVICE": "torch:cpu", "STEPS/S": "1", "P50": "100 ms", "WAIT": "5.0%",
        "MOVE": "10%", "PARTS": "backward 50%, forward 25%, optimizer 5%", "AGAIN": "2", "ERR": "1",
        "PEAK": "96.0 M", "PREDICTED": "88.0 M",
    }  # fmt: skip
    said = details(STEPS, STEPS.rows([look])[0], [look]).plain
    assert "    backward" in said, "below the phase that it is a part of"
    assert "96.0 M at most at once, 88.0 M predicted" in said
    assert "2 attempts failed and were made again" in said


def test_a_repeat_is_no_fallback() -> None:
    again = FallbackRecord(70.0, "train", "torch:cpu", "torch:cpu: OutOfMemory: 1 GiB was refused", repeated=True)
    (row,) = _texts(LOSSES, _look(None, snapshot(fallbacks=(again,))))
    assert (row[0], row[4]) == ("repeat", "train: torch:cpu: OutOfMemory: 1 GiB was refused")


def test_a_process_that_is_silent_or_gone_is_shown_as_such() -> None:
    silent, gone = _look(trouble="busy or stopped"), _look(trouble="it has ended", ended=3.0)
    assert [row[2] for row in _texts(PROCESSES, silent, gone)] == ["silent", "ended"]
    assert headline([silent, gone]).startswith("0 processes · 0 calls/s · 1 silent")
    never = Look(_Answers(9, NoAnswer("process 9 has not answered")), trouble="process 9 has not answered")
    assert _texts(PROCESSES, never)[0][1] == "process 9 has not answered"
    assert _texts(FUNCTIONS, never) == []


def test_following_processes_that_come_and_go() -> None:
    now = [0.0]
    ended = NoAnswer("process 2 has ended", ended=True)
    first, second = _Answers(1, snapshot(time=1.0), snapshot(time=2.0)), _Answers(2, snapshot(pid=2), ended)
    there = [first, second]
    following = Following(find=lambda: there, clock=lambda: now[0])
    assert [look.before for look in following.look()] == [None, None]
    looks = following.look()
    assert looks[0].before is not None
    assert looks[1].ended == 0.0
    del there[1]
    now[0] = 5.0
    assert [look.process.pid for look in following.look()] == [1, 2], "it is shown for a while"
    del there[0]
    looks = following.look()
    assert looks[0].trouble == "process 1 has ended", "one that has said goodbye has ended, too"
    now[0] = 30.0
    assert following.look() == []
    following.close()


def test_order_and_filter() -> None:
    rows = FUNCTIONS.rows([_look(eventful(98.0))])
    names = [row.cells[0].text for row in in_order(rows, 9, descending=False)]
    assert names == ["scale", "score"]
    assert [row.cells[0].text for row in in_order(rows, 9, descending=True)] == ["score", "scale"]
    unknown_last = in_order(FUNCTIONS.rows([_look(None)]), 3, descending=True)
    assert [row.cells[0].text for row in unknown_last] == ["scale", "score"]
    assert [row.cells[0].text for row in filtered(rows, "WEBGPU sco")] == ["score"]
    assert filtered(rows, "webgpu scale") == []
    assert len(filtered(rows, "  ")) == 2


def test_columns_fit() -> None:
    for page in PAGES:
        for available in range(80, 200):
            taken = widths(page.columns, available)
            shown = [width for width in taken if width]
            assert sum(shown) + len(shown) - 1 == available, (page.title, available)
        assert all(widths(page.columns, 200)), "on a wide screen everything is shown"
    assert sum(bool(width) for width in widths(devices.DEVICES, 80)) == 6


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.94, "0.9"),
        (12.34, "12.3"),
        (950, "950"),
        (9999, "9,999"),
        (12345, "12.3k"),
        (250_000, "250k"),
        (4.56e6, "4.6M"),
        (1e9, "1.0G"),
    ],
)
def test_numbers_are_short(value: float, words: str) -> None:
    assert compact(value) == words
    assert len(words) <= 5


def test_shares_and_times_are_short() -> None:
    assert [percent(value) for value in (0.0, 0.0312, 0.0996, 0.5, 1.0, 3.2)] == [
        "0.0%", "3.1%", "10%", "50%", "100%", "320%",
    ]  # fmt: skip
    times = {0: "0s", 59: "59s", 60: "1:00", 3599: "59:59", 3600: "1:00:00", 400_000: "4d 15h"}
    assert {seconds: clock(seconds) for seconds in times} == times


def test_commands_without_their_interpreter() -> None:
    assert short_command("/opt/venv/bin/python3.11 -m mine --fast") == "-m mine --fast"
    assert short_command("gunicorn app") == "gunicorn app"
    assert short_command("python") == "python"


# -- names come from users

HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J", "[bold red]x[/]", "a\nb\rc", "\u202egnp.exe", "[@click=app.quit]q[/]", "\x9b31m",
    "x" * 5000, "\ud800", "表" * 40, "\0",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_reaches_the_terminal_as_anything_else(name: str) -> None:
    look = _look(
        snapshot(calls(name), time=99.0),
        snapshot(calls(name, name, errors={name: 1}, parts={name: 1.0}), runtime=None, time=100.0),
    )
    for page in (FUNCTIONS, STEPS):
        (row,) = page.rows([look])
        assert all(cell.text.isprintable() and len(cell.text) <= 500 for cell in row.cells)
        shown = details(page, row, [look])
        assert all(line.isprintable() for line in shown.plain.splitlines())
        assert shown.spans == [span for span in shown.spans if span.style in ("bold", "dim")], "markup is only text"


def test_fitting_counts_cells_and_not_letters() -> None:
    from rich.cells import cell_len

    for name in ("表" * 40, "a表b", "plain", "é" * 20, ""):
        for room in (1, 2, 7, 10):
            assert cell_len(fit(name, room, right=True)) == room
            assert cell_len(fit(name, room, right=False)) == room
    assert fit("abcdef", 4, right=False) == "abc…"
    assert printable("abc", 2) == "a…"


# -- devices


def _usage(card: str, source: str, **known: object) -> object:
    readings = Readings()
    for name, value in known.items():
        readings.add(name, value)
    return readings.usage(card, source, "nobody says")


def test_software_adds_up_and_cards_do_not() -> None:
    software = _usage("webgpu:0", "worker", load=0.4, memory_used=100 << 20, memory_total=1 << 30)
    card = _usage("nvidia:0", "nvml", load=0.5, memory_used=1 << 30, memory_total=8 << 30, temperature=90.0)
    answers = snapshot(
        usage={"webgpu:0": software, "torch:cuda:0": card},
        memory={"webgpu:0": DeviceMemoryUse(bytes=1 << 20, peak_bytes=1 << 20)},
    )
    looks = [_look(None, answers), _look(None, answers)]
    first, second = devices.cards({}, (), looks)
    assert (first.name, first.usage.load, first.usage.memory_used, first.held) == ("webgpu:0", 0.8, 200 << 20, 2 << 20)
    assert (second.name, second.usage.load, second.devices) == ("nvidia:0", 0.5, ("torch:cuda:0",))
    rows = devices.device_rows([first, second])
    assert rows[1].cells[4].text == "90"
    assert rows[1].cells[4].tone == "bad"
    assert rows[1].cells[0].text == "nvidia:0 (torch:cuda:0)"
    own = {"torch:cuda:0": _usage("nvidia:0", "nvml", load=0.9, throttled=("too hot",))}
    (seen, _) = devices.cards(own, (), looks)  # type: ignore[arg-type]
    assert seen.usage.load == 0.9, "what this process sees itself is newer"
    assert "throttled, too hot" in devices.device_rows([seen])[0].cells[0].text


def test_bars() -> None:
    assert bar(None) == "–"
    assert bar(0.0) == "░░░░░░░░░░   0%"
    assert bar(0.71) == "███████░░░  71%"
    assert bar(1.0) == "██████████ 100%"
