"""Errors of users that misbehave: none of them ends a lane, and each arrives where its result is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest

from anygpu.errors import AnyGPUError, DeviceLost, name_of, text_of
from anygpu.runtime.runtime import Runtime
from tests.runtime.holding import PATIENCE, WIDTH

X = np.ones(3)


def _fail(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("an error that fails itself")


def _exit(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit


class Named(type):
    __name__ = property(_fail)


class OddText(Exception):
    __str__ = __repr__ = _fail


class OddExit(Exception):
    __str__ = __repr__ = _exit


class NoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class OddClass(Exception):
    __class__ = property(_fail)


class OddName(Exception, metaclass=Named):
    pass


class OddAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        _fail()


class OddReduce(Exception):
    __reduce__ = __reduce_ex__ = _fail


class Ours(AnyGPUError):
    """As a user might derive one of their own."""

    __str__ = __repr__ = with_traceback = _fail


class OursLost(DeviceLost):
    __str__ = __repr__ = _exit

    def __init__(self) -> None:
        super().__init__("numpy")


class OddBase(BaseException):
    __str__ = __repr__ = _exit


ODD = [OddText, OddExit, NoText, OddClass, OddName, OddAttributes, OddReduce, Ours, OursLost, OddBase]


def raising(kind: Callable[[], BaseException]) -> Callable[[Any], Any]:
    def bad(x: Any) -> Any:
        raise kind()

    return bad


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("kind", ODD, ids=lambda kind: type.__repr__(kind))
@pytest.mark.parametrize("given", [{}, {"on": "opencl"}, {"engine": "torch"}], ids=str)
def test_lanes_go_on(runtime: Runtime, kind: type[BaseException], given: dict[str, Any]) -> None:
    bad = raising(kind)
    futures = [runtime.submit(bad, X, tenant="a", **given) for _ in range(2 * WIDTH)]
    for future in futures:
        raised = future.exception(PATIENCE)
        assert type(raised) is kind or "opencl" in given.values()
        assert not future.cancelled()
    assert runtime.submit(np.sum, X, tenant="b").result(PATIENCE) == 3
    assert runtime.submit(np.sum, X, tenant="b", **given if "on" in given else {}).result(PATIENCE) == 3
    assert runtime.health().open_tasks == 0


def test_awaiting_one(runtime: Runtime) -> None:
    async def wait() -> None:
        await runtime.submit(raising(NoText), X)

    with pytest.raises(NoText):
        asyncio.run(wait())


def test_a_callback_that_raises_one(runtime: Runtime) -> None:
    def called(_: Any) -> None:
        raise OddBase

    future = runtime.submit(np.sum, X)
    future.add_done_callback(called)
    future.result(PATIENCE)
    assert [each.value for each in runtime.map(np.sum, [X] * 2 * WIDTH)] == [3] * 2 * WIDTH


@pytest.mark.parametrize("kind", ODD, ids=lambda kind: type.__repr__(kind))
def test_text(kind: type[BaseException]) -> None:
    assert isinstance(text_of(kind()), str)
    assert isinstance(name_of(kind()), str)
