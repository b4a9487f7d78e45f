"""Whoever calls: workers in children start from wherever Python runs, and never import the caller's main module.

A process of its own for each, started as a user would start it. PyInstaller has its own tests (`test_frozen.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import anygpu as ag
from anygpu.workers.device_arrays.registry import registry
from anygpu.workers.process import ProcessWorker

#: As a user writes it. It says who runs it, so that a child which imported it would be seen.
USE = """\
import os
import numpy as np
import anygpu as ag
print("main", __name__)
x = ag.asarray(np.arange(50_000, dtype=np.float32), device="opencl")
print("sum", np.asarray(x + 1).sum(dtype=np.int64))
from anygpu.workers.device_arrays.registry import registry
print("isolation", registry.find("opencl").worker.isolation, registry.find("opencl").worker.process_id != os.getpid())
"""

WANTED = ["main __main__", f"sum {sum(range(1, 50_001))}", "isolation process True"]


def run(*command: str, given: str = "", folder: Path | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command], input=given, capture_output=True, text=True, check=False, cwd=folder, timeout=180
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_script_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "without_a_guard.py"
    script.write_text(USE)
    assert run(str(script)) == WANTED


def test_a_script_beside_files_that_are_named_like_libraries(tmp_path: Path) -> None:
    for name in ("numpy", "msgspec", "pyopencl"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the caller’s own file was imported')")
    (tmp_path / "inner").mkdir()
    script = tmp_path / "inner" / "script.py"
    script.write_text(USE)
    assert run(str(script), folder=tmp_path) == WANTED


def test_a_command_line() -> None:
    assert run("-c", USE) == WANTED


def test_a_prompt() -> None:
    """Typed line by line."""
    assert run("-i", "-q", given=USE) == WANTED


def test_standard_input() -> None:
    assert run("-", given=USE) == WANTED


def test_a_daemon_thread(tmp_path: Path) -> None:
    """The thread that started the child ends before the process does, and the child lives on."""
    script = tmp_path / "threads.py"
    lines = "\n".join(f"    {line}" for line in USE.splitlines())
    script.write_text(f"""\
import threading
def use():
{lines}
for _ in range(2):
    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join()
""")
    assert run(str(script)) == WANTED * 2


def test_a_daemon_thread_that_is_at_work_when_the_program_ends(tmp_path: Path) -> None:
    script = tmp_path / "leaving.py"
    script.write_text("""\
import threading
import numpy as np
import anygpu as ag
ready = threading.Event()
def use():
    x = ag.asarray(np.ones(100_000, np.float32), device="opencl")
    while True:
        (x + 1).compute()
        ready.set()
threading.Thread(target=use, daemon=True).start()
assert ready.wait(120)
print("done")
""")
    assert run(str(script)) == ["done"]


def test_pytest_itself() -> None:
    x = ag.asarray(np.arange(50_000, dtype=np.float32), device="opencl")
    np.testing.assert_array_equal(np.asarray(x + 1), np.arange(1, 50_001))
    worker = registry.find("opencl").worker
    assert isinstance(worker, ProcessWorker)
    assert worker.process_id != os.getpid()


_KERNEL = """\
import sys
from jupyter_client.manager import start_new_kernel
_, client = start_new_kernel(kernel_name="python3")
def show(message):
    if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
        sys.stdout.write(message["content"]["text"])
answer = client.execute_interactive(sys.stdin.read(), timeout=120, output_hook=show)
client.shutdown()
sys.exit(answer["content"]["status"] != "ok")
"""


def test_a_notebook() -> None:
    """A cell in the kernel that Jupyter runs: output goes through its own streams, and an event loop is running."""
    assert run("-c", _KERNEL, given=USE) == WANTED


def test_a_host_like_a_notebook(tmp_path: Path) -> None:
    """What matters of any notebook, whoever runs its cells: a main module without a file, cells that are
    compiled one by one inside of a running event loop, and standard streams that are no files."""
    script = tmp_path / "host.py"
    script.write_text(f"""\
import asyncio, io, sys, types
async def main():
    real, cells = sys.stdout, types.ModuleType("__main__")
    sys.modules["__main__"] = cells
    sys.stdout, sys.stderr, sys.stdin = io.StringIO(), io.StringIO(), None
    for line in {USE!r}.splitlines():
        exec(compile(line, "<cell>", "exec"), vars(cells))
        await asyncio.sleep(0)
    real.write(sys.stdout.getvalue())
asyncio.run(main())
""")
    assert run(str(script)) == WANTED
