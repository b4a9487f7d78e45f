"""Servers on real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from anygpu.runtime.serving.server import Server
from benchmarks.serving_client import Connection

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def double(x: Any) -> Any:
    return x * 2


def affine(x: Any, w: Any, *, bias: Any = 1.0) -> Any:
    return x @ w + bias


def parts(x: Any) -> dict[str, Any]:
    return {"low": x.min(axis=0), "high": x.max(axis=0)}


def typed(x: float32[-1, 3]) -> Any:  # type: ignore[name-defined] # noqa: F821
    return np.sum(x, axis=1)


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers on free ports, which are stopped after the test."""
    with ExitStack() as stack:

        def start(models: dict[str, Any], **options: Any) -> Server:
            return stack.enter_context(Server(models, port=0, **{"notice": 0.0} | options))

        yield start


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests of a module that leave nothing behind."""
    models = {"double": double, "affine": affine, "parts": parts, "typed": typed}
    with Server(models, port=0, notice=0.0) as server:
        yield server


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with Connection(server.port) as connection:
        yield connection
