"""What a person with an NVIDIA card reads on the screen, from the stand-in for NVML through to the exit code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from anygpu.hardware import evidence, fixes
from anygpu.hardware.diagnosis import Diagnosis
from tests.standins.nvidia import build_nvml, environment, hide_nvml, write_nvidia_smi

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for NVML is a Linux shared library")

#: What the machine of these tests may have set, and what would change the answers.
FOREIGN = ("CUDA_VISIBLE_DEVICES", "VK_ICD_FILENAMES", "VK_DRIVER_FILES", "FORCE_COLOR", "KUBERNETES_SERVICE_HOST")

TWO_CARDS = "NVIDIA GeForce RTX 4090 and Tesla T4"
SEEMS = "There seems to be a GPU, but nothing here can use it yet."
NONE = "There is no GPU here; your code runs on the CPU."
JOIN = (
    "→ See with `ls -l /dev/nvidia*` which group may open the cards, join it with "
    "`sudo usermod -aG video,render $USER`, and log in again. Start a container with `--gpus all`."
)
ROW = "0, NVIDIA GeForce RTX 4090, GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9, 00000000:01:00.0, 24564, 20000, 550.54.14"


class Screen:
    """What a command left behind."""

    def __init__(self, exit_code: int, output: str) -> None:
        self.exit_code = exit_code
        self.output = output
        self.lines = [line.strip() for line in output.splitlines()]

    @property
    def verdict(self) -> str:
        return self.lines[0]

    @property
    def titles(self) -> list[str]:
        """Of the findings, without the note that these tests leave engines out."""
        marked = ("Problem: ", "Advice: ", "Note: ")
        left_out = "Note: Only some engines were looked at"
        return [line for line in self.lines if line.startswith(marked) and not line.startswith(left_out)]

    def below(self, title: str) -> list[str]:
        """The cause and the fix of a finding."""
        rest = self.lines[self.lines.index(title) + 1 :]
        return rest[: rest.index("")]

    def shows_that_the_others_work(self) -> bool:
        return all(any(line.startswith(f"✓  {name}") for line in self.lines) for name in ("numpy", "webgpu:0"))


Anygpu = Callable[..., Screen]


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def anygpu(nvml: Path, tmp_path: Path) -> Anygpu:
    """Runs `python -m anygpu` on a machine with NVIDIA's library, or without it where the scenario is `None`."""

    def run(*arguments: str, scenario: str | None, programs: Path | None = None, **variables: str) -> Screen:
        library = hide_nvml(tmp_path / "no library") if scenario is None else nvml
        seen = environment(library=library, programs=programs or tmp_path / "no programs", scenario=scenario)
        for name in FOREIGN:
            seen.pop(name, None)
        seen |= {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
        seen |= {"ANYGPU_CACHE_DIR": str(tmp_path / "cache"), "ANYGPU_ENGINES": "numpy,webgpu"}
        # Wherever these tests run: if it is a container, then one with all of the driver.
        seen |= {"NVIDIA_DRIVER_CAPABILITIES": "all"} | variables
        child = subprocess.run(
            [sys.executable, "-m", "anygpu", *arguments],
            env=seen,
            capture_output=True,
            check=False,
            encoding="utf-8",
            timeout=180,
        )
        assert child.stderr == ""
        return Screen(child.returncode, child.stdout)

    return run


def vulkan_driver() -> str:
    """The command for this system; which one it is for which system is told in tests/hardware/test_diagnosis.py."""
    return "→ " + fixes.install(evidence.gather(), "vulkan-nvidia", "nvidia", "vulkan-mesa")


def only_software(cards: str) -> str:
    return f"Problem: WebGPU only finds a software adapter, not your {cards}."


def test_two_healthy_cards(anygpu: Anygpu) -> None:
    screen = anygpu("doctor", scenario="two_cards")
    assert screen.exit_code == 1
    assert screen.verdict == f"There are 2 GPUs ({TWO_CARDS}), but nothing here can use them yet."
    assert screen.titles == [only_software(TWO_CARDS)]
    cause, *fix = screen.below(only_software(TWO_CARDS))
    assert cause.startswith("llvmpipe")
    assert cause.endswith(
        "imitates a GPU on the CPU: right answers, no speed. The Vulkan driver of the real card is missing."
    )
    assert fix == [vulkan_driver()]
    assert screen.shows_that_the_others_work()


@pytest.mark.full
def test_two_healthy_cards_for_a_bug_report(anygpu: Anygpu) -> None:
    screen = anygpu("doctor", "--json", scenario="two_cards")
    assert screen.exit_code == 1
    diagnosis = msgspec.json.decode(screen.output, type=Diagnosis)
    assert diagnosis.schema == "anygpu.doctor/1"
    cards = {card.id: (card.name, card.source, card.pci) for card in diagnosis.inventory.cards}
    assert cards["nvidia:0"] == ("NVIDIA GeForce RTX 4090", "nvml", "0000:01:00.0")
    assert cards["nvidia:1"] == ("Tesla T4", "nvml", "0000:65:00.0")
    assert [finding.code for finding in diagnosis.problems] == ["only_software_adapter"]
    assert diagnosis.evidence.variables["ANYGPU_ENGINES"] == "numpy,webgpu"


@pytest.mark.full
def test_a_container_with_the_computing_half_of_the_driver(anygpu: Anygpu) -> None:
    variables = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    screen = anygpu("doctor", scenario="two_cards", **variables)
    title = f"Problem: This container may compute on {TWO_CARDS}, but WebGPU cannot see them."
    assert screen.exit_code == 1
    assert screen.titles == [title]
    assert screen.below(title) == [
        "The container was started without the driver's graphics capability, and Vulkan is a part of that. "
        "NVIDIA_DRIVER_CAPABILITIES is compute,utility.",
        '→ In the pod: resources.limits "nvidia.com/gpu: 1", env NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics',
    ]


@pytest.mark.full
def test_old_driver(anygpu: Anygpu) -> None:
    """The one test here with torch and jax, both in their CPU builds."""
    screen = anygpu("doctor", scenario="old_driver", ANYGPU_ENGINES="webgpu,torch,jax")
    too_old = "But its driver serves CUDA up to 10.2 only, which is too old for any build of today."
    torch = "Problem: PyTorch cannot use your NVIDIA card: the installed build has no GPU support."
    jax = "Problem: JAX cannot use your NVIDIA card: it is installed without its CUDA plug-in."
    driver = [f"→ {step}" for step in fixes.newest_driver(evidence.gather())]
    assert screen.exit_code == 1
    assert screen.titles == [torch, jax, only_software(TWO_CARDS)]
    cause, *fix = screen.below(torch)
    assert cause.endswith(f"this copy of PyTorch cannot talk to it. {too_old}")
    assert fix == [
        *driver,
        "→ pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126",
    ]
    cause, *fix = screen.below(jax)
    assert cause.endswith(f"JAX needs one more package to use it. {too_old}")
    assert fix == [*driver, "→ pip install 'jax[cuda12]'"]
    assert screen.shows_that_the_others_work()


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize(
    ("scenario", "title", "below"),
    [
        (
            "no_permission",
            "Problem: This user may not open NVIDIA's cards.",
            ["Insufficient Permissions", JOIN],
        ),
        (
            "driver_not_loaded",
            "Problem: NVIDIA's driver is not running, so NVIDIA's cards cannot be reached.",
            [
                "Driver Not Loaded",
                "→ Install NVIDIA's driver, or start it with `sudo modprobe nvidia`; if that fails, restart the "
                "machine. For a container, do so on the host.",
            ],
        ),
        (
            "unknown_error",
            "Problem: NVIDIA's own tools report error 999 for NVIDIA's cards.",
            [
                "Unknown Error",
                "→ Run `nvidia-smi` in a terminal to see what it says, then restart the machine; in a container, "
                "restart the container first.",
            ],
        ),
    ],
)
def test_nothing_can_be_said_of_the_cards(anygpu: Anygpu, scenario: str, title: str, below: list[str]) -> None:
    screen = anygpu("doctor", scenario=scenario)
    assert (screen.exit_code, screen.verdict) == (1, SEEMS)
    assert screen.titles == [title]
    assert screen.below(title) == below
    assert screen.shows_that_the_others_work()


@pytest.mark.full
def test_version_mismatch(anygpu: Anygpu) -> None:
    screen = anygpu("doctor", scenario="mismatch")
    assert (screen.exit_code, screen.verdict) == (1, SEEMS)
    (title,) = screen.titles
    assert title.startswith("Problem: The kernel module of NVIDIA's driver that is loaded (")
    assert title.endswith(
        ") and the library that programs use (550.54.14) differ in version, as after an update of the driver."
    )
    assert screen.below(title) == [
        "RM has detected an NVML/RM version mismatch.",
        "→ Restart the machine, or reload the modules with `sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset "
        "nvidia && sudo modprobe nvidia`. In a container: restart the container after the host's driver was updated.",
    ]
    assert screen.shows_that_the_others_work()


@pytest.mark.full
@pytest.mark.parametrize(
    ("scenario", "title", "below"),
    [
        (
            "lost_card",
            "Problem: The machine has lost its connection to the card nvidia:1 (fallen off the bus).",
            [
                "GPU is lost",
                "→ Check the card's power cable and its seat, then reset it with `sudo nvidia-smi -r` or restart the "
                "machine.",
            ],
        ),
        (
            "no_permission_card",
            "Problem: This user may not open the card nvidia:1.",
            ["Insufficient Permissions", JOIN],
        ),
    ],
)
def test_one_bad_card_costs_only_itself(anygpu: Anygpu, scenario: str, title: str, below: list[str]) -> None:
    screen = anygpu("doctor", scenario=scenario)
    assert screen.exit_code == 1
    assert screen.verdict == "There is a GPU (NVIDIA GeForce RTX 4090), but nothing here can use it yet."
    assert screen.titles == [only_software("NVIDIA GeForce RTX 4090"), title]
    assert screen.below(title) == below
    assert screen.shows_that_the_others_work()


@pytest.mark.full
def test_memory_that_the_driver_does_not_report(anygpu: Anygpu) -> None:
    screen = anygpu("doctor", scenario="no_memory_info")
    assert screen.titles == [only_software(TWO_CARDS)], "a card without that fact is still a card"
    listed = anygpu("devices", scenario="no_memory_info")
    assert "Tesla T4  memory unknown (the card or its driver does not report it)" in listed.lines
    assert "✗    no engine can use this card; run `anygpu doctor` to see why" in listed.lines


@pytest.mark.full
def test_a_driver_without_a_card(anygpu: Anygpu) -> None:
    screen = anygpu("doctor", scenario="no_cards")
    assert (screen.exit_code, screen.verdict) == (0, NONE)
    assert screen.titles[-1] == "Note: NVIDIA's driver is running, but it finds no card."
    assert screen.lines[-1] == "No problems found."


def test_a_call_that_hangs(anygpu: Anygpu) -> None:
    """It would hang for ever: that the doctor comes to an end is its own limit, which is later on a busy machine."""
    screen = anygpu("doctor", "--timeout", "15", scenario="hang")
    assert (screen.exit_code, screen.verdict) == (1, SEEMS)
    (title,) = screen.titles
    assert re.match(r"Problem: nvidia did not respond within \d+(\.\d+)? s", title)
    assert screen.below(title)[-1] == (
        "→ Restart the machine, or reset the device; then update its driver. Until then it is skipped."
    )
    assert screen.shows_that_the_others_work()


@pytest.mark.full
def test_nothing_of_nvidia_at_all(anygpu: Anygpu) -> None:
    screen = anygpu("doctor", scenario=None)
    assert (screen.exit_code, screen.verdict) == (0, NONE)
    (title,) = screen.titles
    assert title.startswith("Note: No GPU was found in this ")
    assert screen.below(title)[0] == (
        "Neither the bus nor any driver lists one. Your code runs on the CPU, and nothing is broken."
    )
    assert screen.lines[-1] == "No problems found."
    assert screen.shows_that_the_others_work()


def test_no_library_but_the_program(anygpu: Anygpu, tmp_path: Path) -> None:
    programs = write_nvidia_smi(tmp_path / "programs", f"{ROW}, 8.9, 37\n")
    screen = anygpu("doctor", scenario=None, programs=programs)
    assert screen.exit_code == 1
    assert screen.verdict == "There is a GPU (NVIDIA GeForce RTX 4090), but nothing here can use it yet."
    assert screen.titles == [only_software("NVIDIA GeForce RTX 4090")]


@pytest.mark.full
def test_no_library_and_the_program_says_so(anygpu: Anygpu, tmp_path: Path) -> None:
    complaint = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."
    screen = anygpu("doctor", scenario=None, programs=write_nvidia_smi(tmp_path / "programs", f"{complaint}\n", 12))
    title = (
        "Problem: NVIDIA's driver is not fully installed: its program nvidia-smi is there, but not its library "
        "libnvidia-ml."
    )
    assert (screen.exit_code, screen.verdict) == (1, SEEMS)
    assert screen.titles == [title]
    assert screen.below(title) == [complaint, "→ Install NVIDIA's driver again, then run `sudo ldconfig`."]
