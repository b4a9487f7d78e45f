"""Children that are forked, spawned and served while native code is loaded, compiled and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.forks import forked_at_all

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_forked_children_call_and_end() -> None:
    """`python -m tests.faults.forks --count 3000` is the whole of it."""
    ended, _ = forked_at_all(30, seed=0)
    assert set(ended) == {"right"}, ended


def _run(script: str, cache: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANYGPU_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"ANYGPU_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing_beside_compiling(method: str, tmp_path: Path) -> None:
    script = f"""
import multiprocessing, random, threading
from tests.faults.forks import Function, called
context = multiprocessing.get_context({method!r})
function, over = Function(random.random()), threading.Event()
def work():
    while not over.is_set():
        Function(random.random()).prepare()
threads = [threading.Thread(target=work) for _ in range(2)]
for each in threads:
    each.start()
children = [context.Process(target=called, args=(0.25 + each,)) for each in range(3)]
for each in children:
    each.start()
for each in children:
    each.join(120)
over.set()
for each in threads:
    each.join()
print([each.exitcode for each in children])
"""
    assert _run(script, tmp_path) == "[0, 0, 0]\n"


def test_the_end_of_a_child_leaves_the_compiler_to_its_parent(tmp_path: Path) -> None:
    """However the child ends, and also if the compiler is not done with a request of the parent's then."""
    script = """
import os, random, signal, sys, threading
from anygpu.engines.cpu.compiler import _child, start_compiler
from tests.faults.forks import Function, called
start_compiler()
compiler = _child.pid
asking = threading.Thread(target=Function(random.random()).prepare)
asking.start()
for end in ("exit", "kill", "compile", "grandchild"):
    child = os.fork()
    if not child:
        signal.alarm(120)
        if end == "exit":
            sys.exit()
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "grandchild" and os.fork():
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
        Function(random.random()).prepare()
        os._exit(_child.pid in (None, compiler))
    print(end, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
asking.join()
Function(random.random()).prepare()
print(_child.pid == compiler)
"""
    assert _run(script, tmp_path).split() == ["exit", "0", "kill", "-9", "compile", "0", "grandchild", "0", "True"]


def test_a_child_does_not_keep_its_parent_from_starting_the_compiler(tmp_path: Path) -> None:
    """It is forked while pipes to the compiler are made, and lives on: their ends must not live on in it."""
    script = """
import os, random, signal, subprocess, threading
from tests.faults.forks import Function
children = []
start = subprocess.Popen._execute_child
def forked_meanwhile(self, *given):
    # Its pipes are there.
    other = threading.Thread(target=fork)
    other.start()
    other.join(0.2)
    start(self, *given)
def fork():
    child = os.fork()
    if not child:
        signal.alarm(120)
        signal.pause()
    children.append(child)
subprocess.Popen._execute_child = forked_meanwhile
Function(random.random()).prepare()
from anygpu.engines.cpu.compiler import _child
compiler = _child._process
(child,) = children
compiler.stdin.close()  # as at the end of this process
print(compiler.wait(60))
os.kill(child, signal.SIGKILL)
"""
    assert _run(script, tmp_path) == "0\n"
