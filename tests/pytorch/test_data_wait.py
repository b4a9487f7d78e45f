from __future__ import annotations

import contextvars
import threading

import pytest

from anygpu.pytorch import measuring


def alone(check: object) -> None:
    contextvars.Context().run(check)  # type: ignore[arg-type]


def test_a_wait_is_taken_once() -> None:
    def check() -> None:
        assert measuring.take_data_wait() is None
        train, extra = object(), object()
        measuring.add_data_wait(train, 1.0)
        measuring.add_data_wait(train, 0.5)
        measuring.add_data_wait(extra, 2.0)
        assert measuring.take_data_wait() == pytest.approx(3.5)
        assert measuring.take_data_wait() is None

    alone(check)


def test_no_wait_at_all_is_not_unknown() -> None:
    def check() -> None:
        measuring.add_data_wait(object(), 0.0)
        assert measuring.take_data_wait() == 0.0

    alone(check)


def test_a_loop_that_only_evaluates_leaves_nothing_for_the_next_step() -> None:
    def check() -> None:
        train, evaluate = object(), object()
        measuring.add_data_wait(train, 1.0)
        measuring.add_data_wait(evaluate, 5.0)
        measuring.forget_data_wait(evaluate)
        measuring.forget_data_wait(evaluate)
        assert measuring.take_data_wait() == 1.0

    alone(check)


def test_threads_do_not_see_each_other() -> None:
    def check() -> None:
        measuring.add_data_wait(object(), 1.0)
        seen: list[float | None] = []
        thread = threading.Thread(target=lambda: seen.append(measuring.take_data_wait()))
        thread.start()
        thread.join()
        assert seen == [None]
        assert measuring.take_data_wait() == 1.0

    alone(check)
