"""NumPy's functions reach ours, whichever of our modules was imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anygpu.array.core.overrides import FUNCTIONS, UFUNCS, implements, override
from anygpu.array.functions import numpy_functions


@pytest.fixture
def tables_as_before() -> object:
    functions, ufuncs = dict(FUNCTIONS), dict(UFUNCS)
    yield
    for table, before in ((FUNCTIONS, functions), (UFUNCS, ufuncs)):
        table.clear()
        table.update(before)


def test_a_name_that_numpy_lacks_is_passed_over(tables_as_before: None) -> None:
    before = len(FUNCTIONS)

    @implements("a_function_of_a_later_numpy")
    def ours() -> int:
        return 1

    assert ours() == 1
    assert len(FUNCTIONS) == before


def test_functions_and_ufuncs_are_told_apart(tables_as_before: None) -> None:
    @implements(np.array2string, np.isnat, "busday_count")
    def ours() -> None: ...

    assert FUNCTIONS[np.array2string] is FUNCTIONS[np.busday_count] is UFUNCS[np.isnat] is ours


def test_a_function_without_an_override_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        override(np.busday_count)


@pytest.mark.parametrize(
    "use",
    [
        "np.add(x, x)",
        "np.modf(x)",
        "np.matmul(x, x)",
        "np.sum(x)",
        "np.linalg.norm(x)",
        "x.sum()",
        "x.conj()",
        "x @ x",
        "x[0]",
        "x.__array_namespace__()",
    ],
)
def test_the_first_use_of_an_array_finds_what_it_needs(use: str) -> None:
    """In a process of its own, in which only the core was imported."""
    script = f"""
import sys, pickle, numpy as np
from anygpu.array.core.array import as_array
from anygpu.array.core.device import device_for
assert not [each for each in sys.modules if each.startswith("anygpu.array.functions.")]
x = as_array(np.ones(3, np.float32), device_for("numpy"))
{use}
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_file_that_has_functions_is_listed() -> None:
    files = Path(numpy_functions.__file__).parent.glob("*.py")
    found = {file.stem for file in files if "\n@implements(" in file.read_text(encoding="utf-8")}
    assert found <= set(numpy_functions.MODULES)


def test_files_are_loaded_until_the_function_is_found() -> None:
    script = """
import sys, numpy as np
from anygpu.array.core.array import as_array
from anygpu.array.core.device import device_for
x = as_array(np.ones(3, np.float32), device_for("numpy"))
np.sum(np.exp(x))
print("anygpu.array.functions.polynomials" in sys.modules)
np.polyval(x, 2)
print("anygpu.array.functions.polynomials" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
