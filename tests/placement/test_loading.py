"""What plans calls is loaded beside the first calls, and not in their time."""

from __future__ import annotations

import subprocess
import sys


def test_it_is_loaded_on_a_thread_when_calls_have_taken_long_enough() -> None:
    script = """
import time
import numpy as np
import anygpu as ag
from anygpu.placement import loading

seconds = 0.001

@ag.offload
def wait(x):
    time.sleep(seconds)
    return x + 1

x = np.ones(10)
for _ in range(8):
    wait(x)
print(loading._thread is None, loading.is_loaded())
seconds = 0.02
for _ in range(100):
    wait(x)
    if loading._thread is not None:
        break
loading._thread.join(60)
print(loading.is_loaded())
wait(x)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
    assert not done.stderr


def test_a_child_that_is_forked_meanwhile_can_plan_calls() -> None:
    script = """
import os, signal
import numpy as np
import anygpu as ag
from anygpu.placement import loading

loading.begin()
child = os.fork()
if not child:
    signal.alarm(60)  # an import that waits for ever ends with it
    plan = ag.offload(lambda x: x + 1).explain(np.ones(3))
    os._exit(0 if plan.chosen == "numpy" else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"], done.stderr


def test_python_may_end_meanwhile() -> None:
    script = "from anygpu.placement import loading; loading.begin()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not done.stderr
