"""What a page costs its server: browsers come and go, and none is to wait for another."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from anygpu.observe.dashboard import server
from anygpu.observe.dashboard.history import History
from anygpu.observe.dashboard.panels import View
from anygpu.observe.dashboard.server import TABS, Dashboard, columns, figures
from tests.observe.dashboard.invented import Invented

NAMES = [name for name in TABS if name != "page"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def history() -> History:
    """Half a minute of four processes with 2,000 calls a second."""
    clock, history = Clock(), History()
    source = Invented(clock)
    for _ in range(60):
        clock.now += 0.5
        history.add(source.snapshots(history.since()), clock.now)
    return history


def view(history: History, **chosen: Any) -> View:
    return View(max(each.answered for each in history.processes.values()), **({"window": 30.0} | chosen))


def drawn_columns(data: Any) -> Any:
    """Without what belongs to axes."""
    return data[0] if isinstance(data, tuple) else data


def test_figures_have_the_columns_that_they_draw(history: History) -> None:
    drawn = json.loads(figures())
    names = [name.removeprefix("plot-") for name in drawn["roots"].values()]
    assert len(names) == len(set(names)) == 11
    empty = {
        each["attributes"]["name"].removesuffix(" data"): {
            column for column, _ in each["attributes"]["data"]["entries"]
        }
        for each in models(drawn)
        if each["name"] == "ColumnDataSource" and "name" in each["attributes"]
    }
    sent = {name: data for tab in NAMES for name, data in columns(history, view(history), tab).items()}
    assert set(empty) == set(names)
    for name in names:
        assert set(drawn_columns(sent[name])) == empty[name], name


def models(value: Any) -> list[Any]:
    """All that are within, each once."""
    if isinstance(value, list):
        return [each for one in value for each in models(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if value.get("type") == "object" and "attributes" in value else []
    return own + [each for one in value.values() for each in models(one)]


def test_every_panel_of_the_page_has_data(history: History) -> None:
    page = (Path(server.__file__).with_name("page.html")).read_text()
    for tab in NAMES:
        part = page.split(f'<div data-tab="{tab}"')[1].split("<div data-tab=")[0]
        sent = columns(history, view(history), tab)
        wanted = [
            each.split('"')[0]
            for mark in ('id="plot-', 'data-source="', 'data-legend="')
            for each in part.split(mark)[1:]
        ]
        assert wanted
        assert set(wanted) <= set(sent), tab


@pytest.mark.parametrize(
    "chosen", [{"tab": "page"}, {"tab": "x"}, {"window": "3"}, {"process": "-1"}, {"process": "9" * 99}, {}]
)
def test_a_choice_that_is_none_changes_nothing(chosen: dict[str, str]) -> None:
    """The browser may send anything."""
    dashboard = Dashboard(Invented(time.time))

    async def ask(chosen: dict[str, str]) -> Any:
        return msgspec.json.decode(dashboard._columns(chosen))

    found = asyncio.run(ask(chosen))
    assert found.keys() == asyncio.run(ask({"tab": "overview", "window": "30 s"})).keys()
    dashboard._server.listener.close()


def test_columns_take_less_than_200_ms(history: History) -> None:
    figures()
    for tab in NAMES:
        for pid in (None, next(iter(history.processes))):
            begin = time.thread_time()
            found = columns(history, view(history, window=600.0, process=pid), tab)
            msgspec.json.encode(found, enc_hook=lambda array: array.tolist())
            assert time.thread_time() - begin < 0.2, tab
