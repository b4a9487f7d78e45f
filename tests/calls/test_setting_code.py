"""A decorated function is changed in place, as a debugger, a patch or `%autoreload` changes functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from tests.native.cases import device, natively
from tests.support.native_placement import native_at_once

X = np.linspace(0.0, 3.0, 400)


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    with native_at_once():
        yield


def _decorated() -> Any:
    @ag.offload
    def function(x: Any, by: float = 1.0, *, more: float = 0.0) -> Any:
        return np.sin(x) * by + more

    return function


CHANGES: dict[str, Callable[[Any], None]] = {
    "__code__": lambda f: setattr(f, "__code__", (lambda x, by, *, more: np.cos(x) * by + more).__code__),
    "__defaults__": lambda f: setattr(f, "__defaults__", (5.0,)),
    "__kwdefaults__": lambda f: setattr(f, "__kwdefaults__", {"more": 5.0}),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_native", [True, False])
def test_what_is_set_is_the_functions_own(name: str, is_native: bool) -> None:
    function, plain = _decorated(), _decorated().function
    if is_native:
        natively(function, X)
    else:
        function(X)
    CHANGES[name](function)
    CHANGES[name](plain)
    assert np.allclose(function(X), plain(X), rtol=1e-12)
    assert getattr(function, name) is getattr(function.function, name)
    natively(function, X)
    assert np.allclose(function(X), plain(X), rtol=1e-12)
    assert device() == "cpu"


def test_a_method_is_changed_for_all_instances() -> None:
    class Model:
        @ag.offload
        def run(self, x: Any) -> Any:
            return np.sin(x) + 1

    model = Model()
    natively(model.run.__func__, model, X)
    Model.run.__code__ = (lambda self, x: np.sin(x) + 2).__code__
    assert np.allclose(model.run(X), np.sin(X) + 2, rtol=1e-12)
    assert np.allclose(Model().run(X), np.sin(X) + 2, rtol=1e-12)


@pytest.mark.parametrize("name", ["__closure__", "__globals__", "__builtins__"])
def test_what_python_does_not_allow_to_be_set_is_refused(name: str) -> None:
    function = _decorated()
    with pytest.raises(AttributeError):
        setattr(function.function, name, None)
    with pytest.raises(AttributeError):
        setattr(function, name, None)


def test_code_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    function, around = _decorated(), 1.0
    with pytest.raises(ValueError, match="free vars"):
        function.__code__ = (lambda x: x + around).__code__
    with pytest.raises(TypeError):
        function.__code__ = 3
    assert np.array_equal(function(X), np.sin(X))


DECORATOR = """
def twice(f):
    @functools.wraps(f)
    def inner(*given): return 2 * f(*given)
    return inner
"""
#: Modules, what is held of each, and the edit of its file. A line that IPython cannot patch makes it reload the module.
EDITS = {
    "a function": ("@ag.offload\ndef f(x): return x + 1\n", "m.f", {"+ 1": "+ 2"}),
    "a default": ("@ag.offload\ndef f(x, by=1): return x + by\n", "m.f", {"by=1": "by=2"}),
    "an argument more": (
        "@ag.offload\ndef f(x): return x + 1\n",
        "m.f",
        {"(x): return x + 1": "(x, y=2): return x + y"},
    ),
    "a function, decorated twice": (
        DECORATOR + "@ag.offload\n@twice\ndef f(x): return x + 1\n",
        "m.f",
        {"+ 1": "+ 2"},
    ),
    "a method": ("class K:\n    @ag.offload\n    def f(self, x): return x + 1\n", "m.K().f", {"+ 1": "+ 2"}),
    "a static method": (
        "class K:\n    @staticmethod\n    @ag.offload\n    def f(x): return x + 1\n",
        "m.K.f",
        {"+ 1": "+ 2"},
    ),
    "a function of a module that is reloaded": (
        "L = [0 for _ in range(1)]\n@ag.offload\ndef f(x): return x + 1\n",
        "m.f",
        {"+ 1": "+ 2", "range(1)": "range(2)"},
    ),
    "a method of a module that is reloaded": (
        "L = [0 for _ in range(1)]\nclass K:\n    @ag.offload\n    def f(self, x): return x + 1\n",
        "m.K().f",
        {"+ 1": "+ 2", "range(1)": "range(2)"},
    ),
}


def test_autoreload_updates_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.syspath_prepend(str(tmp_path))
    shell = shells.InteractiveShell.instance()
    try:
        shell.run_cell("%load_ext autoreload\n%autoreload 2\nimport numpy as np, anygpu as ag, sys; x = np.zeros(400)")
        for number, (text, held, _) in enumerate(EDITS.values()):
            (tmp_path / f"edited{number}.py").write_text(f"import functools, anygpu as ag\n{text}")
            shell.run_cell(f"import edited{number}; m = edited{number}; h{number} = {held}; _ = h{number}(x)")
        for number, (_, _, edits) in enumerate(EDITS.values()):
            path = tmp_path / f"edited{number}.py"
            source = path.read_text()
            for old, new in edits.items():
                assert old in source
                source = source.replace(old, new)
            path.write_text(source)
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 10))
        shell.run_cell("pass")
        for number, (name, (_, held, _)) in enumerate(EDITS.items()):
            shell.run_cell(f"m = edited{number}; got = float(h{number}(x)[0]), float({held}(x)[0])")
            wanted = 4.0 if "twice" in name else 2.0
            assert shell.user_ns["got"] == (wanted, wanted), name
    finally:
        shell.run_cell("%autoreload 0")
        shells.InteractiveShell.clear_instance()
        for number in range(len(EDITS)):
            sys.modules.pop(f"edited{number}", None)
