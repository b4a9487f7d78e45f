"""A Ray cluster with an autoscaler, whose machines are processes here: Ray's fake provider. Needs Linux and root.

It wants port 6379 for itself and may leave processes behind, so all of it is in namespaces of its own: of processes, so
that everything ends with the first of them; of the network; and of mounts, because the provider reads a file that is
missing in Ray's wheel.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_HEAD = "f" * 51 + "00000"
ADDRESS = "127.0.0.1:6379"
#: Seconds without work after which this autoscaler removes a machine.
IDLE_SECONDS = 3.0
#: As many machines as it may start, each with a label and something that it calls a GPU.
MOST, LABEL, VALUE = 3, "card", "a100"


def run_in_namespaces(module: str, *arguments: str, timeout: float) -> Iterator[dict[str, Any]]:
    """Run a module of ours with a cluster of its own: what it says, as it says it."""
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child", sys.executable, "-m"]
    with tempfile.TemporaryDirectory(prefix="ag-scale-", dir="/tmp") as folder:
        words = Path(folder) / "stderr"
        with words.open("w") as errors:
            process = subprocess.Popen(
                [*command, module, *arguments],
                env=_environment(Path(folder)),
                cwd=_ROOT,
                # Never written to: it closes when this process ends, however it does.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        end = threading.Timer(timeout, process.kill)
        end.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            if process.wait():
                raise RuntimeError(f"{module} ended with {process.returncode}:\n{words.read_text()[-4000:]}")
        finally:
            end.cancel()
            process.kill()
            with process:  # closes the pipes
                process.wait()


def say(**facts: Any) -> None:
    """To whoever has called `run_in_namespaces`."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def start_head() -> str:
    """Inside: start the head with its autoscaler. It ends with the namespace."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(os.environ["RAY_TMPDIR"])
    config = folder / "autoscaler.json"
    config.write_text(json.dumps(_config()))
    _add_missing_file(folder, config)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Its output would be kept open by all its processes.
    with (folder / "head").open("w") as words:
        subprocess.run(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--autoscaling-config={config}"),
                *("--num-cpus=1", "--num-gpus=0", f"--object-store-memory={100 << 20}", "--include-dashboard=false"),
                "--node-ip-address=127.0.0.1",
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
        )
    return ADDRESS


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def can_be_started() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


def _environment(folder: Path) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)]),
        "ANYGPU_ENGINES": "numpy,opencl",
        # All machines share the processor: one's work must not keep another from starting.
        "OMP_NUM_THREADS": "1",
        "POCL_MAX_PTHREAD_COUNT": "1",
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_CLOUD_INSTANCE_ID": _HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    }


def _config() -> dict[str, Any]:
    machine = {"CPU": 1, "GPU": 1, "object_store_memory": 100 << 20}
    return {
        "cluster_name": "fake",
        "max_workers": MOST,
        "idle_timeout_minutes": IDLE_SECONDS / 60,
        "provider": {
            "type": "fake_multinode",
            "head_node_id": _HEAD,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "machine": {
                "resources": machine,
                "labels": {LABEL: VALUE},
                "node_config": {},
                "min_workers": 0,
                "max_workers": MOST,
            },
        },
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        "initialization_commands": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }


def _add_missing_file(folder: Path, config: Path) -> None:
    """The provider's folder with an `example.yaml`, in this namespace only."""
    found = find_spec("ray")
    assert found is not None
    assert found.origin is not None
    provider = Path(found.origin).parent / "autoscaler" / "_private" / "fake_multi_node"
    ours = folder / "provider"
    shutil.copytree(provider, ours)
    shutil.copy(config, ours / "example.yaml")
    subprocess.run(["mount", "--bind", str(ours), str(provider)], check=True)
