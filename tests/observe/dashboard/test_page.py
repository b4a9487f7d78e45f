"""What a page costs its server: browsers come and go, and none is to wait for another."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from bokeh.document import Document

from anygpu.observe.dashboard.figures import figures
from anygpu.observe.dashboard.history import History
from anygpu.observe.dashboard.page import LINES, TABLES, Page
from tests.observe.dashboard.invented import Invented


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def page() -> tuple[History, Clock]:
    """Half a minute of four processes with 2,000 calls a second."""
    clock, history = Clock(), History()
    source = Invented(clock)
    for _ in range(60):
        clock.now += 0.5
        history.add(source.snapshots(history.since()), clock.now)
    return history, clock


def opened(page: tuple[History, Clock]) -> tuple[Page, Document]:
    found, document = Page(*page), Document()
    found.open(document, lambda page: None)
    return found, document


def choose(document: Document, **chosen: object) -> None:
    source = document.get_model_by_name("choices data")
    source.data = {name: [value] for name, value in chosen.items()}


def test_every_figure_has_a_source_in_the_session(page: tuple[History, Clock]) -> None:
    _, document = opened(page)
    drawn = json.loads(figures())

    names = [name.removeprefix("plot-") for name in drawn["roots"].values()]
    assert len(names) == len(set(names)) == 11
    for name in names:
        assert document.get_model_by_name(f"{name} data") is not None, name


def test_figures_have_the_columns_that_they_draw(page: tuple[History, Clock]) -> None:
    found, document = opened(page)
    empty = {
        each["attributes"]["name"]: {column for column, _ in each["attributes"]["data"]["entries"]}
        for each in models(json.loads(figures()))
        if each["name"] == "ColumnDataSource" and "name" in each["attributes"]
    }

    assert len(empty) == 11
    for tab in ("devices", "queue", "predictions", "overview"):
        choose(document, tab=tab)
    for name, columns in empty.items():
        assert set(document.get_model_by_name(name).data) == columns, name
    assert found.tab == "overview"


def models(value: Any) -> list[Any]:
    """All that are within, each once."""
    if isinstance(value, list):
        return [each for one in value for each in models(one)]
    if not isinstance(value, dict):
        return []
    own = [value] if value.get("type") == "object" and "attributes" in value else []
    return own + [each for one in value.values() for each in models(one)]


@pytest.mark.parametrize("chosen", [{"tab": "page"}, {"tab": []}, {"tab": {}}, {"window": 3}, {"process": "-1"}, {}])
def test_a_choice_that_is_none_changes_nothing(page: tuple[History, Clock], chosen: dict[str, object]) -> None:
    found, document = opened(page)

    choose(document, **chosen)

    assert (found.tab, found.process, found.paused) == ("overview", None, False)


def test_a_page_and_a_choice_take_less_than_200_ms(page: tuple[History, Clock]) -> None:
    figures()
    opened(page)

    begin = time.thread_time()
    found, document = opened(page)
    document.to_json()
    assert time.thread_time() - begin < 0.2
    pids = ["", *(str(pid) for pid in page[0].processes)]
    for tab in [*(set(TABLES) - {"page"}), *LINES]:
        for pid in pids[:2]:
            begin = time.thread_time()
            choose(document, tab=tab, process=pid, window="10 min")
            assert time.thread_time() - begin < 0.2, tab
        assert found.tab == tab
