"""A node of a cluster in a network namespace of its own, so that the way there can be cut. Needs Linux and root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import psutil

from tests.support.ray_processes import RayProcesses

_ROOT = Path(__file__).parents[2]


class FarNode:
    """A namespace, a pair of network interfaces that leads there, and a node inside."""

    def __init__(self, cluster: RayProcesses, name: str) -> None:
        # Of this process: another one may test the same at the same time.
        number = 1 + os.getpid() % 250
        self._space, self._ours, self._theirs = f"ag-far-{number}", f"agfar{number}a", f"agfar{number}b"
        self.name = name
        host, there = f"10.77.{number}.1", f"10.77.{number}.2"
        self._process: subprocess.Popen[bytes] | None = None
        # What a process has left that was killed would be in the way.
        subprocess.run(["ip", "netns", "del", self._space], check=False, capture_output=True)
        _ip("netns", "add", self._space)
        try:
            _ip("link", "add", self._ours, "type", "veth", "peer", "name", self._theirs, "netns", self._space)
            _ip("addr", "add", f"{host}/24", "dev", self._ours)
            _ip("link", "set", self._ours, "up")
            for command in (
                ("addr", "add", f"{there}/24", "dev", self._theirs),
                ("link", "set", self._theirs, "up"),
                ("link", "set", "lo", "up"),
                ("route", "add", "default", "via", host),
            ):
                _ip("-n", self._space, *command)
            self._process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self._space, sys.executable, "-m", "ray.scripts.scripts", "start"),
                    *(f"--address={cluster.address}", f"--node-ip-address={there}", f"--node-name={name}"),
                    *("--num-cpus=1", "--num-gpus=0", f"--object-store-memory={200 << 20}", "--block"),
                ],
                env={**cluster.environment, "RAY_TMPDIR": str(cluster.folder / "far")},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=_ROOT,
            )
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """No packet passes from now on, and nobody is told."""
        _ip("link", "set", self._ours, "down")

    def mend(self) -> None:
        _ip("link", "set", self._ours, "up")

    def cut_for(self, seconds: float) -> None:
        self.cut()
        time.sleep(seconds)
        self.mend()

    def close(self) -> None:
        """End the node, with everything in its namespace."""
        if self._process is not None:
            inside = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
            for each in inside:
                try:
                    each.kill()
                except psutil.NoSuchProcess:
                    continue
            self._process.wait(10)
            psutil.wait_procs(inside, timeout=5)
        subprocess.run(["ip", "netns", "del", self._space], check=False, capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def can_cut() -> bool:
    """Whether this process may make namespaces: not every root may, as in a container."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    space = f"ag-may-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", space], check=False, capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    return made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
