"""A fleet as the runtime of a server: requests become its tasks, with the devices that were named for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anygpu.placement.options import TaskOptions
from anygpu.runtime.future import Future
from anygpu.runtime.health import Health
from anygpu.runtime.runtime import Runtime


class TasksOn:
    """Tasks of a runtime on the devices of that name; those of a function that names its own go there."""

    def __init__(self, runtime: Runtime, on: str) -> None:
        self._runtime = runtime
        self._options: TaskOptions = {"on": on}

    @property
    def waiting(self) -> int:
        return self._runtime.waiting

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Future:
        return self._runtime.submit(function, *arguments, **{**self._options, **given})

    def health(self) -> Health:
        return self._runtime.health()
