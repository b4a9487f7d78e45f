"""The commands as a person or a script meets them. Where llvmpipe or PoCL is missing, these tests fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import anygpu
from anygpu.hardware.device import Device
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.inventory import Inventory

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]

#: What would change colours, devices or engines under these tests.
FOREIGN = ("FORCE_COLOR", "NO_COLOR", "VK_ICD_FILENAMES", "VK_DRIVER_FILES", "OCL_ICD_VENDORS", "CUDA_VISIBLE_DEVICES")


def variables(cache: Path) -> dict[str, str]:
    usual = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    ours = {"ANYGPU_CACHE_DIR": str(cache), "ANYGPU_ENGINES": "numpy,webgpu,opencl", "COLUMNS": "200"}
    return usual | ours | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anygpu", *arguments]


def run_in(cache: Path) -> Run:
    def run(*arguments: str, **more: str) -> Result:
        return subprocess.run(
            command(*arguments),
            env=variables(cache) | more,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=180,
        )

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `python -m anygpu` with a cache of its own."""
    return run_in(tmp_path / "cache")


class Looks:
    """The same question three times: nothing is known, then all is remembered, as JSON and on the screen."""

    def __init__(self, cache: Path) -> None:
        self.run = run_in(cache)
        self.first = self.run("devices", "--json")
        self.second = self.run("devices", "--json")
        self.screen = self.run("devices")


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> Looks:
    return Looks(tmp_path_factory.mktemp("looks") / "cache")


def inventory_of(result: Result) -> Inventory:
    assert (result.returncode, result.stderr) == (0, "")
    return msgspec.json.decode(result.stdout, type=Inventory)


def device_named(inventory: Inventory, name: str) -> Device:
    (device,) = (each for each in inventory.devices if name in f"{each.name} {each.driver}")
    return device


class TestDevices:
    def test_json_follows_the_schema(self, looks: Looks) -> None:
        inventory = inventory_of(looks.first)
        assert inventory.schema == "anygpu.devices/1"
        assert next(iter(msgspec.json.decode(looks.first.stdout))) == "schema"
        assert inventory.remembered == {}
        assert inventory.seconds > 0

    def test_llvmpipe_is_verified(self, looks: Looks) -> None:
        device = device_named(inventory_of(looks.first), "llvmpipe")
        assert device.engine == "webgpu"
        assert (device.state, device.kind, device.form, device.software) == ("verified", "cpu", "software", True)
        assert (device.api, device.also_through) == ("Vulkan", ("OpenGL",)), "two views, one device"
        assert device.card == "cpu"
        assert device.memory_total
        assert device.memory_free
        assert {"f16", "f64", "i64"} <= set(device.features)

    def test_pocl_is_verified(self, looks: Looks) -> None:
        device = device_named(inventory_of(looks.first), "Portable Computing Language")
        assert device.engine == "opencl"
        assert (device.state, device.kind, device.software) == ("verified", "cpu", True)
        assert device.api.startswith("OpenCL ")
        assert device.memory_total

    def test_the_processor_is_one_card(self, looks: Looks) -> None:
        inventory = inventory_of(looks.first)
        (card,) = (card for card in inventory.cards if card.id == "cpu")
        assert {"numpy", device_named(inventory, "llvmpipe").id} <= {way.device for way in card.ways}

    def test_only_the_engines_that_were_asked_for(self, looks: Looks) -> None:
        assert {device.engine for device in inventory_of(looks.first).devices} == {"numpy", "webgpu", "opencl"}

    def test_the_second_look_remembers(self, looks: Looks) -> None:
        first, second = inventory_of(looks.first), inventory_of(looks.second)
        assert set(second.remembered) == {"webgpu", "opencl"}
        assert all(age >= 0 for age in second.remembered.values())
        assert [device.id for device in second.devices] == [device.id for device in first.devices]
        assert all(device.verified for device in second.devices)

    def test_the_screen(self, looks: Looks) -> None:
        assert (looks.screen.returncode, looks.screen.stderr) == (0, "")
        lines = [line.strip() for line in looks.screen.stdout.splitlines()]
        (llvmpipe,) = (line for line in lines if "llvmpipe" in line and line.startswith("✓"))
        assert llvmpipe.endswith("software on the CPU, through Vulkan and OpenGL; used only when named")
        assert any(line.startswith("✓  opencl:") for line in lines)
        assert any(line.startswith("✓  numpy") for line in lines)

    def test_the_screen_says_that_it_remembers(self, looks: Looks) -> None:
        last = looks.screen.stdout.splitlines()[-1]
        assert last.startswith("✓: a computation on the device gave the right result, up to ")
        assert " ago; --deep checks again. Took " in last

    @pytest.mark.full
    def test_deep_looks_again_and_shows_more(self, looks: Looks) -> None:
        screen = looks.run("devices", "--deep")
        assert screen.returncode == 0
        lines = [line.strip() for line in screen.stdout.splitlines()]
        assert lines[-1].startswith("✓: a computation on the device just gave the right result. Took ")
        assert any(line.startswith("max-buffer-size: ") for line in lines)
        assert any(line.startswith("uuid: unknown: ") for line in lines), "what is not known has a reason"
        assert inventory_of(looks.run("devices", "--deep", "--json")).remembered == {}

    def test_the_user_s_own_cache_is_left_alone(self, tmp_path: Path) -> None:
        home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/cache")}
        result = run_in(tmp_path / "chosen")("devices", "--json", ANYGPU_ENGINES="webgpu", **home)
        assert result.returncode == 0
        assert (tmp_path / "chosen/probes.json").is_file()
        assert not list((tmp_path / "home").glob("**/anygpu*"))


class TestDoctor:
    @pytest.mark.full
    def test_json(self, looks: Looks) -> None:
        result = looks.run("doctor", "--json")
        diagnosis = msgspec.json.decode(result.stdout, type=Diagnosis)
        assert diagnosis.schema == "anygpu.doctor/1"
        assert result.returncode == (1 if diagnosis.problems else 0)
        assert device_named(diagnosis.inventory, "llvmpipe").verified
        assert device_named(diagnosis.inventory, "Portable Computing Language").verified
        assert diagnosis.evidence.libraries["wgpu"]
        assert diagnosis.inventory.remembered == {}, "the doctor looks for itself"

    def test_a_variable_that_takes_the_driver_away(self, run: Run, tmp_path: Path) -> None:
        """The fault is real: with these, neither Vulkan nor OpenGL finds anything."""
        missing = {"VK_ICD_FILENAMES": str(tmp_path / "missing.json"), "__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere"}
        result = run("doctor", ANYGPU_ENGINES="webgpu", **missing)
        assert "the variable VK_ICD_FILENAMES leaves Vulkan without a working driver." in result.stdout
        assert "→ unset VK_ICD_FILENAMES" in result.stdout

    @pytest.mark.full
    def test_opencl_without_a_driver(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "vendors").mkdir()
        result = run("doctor", ANYGPU_ENGINES="opencl", OCL_ICD_VENDORS=str(tmp_path / "vendors"))
        assert "OpenCL finds nothing: no OpenCL driver is installed." in result.stdout


class TestManners:
    def test_version(self, run: Run) -> None:
        result = run("--version")
        assert (result.returncode, result.stdout, result.stderr) == (0, f"anygpu {anygpu.__version__}\n", "")

    @pytest.mark.parametrize("arguments", [["--help"], []])
    def test_help(self, run: Run, arguments: list[str]) -> None:
        result = run(*arguments)
        shown = result.stdout + result.stderr
        assert "List every compute device, each verified by a real computation." in shown
        assert "Explain why a GPU is not used, and print the command that fixes it." in shown
        assert result.returncode == (0 if arguments else 2)

    @pytest.mark.parametrize("name", ["devices", "doctor"])
    def test_help_of_a_command(self, run: Run, name: str) -> None:
        result = run(name, "--help")
        assert result.returncode == 0
        assert "--json" in result.stdout
        assert "--timeout" in result.stdout

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["devices", "--no-such-option"], "--no-such-option"),
            (["no-such-command"], "no-such-command"),
            (["doctor", "--timeout", "0.1"], "--timeout"),
        ],
    )
    def test_a_mistake_is_exit_code_2(self, run: Run, arguments: list[str], named: str) -> None:
        result = run(*arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert named in result.stderr

    def test_an_unknown_engine(self, run: Run) -> None:
        result = run("devices", ANYGPU_ENGINES="webgpu,cupy")
        assert result.returncode != 0
        assert result.stdout == ""
        assert (
            "ANYGPU_ENGINES asks for cupy, and there is no such engine. Known are: numpy, cpu, webgpu" in result.stderr
        )

    def test_the_installed_program_is_the_same(self, run: Run) -> None:
        program = Path(sys.executable).parent / "anygpu"
        answer = subprocess.run([program, "--version"], capture_output=True, check=True, encoding="utf-8", timeout=180)
        assert answer.stdout == run("--version").stdout

    @pytest.mark.sampled(gate=3)
    @pytest.mark.parametrize("arguments", [["devices"], ["doctor"], ["devices", "--json"]])
    def test_a_pipe_gets_no_colours_and_no_spinner(self, run: Run, arguments: list[str]) -> None:
        result = run(*arguments, ANYGPU_ENGINES="numpy")
        assert "\x1b" not in result.stdout
        assert "…" not in result.stdout.splitlines()[0]
        assert result.stderr == ""

    @pytest.mark.full
    @pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
    @pytest.mark.parametrize(
        ("arguments", "patience"),
        [(["devices", "--json"], "Looking for devices …"), (["doctor"], "Examining this machine …")],
    )
    def test_the_spinner_is_on_standard_error(self, tmp_path: Path, arguments: list[str], patience: str) -> None:
        terminal, inside = os.openpty()
        with subprocess.Popen(
            command(*arguments),
            env=variables(tmp_path) | {"ANYGPU_ENGINES": "numpy"},
            stdout=subprocess.PIPE,
            stderr=inside,
            encoding="utf-8",
        ) as child:
            os.close(inside)
            shown = b""
            try:
                while data := os.read(terminal, 4096):
                    shown += data
            except OSError:
                pass  # how Linux says that nobody is at the other end any more
            os.close(terminal)
            stdout, _ = child.communicate(timeout=180)
        assert patience in shown.decode()
        assert patience not in stdout
        assert "\x1b" not in stdout
