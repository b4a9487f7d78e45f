from __future__ import annotations

import inspect
import pickle
import re
import tomllib
from pathlib import Path

import pytest

from anygpu import errors
from anygpu.errors import (
    AnyGPUError,
    CannotCompile,
    ClusterUnavailable,
    CopyNeeded,
    DeadlineExceeded,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InsecureCluster,
    InvalidKernel,
    InvalidOption,
    InvalidProgram,
    InvalidTensorFile,
    InvalidTransition,
    MissingExtra,
    NameTaken,
    NotANumber,
    NotHeld,
    NotRecordable,
    OutOfMemory,
    OverBudget,
    PoisonTask,
    QueueFull,
    QuotaExceeded,
    RuntimeClosed,
    StoreClosed,
    TooBig,
    UnknownTensor,
    Unsupported,
    ValueNeeded,
    WrongKernel,
    install_command,
)

EXAMPLES: list[AnyGPUError] = [
    DeviceUnavailable('on="gpu"', ["numpy is not a GPU."]),
    DeviceLost("webgpu:0", detail="driver restarted", generation=3),
    DevicePoisoned("torch:cuda:0", detail="illegal address"),
    DeviceHung("opencl:1", 2.0, doing="it was verified"),
    TooBig("webgpu:0", 3 << 30, 2 << 30),
    OutOfMemory("webgpu:0", 1 << 20, 1000),
    OverBudget("webgpu:0", 1 << 30, 1 << 29),
    DeadlineExceeded("score", 2.0, still_running=True),
    ClusterUnavailable("10.0.0.1:6379", detail="connection refused"),
    InsecureCluster("10.0.0.1:6379", "it asks for no token.", "Start it with one, or set insecure=True."),
    QueueFull(1000),
    QuotaExceeded("guests", "bytes", 1 << 30),
    RuntimeClosed("being drained"),
    PoisonTask("score", 3, detail="its process ended with signal 11"),
    NotANumber("score", (0, 3)),
    InvalidTransition("score", "Finished", "queued", ["it was submitted"]),
    Unsupported("float64", "webgpu:0"),
    CannotCompile("webgpu:0", "the kernel sum_0 does not compile"),
    ClusterUnavailable("node-1:6379", detail="connection refused"),
    InsecureCluster("node-1:6379", "it demands no token.", "Restart each of its nodes with a token."),
    MissingExtra("pyopencl", "opencl"),
    ValueNeeded("a.py:3"),
    NotRecordable("score", "it branches on an array value"),
    WrongKernel("blur", "out", (0, 3), 1.5, 1.25, differing=12),
    UnknownTensor("wieghts", "models", ["weights"]),
    NameTaken("weights", "text"),
    NotHeld("weights", "search"),
    CopyNeeded("weights", "every second element lies apart", 4096),
    StoreClosed("models"),
    InvalidTensorFile("model.safetensors", "its header is cut off"),
    # Those after here say what to do in what their raiser writes.
    InvalidKernel("blur", "expected ';'", line=3, column=7),
    InvalidProgram("permute: (0, 0) is not an order of the axes of float32[2, 3]."),
    InvalidOption("max_load is a share from 0 to 1; got 7."),
]


def leaves(cls: type[AnyGPUError]) -> set[type[AnyGPUError]]:
    # Other tests derive errors of their own, as users may.
    children = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
    return {cls} if not children else set().union(*(leaves(child) for child in children))


def test_every_kind_of_error_has_an_example_here() -> None:
    # `Unsupported` is raised itself, and has a more special kind.
    assert {type(example) for example in EXAMPLES} == leaves(AnyGPUError) | {Unsupported}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = [line.split("── ")[1].split()[0] for line in (errors.__doc__ or "").splitlines() if "── " in line]
    roots = (AnyGPUError, UserWarning)
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, roots)]
    assert set(drawn) | {"AnyGPUError"} == {cls.__name__ for cls in classes}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_the_way_between_processes(error: AnyGPUError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", EXAMPLES[:-3], ids=lambda error: type(error).__name__)
def test_messages_say_what_to_do(error: AnyGPUError) -> None:
    words = str(error)
    instructions = (
        "Run ",
        "Split ",
        "Free ",
        "Raise ",
        "Allow ",
        "Use ",
        "Install ",
        "Check ",
        "Start ",
        "use np.where()",
        "Reopen the device",
        "replace",
        "Wait for some",
        "Create another Runtime",
        "Check its arguments",
        "Check the arguments",
        "report it",
        "Compare the index",
        "Fix whichever",
        "Did you mean",
        "`holders` lists",
        "leave out on=",
        "Pass copy",
        "Open it again",
        "Save or download",
        "Check that it runs",
        "Restart each",
    )
    assert any(instruction in words for instruction in instructions), words


def test_three_kinds_of_no_memory_are_memory_errors_and_differ() -> None:
    kinds = (TooBig("d", 5, 4), OutOfMemory("d", 5, 4), OverBudget("d", 5, 4))
    assert len({type(kind) for kind in kinds}) == 3
    for kind in kinds:
        assert isinstance(kind, MemoryError)
        assert (kind.device, kind.requested, kind.limit) == ("d", 5, 4)


def test_errors_are_also_what_python_programmers_expect() -> None:
    assert isinstance(DeadlineExceeded("x", 1), TimeoutError)
    assert isinstance(MissingExtra("jax", "jax"), ImportError)
    assert isinstance(InvalidOption("x"), ValueError)


def test_a_missing_library_is_named_and_not_an_extra_of_anygpu() -> None:
    """An index may have another package under the name of anygpu."""
    assert str(MissingExtra("pyopencl", "opencl")).endswith("Install it with: pip install pyopencl")
    assert str(MissingExtra("httptools", "serve")).endswith("pip install uvicorn httptools")


def test_the_packages_of_extras_are_those_of_the_project() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, requirements in extras.items():
        names = [re.match(r"[\w-]+", each)[0] for each in requirements if ";" not in each]  # type: ignore[index]
        for name in names:
            command = install_command(name, extra)
            assert name in command
            if len(names) > 1 and extra != "observe":  # its two packages are for two things
                assert all(each in command for each in names), extra


def test_nothing_tells_to_install_anygpu_from_an_index() -> None:
    said = re.compile(r"pip\W+install[^\n`]*?[\s'\"]anygpu\b(?!-)")
    for folder, suffixes in (("src", (".py",)), ("docs", (".md",)), ("deploy", ("", ".cuda", ".service"))):
        for path in Path(folder).rglob("*"):
            if path.is_file() and path.suffix in suffixes:
                assert not said.search(path.read_text()), path
    assert not said.search(Path("README.md").read_text())


def test_unavailable_lists_every_refusal() -> None:
    error = DeviceUnavailable('on="gpu"', ["numpy is not a GPU.", "webgpu:0 is software."])
    assert "numpy is not a GPU." in str(error)
    assert "webgpu:0 is software." in str(error)
    assert "anygpu doctor" in str(error)
