"""What a bad kernel does to its process: nothing can be caught, which is why workers are processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_PRELUDE = """
import msgspec
import numpy as np
from anygpu.engines.driver import Dispatch
from tests.engines.opencl_kernels import affine, open_first, room, whole

engine, device, driver = open_first()

def run(statement, name):
    kernel = affine(64, name=name)
    text = kernel.source.replace("y[i] = 2.0f * x[i] + 1.0f;", statement)
    assert text != kernel.source
    source, target = whole(driver, np.zeros(64, np.float32)), room(driver, 256)
    driver.submit([Dispatch(driver.build(msgspec.structs.replace(kernel, source=text)), (source, target), (0,))])
    print("submitted", flush=True)
    return driver.read(target)
"""


def in_a_child(script: str, seconds: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + script], capture_output=True, text=True, check=False, timeout=seconds
    )


def test_a_write_far_out_of_bounds_takes_the_process() -> None:
    done = in_a_child("run('y[i + (1l << 40)] = 1.0f;', 'astray')\n")
    assert done.returncode == -signal.SIGSEGV, (done.stdout, done.stderr[-2000:])


def test_an_endless_kernel_can_only_be_killed() -> None:
    endless = "run('while (((volatile __global const float *)x)[0] == 0.0f) { y[i] += 1.0f; }', 'endless')\n"
    with subprocess.Popen([sys.executable, "-c", _PRELUDE + endless], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "submitted\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=1.0)
        child.kill()
    assert child.returncode == -signal.SIGKILL
