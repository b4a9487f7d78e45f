from __future__ import annotations

import contextvars
import threading

import pytest

from anygpu.pytorch import data_wait


def alone(check: object) -> None:
    contextvars.Context().run(check)  # type: ignore[arg-type]


def test_a_wait_is_taken_once() -> None:
    def check() -> None:
        assert data_wait.take() is None
        train, extra = object(), object()
        data_wait.add(train, 1.0)
        data_wait.add(train, 0.5)
        data_wait.add(extra, 2.0)
        assert data_wait.take() == pytest.approx(3.5)
        assert data_wait.take() is None

    alone(check)


def test_no_wait_at_all_is_not_unknown() -> None:
    def check() -> None:
        data_wait.add(object(), 0.0)
        assert data_wait.take() == 0.0

    alone(check)


def test_a_loop_that_only_evaluates_leaves_nothing_for_the_next_step() -> None:
    def check() -> None:
        train, evaluate = object(), object()
        data_wait.add(train, 1.0)
        data_wait.add(evaluate, 5.0)
        data_wait.forget(evaluate)
        data_wait.forget(evaluate)
        assert data_wait.take() == 1.0

    alone(check)


def test_threads_do_not_see_each_other() -> None:
    def check() -> None:
        data_wait.add(object(), 1.0)
        seen: list[float | None] = []
        thread = threading.Thread(target=lambda: seen.append(data_wait.take()))
        thread.start()
        thread.join()
        assert seen == [None]
        assert data_wait.take() == 1.0

    alone(check)
