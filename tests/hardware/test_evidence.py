from __future__ import annotations

import getpass
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from anygpu.hardware import evidence
from anygpu.hardware.evidence import DeviceNode, Evidence, Manifest, gather

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="device nodes and their groups are a matter of POSIX systems"
)

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
NVIDIA_GPU = {"class": "0x030000", "vendor": "0x10de", "device": "0x2684"}


class Machine:
    """A machine in a folder: only what is put there exists."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, text: str = "") -> Path:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def gather(self, **environment: str) -> Evidence:
        return gather(self.root, environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_a_machine_with_nothing_in_it(machine: Machine) -> None:
    found = machine.gather()
    assert found == Evidence(
        system=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        wsl=found.wsl,
        user=found.user,
        libraries=found.libraries,
    )


def test_it_survives_json(machine: Machine) -> None:
    machine.put("dev/dri/renderD128")
    machine.put("etc/vulkan/icd.d/a.json")
    found = machine.gather(CUDA_VISIBLE_DEVICES="0")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Evidence) == found


def test_without_arguments_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gather().variables["CUDA_VISIBLE_DEVICES"] == "3"


@posix
def test_the_user_is_who_the_kernel_asks_about(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody else")
    assert getpass.getuser() == "somebody else"
    assert machine.gather().user == pwd.getpwuid(os.geteuid()).pw_name


class TestDistribution:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            (DEBIAN, ("debian",)),
            ('ID=ubuntu\nID_LIKE=debian\nNAME="Ubuntu"\n', ("ubuntu", "debian")),
            ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', ("rocky", "rhel", "centos", "fedora")),
            ("ID='arch'\n", ("arch",)),
            ("# a comment\n\nnonsense\n", ()),
        ],
    )
    def test_os_release(self, machine: Machine, text: str, names: tuple[str, ...]) -> None:
        machine.put("etc/os-release", text)
        assert machine.gather().distributions == names

    def test_where_etc_has_none(self, machine: Machine) -> None:
        machine.put("usr/lib/os-release", DEBIAN)
        assert machine.gather().distributions == ("debian",)


class TestContainer:
    def test_docker(self, machine: Machine) -> None:
        machine.put(".dockerenv")
        assert machine.gather().container == "docker"

    def test_podman(self, machine: Machine) -> None:
        machine.put("run/.containerenv")
        assert machine.gather(container="podman").container == "podman"

    def test_kubernetes_uses_one_of_the_others(self, machine: Machine) -> None:
        machine.put(".dockerenv")
        assert machine.gather(KUBERNETES_SERVICE_HOST="10.0.0.1").container == "kubernetes"

    def test_another_kind(self, machine: Machine) -> None:
        assert machine.gather(container="lxc").container == "container"

    def test_bare_metal(self, machine: Machine) -> None:
        assert machine.gather(container="").container is None


@posix
class TestNodes:
    @pytest.fixture
    def public(self) -> Iterator[Machine]:
        """A machine that every user may look into, unlike pytest's own folders."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            yield Machine(Path(folder))

    @staticmethod
    @contextmanager
    def without_privileges() -> Iterator[None]:
        """Root may open everything, so root becomes nobody for a while; for others nothing changes."""
        if os.geteuid() != 0:
            yield
            return
        nobody = 65534
        groups = os.getgroups()
        os.setgroups([])
        os.setresgid(nobody, nobody, 0)
        os.setresuid(nobody, nobody, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups(groups)

    def test_all_kinds(self, machine: Machine) -> None:
        names = ("dri/renderD128", "dri/renderD129", "nvidia0", "nvidia10", "nvidiactl", "nvidia-uvm", "kfd", "dxg")
        for name in (*names, "dri/card0", "nvidia-caps/nvidia-cap1", "null"):
            machine.put(f"dev/{name}")
        assert [node.path for node in machine.gather().nodes] == [f"/dev/{name}" for name in names]

    def test_openable_and_not(self, public: Machine) -> None:
        modes = {"dev/dri/renderD128": 0o666, "dev/nvidia0": 0o444, "dev/nvidiactl": 0o222, "dev/kfd": 0o000}
        for name, mode in modes.items():
            public.put(name).chmod(mode)
        with self.without_privileges():
            found = {node.path: node.openable for node in evidence._nodes(public.root)}
        assert found == {"/dev/dri/renderD128": True, "/dev/nvidia0": False, "/dev/nvidiactl": False, "/dev/kfd": False}

    def test_whose_it_is(self, machine: Machine) -> None:
        file = machine.put("dev/kfd")
        assert machine.gather().nodes == (DeviceNode(path="/dev/kfd", openable=True, group=file.group()),)

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
    def test_a_group_without_a_name(self, machine: Machine) -> None:
        """As in a container, where the host's groups are only numbers."""
        shutil.chown(machine.put("dev/kfd"), group=54321)
        (node,) = machine.gather().nodes
        assert node.group is None

    def test_a_node_that_leads_nowhere(self, machine: Machine) -> None:
        (machine.put("dev/null").parent / "nvidia0").symlink_to("gone")
        assert machine.gather().nodes == (DeviceNode(path="/dev/nvidia0", openable=False, group=None),)


class TestVulkan:
    @pytest.mark.parametrize(
        "folder",
        [
            "usr/lib/x86_64-linux-gnu",
            "usr/lib64",
            "usr/lib",
            "usr/local/lib",
            "usr/lib/wsl/lib",
            "run/opengl-driver/lib",
        ],
    )
    def test_the_loader_s_folders(self, machine: Machine, folder: str) -> None:
        machine.put(f"{folder}/libvulkan.so.1")
        assert machine.gather().vulkan_loader == f"/{folder}/libvulkan.so.1"

    def test_ld_library_path_comes_first(self, machine: Machine, tmp_path: Path) -> None:
        machine.put("usr/lib64/libvulkan.so.1")
        mine = Machine(tmp_path / "mine").put("libvulkan.so.1")
        found = machine.gather(LD_LIBRARY_PATH=os.pathsep.join(["", str(tmp_path / "empty"), str(mine.parent)]))
        assert found.vulkan_loader == str(mine)
        assert machine.gather(LD_LIBRARY_PATH=str(tmp_path)).vulkan_loader == "/usr/lib64/libvulkan.so.1"

    def test_the_development_link_is_no_loader(self, machine: Machine) -> None:
        machine.put("usr/lib64/libvulkan.so")
        assert machine.gather().vulkan_loader is None

    def test_drivers_in_order(self, machine: Machine) -> None:
        files = [
            machine.put(name)
            for name in (
                "etc/vulkan/icd.d/nvidia_icd.json",
                "usr/share/vulkan/icd.d/lvp_icd.x86_64.json",
                "usr/share/vulkan/icd.d/radeon_icd.x86_64.json",
                "usr/local/share/vulkan/icd.d/mine.json",
            )
        ]
        machine.put("usr/share/vulkan/icd.d/README")
        machine.put("usr/share/vulkan/implicit_layer.d/layer.json")
        assert machine.gather().vulkan_drivers == tuple(
            Manifest(path=str(file), changed=file.stat().st_mtime) for file in files
        )

    def test_a_changed_driver_is_another_driver(self, machine: Machine) -> None:
        file = machine.put("etc/vulkan/icd.d/nvidia_icd.json")
        before = machine.gather().vulkan_drivers
        os.utime(file, (1.5e9, 1.5e9))
        (after,) = machine.gather().vulkan_drivers
        assert after != before[0]
        assert after.changed == 1.5e9

    @pytest.mark.parametrize("variable", ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"])
    def test_an_override_hides_the_others(self, machine: Machine, tmp_path: Path, variable: str) -> None:
        machine.put("usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
        mine = Machine(tmp_path / "mine")
        files = [mine.put("b.json"), mine.put("folder/a.json")]
        named = os.pathsep.join([str(files[0]), str(tmp_path / "missing.json"), str(files[1].parent)])
        found = machine.gather(**{variable: named})
        assert [driver.path for driver in found.vulkan_drivers] == [str(file) for file in files]
        assert found.variables == {variable: named}

    def test_an_override_that_leads_nowhere_leaves_nothing(self, machine: Machine, tmp_path: Path) -> None:
        machine.put("usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
        assert machine.gather(VK_ICD_FILENAMES=str(tmp_path / "missing.json")).vulkan_drivers == ()

    def test_an_empty_override_is_none(self, machine: Machine) -> None:
        machine.put("usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
        assert len(machine.gather(VK_ICD_FILENAMES="").vulkan_drivers) == 1

    def test_the_newer_variable_wins(self, machine: Machine) -> None:
        old, new = machine.put("old.json"), machine.put("new.json")
        found = machine.gather(VK_ICD_FILENAMES=str(old), VK_DRIVER_FILES=str(new))
        assert [driver.path for driver in found.vulkan_drivers] == [str(new)]


class TestOpenCL:
    def test_the_vendors_folder(self, machine: Machine) -> None:
        files = [machine.put(f"etc/OpenCL/vendors/{name}.icd", "lib.so\n") for name in ("nvidia", "pocl")]
        machine.put("etc/OpenCL/vendors/notes.txt")
        assert [driver.path for driver in machine.gather().opencl_drivers] == [str(file) for file in files]

    def test_another_folder(self, machine: Machine) -> None:
        machine.put("etc/OpenCL/vendors/pocl.icd")
        mine = machine.put("opt/vendors/mine.icd")
        found = machine.gather(OCL_ICD_VENDORS=str(mine.parent))
        assert [driver.path for driver in found.opencl_drivers] == [str(mine)]

    def test_a_single_driver(self, machine: Machine) -> None:
        machine.put("opt/vendors/other.icd")
        mine = machine.put("opt/vendors/mine.icd")
        found = machine.gather(OCL_ICD_VENDORS=str(mine))
        assert [driver.path for driver in found.opencl_drivers] == [str(mine)]


class TestNvidia:
    def test_the_module_that_is_loaded(self, machine: Machine) -> None:
        machine.put("sys/module/nvidia/version", "550.54.14\n")
        assert machine.gather().nvidia_module == "550.54.14"

    @posix
    def test_the_program(self, machine: Machine) -> None:
        program = machine.put("opt/bin/nvidia-smi", "#!/bin/sh\n")
        assert machine.gather(PATH=str(program.parent)).nvidia_smi is None, "it may not be run"
        program.chmod(0o755)
        assert machine.gather(PATH=os.pathsep.join(["/nowhere", str(program.parent)])).nvidia_smi == str(program)

    @posix
    def test_only_the_path_that_was_given_counts(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        program = machine.put("opt/bin/nvidia-smi", "#!/bin/sh\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        assert machine.gather(PATH="/nowhere").nvidia_smi is None
        assert machine.gather().nvidia_smi != str(program)


def test_gpus_on_the_bus(machine: Machine) -> None:
    for name, text in NVIDIA_GPU.items():
        machine.put(f"sys/bus/pci/devices/0000:65:00.0/{name}", f"{text}\n")
    (found,) = machine.gather().pci
    assert (found.pci, found.vendor, found.model, found.kernel_driver) == ("0000:65:00.0", "NVIDIA", "10de:2684", None)


class TestLibraries:
    def test_what_is_installed(self, machine: Machine) -> None:
        found = machine.gather().libraries
        assert {"anygpu", "numpy", "wgpu", "nvidia-ml-py"} <= set(found) <= set(evidence.LIBRARIES)
        assert found["numpy"] == metadata.version("numpy")

    def test_what_is_not_is_left_out(self) -> None:
        assert dict(evidence._library_versions(["no-such-library-anywhere"])) == {}


class TestVariables:
    @pytest.mark.parametrize("name", evidence.VARIABLES)
    def test_each_is_kept_even_when_empty(self, machine: Machine, name: str) -> None:
        assert machine.gather(**{name: ""}).variables == {name: ""}

    def test_others_are_nobody_s_business(self, machine: Machine) -> None:
        assert machine.gather(AWS_SECRET_ACCESS_KEY="hidden", HOME="/home/ada").variables == {}
