from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import repeating

# SciPy's own switch for arrays that are not NumPy's; it is read once, when SciPy is first imported by anyone.
os.environ["SCIPY_ARRAY_API"] = "1"

# Tests neither read nor change what the user's own programs have left on disk, never measure kernels on the side, and
# do not learn from each other.
os.environ.setdefault("ANYGPU_CACHE_DIR", tempfile.mkdtemp(prefix="anygpu-tests-"))
os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")
os.environ.setdefault("ANYGPU_HISTORY", "off")

#: Workers of pytest-xdist have it from the process that started them; a test may set another one for itself.
_SHARED_FOLDER = Path(os.environ["ANYGPU_CACHE_DIR"])

# In CI the same examples every time: a gate that fails by chance teaches nobody anything. On a developer's machine new
# ones each time, which is where surprises belong.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(repeating)


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before() -> None:
    """Looking for leaks means collecting garbage, again and again: what is left of earlier files is not looked at.

    Nor is a device still explored for functions of an earlier file.
    """
    planning = sys.modules.get("anygpu.placement.planner")
    if planning is not None and planning._default is not None:
        planning._default.settle(60)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """The first look at a machine's devices starts every library at once: a busy machine takes its time for that."""
    from anygpu.residency import registry

    registry.LOOK_SECONDS = 180.0


#: Files that take longest: processes that begin with these are done at about the same time.
LONGEST = (
    "tests/semantics/test_corpus.py",
    "tests/engines/test_programs.py",
    "tests/codegen/test_matmul.py",
    "tests/engines/test_compiling.py",
    "tests/engines/test_sizes.py",
)

#: Folders of which many tests wait for processes that have to answer in time: each runs as if it were marked `serial`
#: until it has been shown to pass beside others, again and again.
ALONE = (
    "tests/benchmarks/",
    "tests/cli/",
    "tests/docs/",
    "tests/examples/",
    "tests/faults/",
    "tests/fleet/",
    "tests/hardware/",
    "tests/integration/",
    "tests/placement/",
    "tests/residency/",
    "tests/runtime/",
    "tests/serving/",
    "tests/streams/",
)


#: Folders of tests that need the whole machine: clusters and servers of many processes.
WHOLE_MACHINE = ("tests/fleet/", "tests/serving/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, files that take longest come first, and what runs alone comes last."""
    for item in items:
        if item.nodeid.startswith(WHOLE_MACHINE):
            item.add_marker("serial")
    if "PYTEST_XDIST_WORKER" in os.environ:
        first = {name: number for number, name in enumerate(LONGEST)}
        names = {item: item.nodeid.partition("::")[0] for item in items}
        items.sort(key=lambda item: (names[item].startswith(ALONE), first.get(names[item], len(LONGEST))))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked `serial` has the machine for itself: no other worker of pytest-xdist runs one beside it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    import fcntl

    alone = item.get_closest_marker("serial") is not None or item.nodeid.startswith(ALONE)
    with (_SHARED_FOLDER / "tests-turn").open("w") as turn, (_SHARED_FOLDER / "tests-running").open("w") as running:
        # A test that waits to be alone has the turn, so that others do not go on past it.
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            # Not only by closing: a process that was forked off meanwhile has it open, too.
            fcntl.flock(running, fcntl.LOCK_UN)
