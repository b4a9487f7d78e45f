"""A list of functions that the first call can read: marks come and go, and whatever is in the file does no harm."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anygpu.calls import hints
from anygpu.calls.hints import (
    NATIVE,
    change_marks,
    forget_marks,
    hints_path,
    is_marked,
    mark_of,
    mark_of_code,
)


def double(x: Any) -> Any:
    return x * 2


def triple(x: Any) -> Any:
    return x * 3


class Model:
    def double(self, x: Any) -> Any:
        return x * 2


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ANYGPU_HISTORY", "on")
    found = hints_path(NATIVE)
    assert found is not None
    return Path(found)


def mark(function: Any) -> bytes:
    found = mark_of(function)
    assert found is not None
    return found


def test_marks_come_and_go(path: Path) -> None:
    assert not is_marked(double, NATIVE)
    change_marks(str(path), [mark(double), mark(triple)], [])
    assert is_marked(double, NATIVE)
    assert is_marked(triple, NATIVE)
    change_marks(str(path), [], [mark(double)])
    assert not is_marked(double, NATIVE)
    assert is_marked(triple, NATIVE)
    assert path.stat().st_mode & 0o777 == 0o600
    forget_marks()
    assert not path.exists()
    forget_marks()


def test_a_mark_is_of_what_the_function_does() -> None:
    assert len({mark(double), mark(triple), mark(Model.double)}) == 3
    assert mark(Model().double) == mark(Model.double)
    assert mark_of(functools.partial(double, 1)) is None
    assert mark_of(np.add) is None


def test_calls_are_marked_by_shapes_and_types_and_not_by_numbers() -> None:
    code = double.__code__
    marks = [
        mark_of_code(code),
        mark_of_code(code, ((3, 4), 12)),
        mark_of_code(code, ((3, 5), 12)),
        mark_of_code(code, ((3, 4), 12, "axis", int)),
        mark_of_code(code, ((3, 4), 12, "axis", float)),
    ]
    assert len(set(marks)) == len(marks)
    assert mark_of_code(code, ((3, 4), 12, "axis", 7)) == marks[3], "a value that decides what is computed"


@pytest.mark.parametrize("setting", ["off", "nonsense"])
def test_nothing_is_kept_or_read_unless_the_user_wants_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    change_marks(str(path), [mark(double)], [])
    monkeypatch.setenv("ANYGPU_HISTORY", setting)
    assert hints_path(NATIVE) is None
    assert not is_marked(double, NATIVE)


def test_the_oldest_marks_go_first(path: Path) -> None:
    for number in range(hints._MOST_MARKS + 10):
        change_marks(str(path), [b"%032x" % number], [])
    kept = path.read_bytes().split()
    assert len(kept) == hints._MOST_MARKS
    assert kept[0] == b"%032x" % (hints._MOST_MARKS + 9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(content=st.binary(max_size=20_000))
def test_whatever_is_in_the_file_does_no_harm(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert not is_marked(double, NATIVE)
    change_marks(str(path), [mark(double)], [])
    assert is_marked(double, NATIVE)
