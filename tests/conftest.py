from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support import repeating, turns
from tests.support.failures_at_once import FailuresAtOnce

# SciPy's own switch for arrays that are not NumPy's; it is read once, when SciPy is first imported by anyone.
os.environ["SCIPY_ARRAY_API"] = "1"

# Tests neither read nor change what the user's own programs have left on disk, never measure kernels on the side, and
# do not learn from each other.
os.environ.setdefault("ANYGPU_CACHE_DIR", tempfile.mkdtemp(prefix="anygpu-tests-"))
os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")
os.environ.setdefault("ANYGPU_HISTORY", "off")

# In CI the same examples every time: a gate that fails by chance teaches nobody anything. On a developer's machine new
# ones each time, which is where surprises belong.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(repeating)


def pytest_sessionstart(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", None)
    if worker is not None:
        turns.ours = turns.Turns(worker["testrunuid"])
        return
    # Workers of pytest-xdist hand their reports to the process that started them, which shows them.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        session.config.pluginmanager.register(FailuresAtOnce(reporter))


def pytest_sessionfinish(session: pytest.Session) -> None:
    started = session.config.pluginmanager.get_plugin("dsession")
    if started is not None:
        shutil.rmtree(turns.folder_of(started.nodemanager.testrunuid), ignore_errors=True)


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

#: Folders of tests that need the whole machine: clusters and servers of many processes.
WHOLE_MACHINE = ("tests/fleet/", "tests/serving/")
#: Of those, what only computes.
ONLY_COMPUTES = (
    "tests/fleet/simulation/",
    "tests/fleet/test_machines.py",
    "tests/fleet/test_scaling.py",
    "tests/fleet/test_templates.py",
)


def is_in_sample(name: str, one_of: int) -> bool:
    """Whether the gate runs this case of a long table. By the name, so that no other case changes which are run."""
    return zlib.crc32(name.encode()) % one_of == 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, files that take longest come first, and those with tests that run alone come last."""
    for item in items:
        sampled = item.get_closest_marker("sampled")
        # First, because `-m` comes next.
        if sampled is not None and not is_in_sample(item.nodeid, sampled.args[0]):
            item.add_marker("slow")
        if item.nodeid.startswith(WHOLE_MACHINE) and not item.nodeid.startswith(ONLY_COMPUTES):
            item.add_marker("serial")
    if "PYTEST_XDIST_WORKER" in os.environ:
        first = {name: number for number, name in enumerate(LONGEST)}
        names = {item: item.nodeid.partition("::")[0] for item in items}
        last = {names[item] for item in items if item.get_closest_marker("serial") is not None}
        items.sort(key=lambda item: (names[item] in last, first.get(names[item], len(LONGEST))))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked `serial` has the machine for itself: no other worker of pytest-xdist runs one beside it."""
    if turns.ours is None:
        return (yield)
    turns.ours.take(alone=item.get_closest_marker("serial") is not None)
    try:
        return (yield)
    finally:
        turns.ours.give_back()
