from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.support.failures_at_once import FailuresAtOnce
from tests.support.sets import mark_samples
from tests.support.switches import switched

# SciPy's own switch for arrays that are not NumPy's; it is read once, when SciPy is first imported by anyone.
os.environ["SCIPY_ARRAY_API"] = "1"

# Tests neither read nor change what the user's own programs have left on disk, and do not learn from each other: an
# earlier test's times would decide where a call runs. They never measure kernels on the side, which takes two seconds
# for each program and, on a busy machine, finds sizes that depend on the other tests.
os.environ.setdefault("ANYGPU_CACHE_DIR", tempfile.mkdtemp(prefix="anygpu-tests-"))
os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")
os.environ.setdefault("ANYGPU_HISTORY", "off")
# What else a test needs otherwise than users have it, it asks for with a mark (`tests/support/switches.py`).

# In CI the same examples every time: a gate that fails by chance teaches nobody anything. On a developer's machine new
# ones each time, which is where surprises belong.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_sessionstart(session: pytest.Session) -> None:
    # Workers of pytest-xdist hand their reports to the process that started them, which shows them.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        session.config.pluginmanager.register(FailuresAtOnce(reporter))


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


@pytest.fixture(scope="module", autouse=True)
def the_precision_of_jax() -> Iterator[None]:
    """A file that changes JAX for its whole process would fail tests of other files, in some orders."""
    yield
    jax = sys.modules.get("jax")
    assert jax is None or not jax.config.jax_enable_x64, "this file left JAX computing with 64 bits"


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """The first look at a machine's devices starts every library at once: a busy machine takes its time for that."""
    from anygpu.workers.device_arrays import registry

    registry.LOOK_SECONDS = 180.0


#: Files that take longest: workers that begin with these are done at about the same time.
LONGEST = (
    "tests/semantics/test_corpus.py",
    "tests/engines/test_programs.py",
    "tests/codegen/test_matmul.py",
    "tests/engines/test_compiling.py",
    "tests/engines/test_sizes.py",
)

#: Tests that need a Ray cluster: one worker runs them all, so that one cluster is started and others run beside it.
CLUSTER = "tests/fleet/"
#: Of those, what only computes.
ONLY_COMPUTES = (
    "tests/fleet/simulation/",
    "tests/fleet/test_machines.py",
    "tests/fleet/test_scaling.py",
    "tests/fleet/test_templates.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts each case of a sampled table into its set. With several workers, files that take longest come first."""
    mark_samples(items)  # before `-m` selects
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Sets the variables for which a test asks, around its fixtures too."""
    with switched(item):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each worker whole files, and all that needs the Ray cluster to one of them: the cluster is started once."""
    from xdist.scheduler import LoadFileScheduling

    class OneWorkerAFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return CLUSTER if file.startswith(CLUSTER) and not file.startswith(ONLY_COMPUTES) else file

    return OneWorkerAFile(config, log)
