"""Forks of a process with threads, each in a process of its own: a forked child ends as the script says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

HEAD = """
import os, signal, sys, threading
from anygpu.base import forks
signal.alarm(60)  # what waits for ever ends with it

def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread

def forked(child):
    process = os.fork()
    if not process:
        signal.alarm(60)
        os._exit(child() or 0)
    return process

def code_of(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
"""


def _run(script: str, *given: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + script, *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


def test_a_fork_waits_for_the_end_of_a_block() -> None:
    script = """
forks.PATIENCE = 50.0
entered, forking, steps = threading.Event(), threading.Event(), []
def work():
    with forks.no_fork():
        with forks.no_fork():
            entered.set()
        forking.wait()
        steps.append("done")
thread = in_thread(work)
entered.wait()
os.register_at_fork(before=forking.set)  # what is registered last is called first
child = forked(lambda: 0 if steps == ["done"] else 1)
print(code_of(child))
"""
    assert _run(script) == "0"


def test_a_fork_does_not_wait_for_what_takes_long() -> None:
    script = """
forks.PATIENCE = 1e6
waits, over = threading.Event(), threading.Event()
def work():
    with forks.no_fork():
        with forks.fork_allowed():
            waits.set()
            over.wait()
        steps.append("done")
steps = []
thread = in_thread(work)
waits.wait()
child = forked(lambda: len(steps))
over.set()
thread.join()
print(code_of(child), steps)
"""
    assert _run(script) == "0 ['done']"


def test_threads_that_fork_in_a_block_do_not_wait_for_each_other() -> None:
    script = """
forks.PATIENCE = 1e6
both = threading.Barrier(2)
codes = []
def work():
    with forks.no_fork():
        both.wait()
        codes.append(code_of(forked(lambda: 0)))
        with forks.fork_allowed():
            pass
    with forks.no_fork():
        codes.append(code_of(forked(lambda: 0)))
threads = [in_thread(work) for _ in range(2)]
for each in threads:
    each.join()
print(codes)
"""
    assert _run(script) == "[0, 0, 0, 0]"


def test_locks_are_free_in_a_child_and_kept_in_the_parent() -> None:
    script = """
locks = [forks.lock(), forks.rlock()]
held, over = threading.Event(), threading.Event()
def hold():
    with locks[0], locks[1]:
        held.set()
        over.wait()
thread = in_thread(hold)
held.wait()
def child():
    for each in locks:
        with each:
            pass
    def grandchild():
        for each in locks:
            with each:
                pass
    return code_of(forked(grandchild))
process = forked(child)
print(code_of(process), [each.acquire(blocking=False) for each in locks])
over.set()
thread.join()
"""
    assert _run(script) == "0 [False, False]"


@pytest.mark.parametrize("patience", [50.0, 0.1], ids=["waits", "imports anew"])
def test_a_users_thread_may_import_a_module_of_ours(patience: float, tmp_path: Path) -> None:
    (tmp_path / "slow_part.py").write_text("import __main__\n__main__.importing()\nvalue = 1\n")
    script = """
import anygpu
anygpu.__path__.append(sys.argv[1])
forks.PATIENCE = float(sys.argv[2])
parent, begun, forking, over = os.getpid(), threading.Event(), threading.Event(), threading.Event()
imported = []
def importing():
    imported.append(os.getpid() == parent)
    if imported[-1]:
        begun.set()
        (forking if forks.PATIENCE > 1 else over).wait()
def work():
    import anygpu.slow_part
thread = in_thread(work)
begun.wait()
os.register_at_fork(before=forking.set)
def child():
    import anygpu.slow_part
    return anygpu.slow_part.value - 1 + 2 * len(imported)
process = forked(child)
over.set()
thread.join()
print(code_of(process), imported)
"""
    imports = 1 if patience > 1 else 2
    assert _run(script, str(tmp_path), str(patience)) == f"{2 * imports} [True]"


def test_what_was_imported_half_is_imported_anew(tmp_path: Path) -> None:
    """Where a fork could not wait for the import: its lock belongs to a thread that the child does not have."""
    (tmp_path / "slow_package").mkdir()
    (tmp_path / "slow_package/__init__.py").write_text("from slow_package import part\nvalue = part.value + 1\n")
    (tmp_path / "slow_package/part.py").write_text("import __main__\n__main__.importing()\nvalue = 1\n")
    script = """
sys.path.insert(0, sys.argv[1])
forks.PATIENCE = 0.1
parent, begun, over = os.getpid(), threading.Event(), threading.Event()
def importing():
    if os.getpid() == parent:
        begun.set()
        over.wait()
def work():
    with forks.no_fork():
        import slow_package
thread = in_thread(work)
begun.wait()
def child():
    import json, slow_package
    return slow_package.value - 2
process = forked(child)
over.set()
thread.join()
import slow_package
print(code_of(process), slow_package.value)
"""
    assert _run(script, str(tmp_path)) == "0 2"
