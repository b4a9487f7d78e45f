"""Real Ray heads for tests, started with the flags of our own systemd unit, on ports and in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: What runs Ray's command line in this interpreter, wherever its script is.
RAY = [sys.executable, "-c", "import sys; from ray.scripts.scripts import main; sys.exit(main())"]
UNIT = (Path(__file__).parents[2] / "deploy" / "systemd" / "anygpu-head.service").read_text(encoding="utf-8")
#: The ports of the unit, which are in one range from `FIRST_PORT` on.
PORTS = {name: int(port) for name, port in re.findall(r"--([a-z-]*port)=(\d+)", UNIT)}
PORTS |= {name: int(port) for name, port in re.findall(r"([A-Z_]*PORT)=(\d+)", UNIT)}
FIRST_PORT, LAST_PORT = PORTS["port"], PORTS["max-worker-port"]
#: As `ray start --block` says it.
_STARTED = "Ray runtime started"


@dataclass(frozen=True)
class Head:
    address: str
    dashboard: str
    folder: Path
    #: For drivers; without the token.
    environment: dict[str, str]
    token_file: Path
    token: str


@contextmanager
def running_head(*, with_token: bool) -> Iterator[Head]:
    """A head as the unit starts it; without a token, the one variable that demands it says otherwise."""
    # Short, because the names of sockets are below it and may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ag-", dir="/tmp"))
    first = free_ports()
    unit = re.sub(r"(?i)(port=)(\d+)", lambda found: f"{found[1]}{int(found[2]) - FIRST_PORT + first}", UNIT)
    token = "0123456789abcdef" * 4
    token_file = folder / "ray_token"
    token_file.touch(mode=0o600)
    token_file.write_text(token)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain |= {"HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    variables = unit_environment(unit, credentials=folder, cache=folder)
    command = [*RAY, *start_arguments(unit, cache=folder)]
    if not with_token:
        variables["RAY_AUTH_MODE"] = "disabled"
    process = subprocess.Popen(
        command,
        env=plain | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = _until_started(process)
        assert _STARTED in said, said
        address = f"127.0.0.1:{first}"
        yield Head(
            address=address,
            dashboard=f"http://127.0.0.1:{first + PORTS['dashboard-port'] - FIRST_PORT}",
            folder=folder,
            environment=plain,
            token_file=token_file,
            token=token,
        )
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def start_arguments(unit: str, *, cache: Path) -> list[str]:
    """What follows `ray` in the unit, with its folder moved to where a test may write."""
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    return line.replace("/var/cache/anygpu", str(cache)).split()[1:]


def unit_environment(unit: str, *, credentials: Path, cache: Path) -> dict[str, str]:
    lines = (line.removeprefix("Environment=") for line in unit.splitlines() if line.startswith("Environment="))
    text = " ".join(lines).replace("%d", str(credentials)).replace("/var/cache/anygpu", str(cache))
    return dict(assignment.split("=", 1) for assignment in text.split())


def free_ports() -> int:
    """The first of a range that nobody uses now."""
    for first in range(21000 + os.getpid() % 50 * 500, 60000, 500):
        with ExitStack() as held:
            try:
                for port in {*PORTS.values(), *range(FIRST_PORT, FIRST_PORT + 21)}:
                    held.enter_context(socket.create_server(("", first + port - FIRST_PORT)))
            except OSError:
                continue
            return first
    raise AssertionError("there is no free range of ports")


def _until_started(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if _STARTED in line:
            break
    return said


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=30)
    finally:
        # What is left of its session is ours too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
