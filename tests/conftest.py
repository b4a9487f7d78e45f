from __future__ import annotations

import gc
import os
import tempfile

import pytest
from hypothesis import settings

# SciPy's own switch for arrays that are not NumPy's; it is read once, when SciPy is first imported by anyone.
os.environ["SCIPY_ARRAY_API"] = "1"

# Tests neither read nor change what the user's own programs have left on disk, and never measure kernels on the side.
os.environ.setdefault("ANYGPU_CACHE_DIR", tempfile.mkdtemp(prefix="anygpu-tests-"))
os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")

# In CI the same examples every time: a gate that fails by chance teaches nobody anything. On a developer's machine new
# ones each time, which is where surprises belong.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before() -> None:
    """Looking for leaks means collecting garbage, again and again: what is left of earlier files is not looked at."""
    gc.collect()
    gc.freeze()
