"""Every error of anygpu has its kind of failure, by type and never by words."""

from __future__ import annotations

import pickle
from typing import get_args

import pytest

from anygpu import errors
from anygpu.workers.task_lifecycle import TaskFault, fault_of

OF_ANYGPU: list[tuple[BaseException, TaskFault]] = [
    (errors.TooBig("webgpu:0", 100, 10), "too big"),
    (errors.OutOfMemory("webgpu:0", 100), "no memory"),
    (errors.OverBudget("webgpu:0", 100, 10), "over budget"),
    (errors.DeviceLost("webgpu:0"), "lost"),
    (errors.DevicePoisoned("cuda:0"), "poisoned"),
    (errors.DeviceHung("webgpu:0", 3.0), "hung"),
    (errors.Unsupported("float64", "webgpu:0"), "unsupported"),
    (errors.NotRecordable("f", "it prints"), "unsupported"),
    (errors.DeviceUnavailable("gpu"), "unavailable"),
    (errors.MissingExtra("torch", "torch"), "unavailable"),
    (errors.DeadlineExceeded("f", 3.0), "late"),
]

OF_THE_USER: list[BaseException] = [
    ValueError("a device was lost"),
    MemoryError("out of memory"),
    TimeoutError("did not respond"),
    ImportError("no torch"),
    KeyboardInterrupt(),
    errors.ValueNeeded("f.py:3"),
    errors.NotANumber("f", (0,)),
    errors.InvalidProgram("cycle"),
    errors.InvalidOption("nonsense"),
    ExceptionGroup("several", [errors.DeviceLost("webgpu:0")]),
]


@pytest.mark.parametrize(("error", "fault"), OF_ANYGPU, ids=lambda each: type(each).__name__)
def test_errors_of_anygpu_have_their_fault_also_from_another_process(error: BaseException, fault: TaskFault) -> None:
    assert fault_of(error) == fault
    assert fault_of(pickle.loads(pickle.dumps(error))) == fault


@pytest.mark.parametrize("error", OF_THE_USER, ids=lambda each: type(each).__name__)
def test_everything_else_is_the_users_whatever_its_words(error: BaseException) -> None:
    assert fault_of(error) == "user"


def test_every_fault_has_an_error() -> None:
    found = {fault for _, fault in OF_ANYGPU} | {"user", "missing"}
    assert found == set(get_args(TaskFault))


def test_a_kind_of_ours_that_somebody_made_more_special_keeps_its_fault() -> None:
    class NoRoomInTheLeftHalf(errors.OutOfMemory):
        pass

    assert fault_of(NoRoomInTheLeftHalf("webgpu:0")) == "no memory"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (errors.DeviceLost("webgpu:0", generation=2), "lost"),
        (errors.DeviceLost("webgpu:0"), "lost"),
        (errors.DeviceLost("webgpu:0", generation=1), "missing"),
        (errors.DeviceLost("opencl:0", generation=2), "missing"),
        (errors.DeviceLost("opencl:0"), "missing"),
    ],
)
def test_the_loss_of_another_worker_means_a_missing_argument(error: errors.DeviceLost, fault: TaskFault) -> None:
    assert fault_of(error, device="webgpu:0", generation=2) == fault
