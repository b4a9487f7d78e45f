"""Writes down each kernel that a process compiles, and that the compiler took; `scripts/kernel-compilers` reads it.

Python imports a module of this name when it starts, where this folder is on PYTHONPATH: so the processes that a test
starts are seen, too. Each distinct text becomes one file in the folder that ANYGPU_KERNEL_TEXTS names.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("ANYGPU_KERNEL_TEXTS")


def write(dialect: str, source: str, **facts: Any) -> None:
    """Beside what other processes write: whoever comes first has written the same."""
    folder = Path(str(FOLDER))
    path = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:20]}.json"
    if path.exists() and not facts.get("layout"):
        return
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps({"dialect": dialect, "source": source, **facts}))
    own.replace(path)


def kernel_taken(dialect: str, kernel: Any) -> None:
    """A kernel of ours; for a user's own also the text as the user wrote it, which need not be portable."""
    layout = ["read-only-storage" if each.access == "read" else "storage" for each in kernel.bindings]
    write(
        dialect,
        kernel.source,
        name=kernel.name,
        layout=[*layout, *(["uniform"] if kernel.numbers and dialect == "wgsl" else [])] or None,
        original=None if kernel.own is None else kernel.own.source,
    )


def after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Calls `then` with the result and the arguments of a method that did not raise."""
    method = getattr(owner, name)

    @wraps(method)
    def called(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        then(result, *arguments, **options)
        return result

    setattr(owner, name, called)


def _watch_builder(module: ModuleType) -> None:
    after(module.Builder, "_function", lambda _, builder, kernel: kernel_taken("opencl", kernel))


def _watch_pipelines(module: ModuleType) -> None:
    after(module.Pipelines, "_compile", lambda _, pipelines, kernel, layout: kernel_taken("wgsl", kernel))


def _watch_wgpu(module: ModuleType) -> None:
    """What tests give to the library themselves: templates with accessors of the tests' own, the functions' tests."""

    def taken(_: Any, device: Any, *, code: Any = None, **options: Any) -> None:
        if isinstance(code, str):
            write("wgsl", code)

    after(module.GPUDevice, "create_shader_module", taken)


def _watch_pyopencl(module: ModuleType) -> None:
    def taken(_: Any, program: Any, *arguments: Any, **options: Any) -> None:
        source = getattr(program, "_source", None)
        if isinstance(source, str):
            write("opencl", source)

    after(module.Program, "build", taken)


WATCHED = {
    "anygpu.engines.opencl.builder": _watch_builder,
    "anygpu.engines.webgpu.encoder": _watch_pipelines,
    "wgpu.backends.wgpu_native._api": _watch_wgpu,
    "pyopencl": _watch_pyopencl,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched modules as everybody else does, and has a look at each once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            after(spec.loader, "exec_module", lambda _, module: WATCHED[name](module))
        return spec


if FOLDER:
    sys.meta_path.insert(0, _Finder())
