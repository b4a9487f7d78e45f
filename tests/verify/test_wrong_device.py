"""A device with a fault in one kernel: it is found, named, made small, and comes with the command that repeats it."""

from __future__ import annotations

import pytest

from anygpu.hardware.device import Device
from anygpu.testing.verify import Subject, VerifyCheck, VerifyRecord
from anygpu.testing.verify.checks import all_checks, chosen
from anygpu.testing.verify.running import verify_device
from anygpu.testing.verify.values import CONFORMANCE, SIZES, program_of, programs
from anygpu.workers.device_arrays.registry import registry
from tests.support.wrong_kernels import Fault, WrongRegistry
from tests.verify.watching import Silent

#: A worker that was killed while the machine is busy may still be ending when it is forgotten.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def verified(fault: Fault, check: VerifyCheck, number: int) -> tuple[Device, VerifyRecord]:
    places = WrongRegistry(fault)
    try:
        device = places.find("webgpu").facts
        return device, verify_device(device, [check], Silent(), seconds=120, number=number, places=places, timeout=100)
    finally:
        places.close()


def seed_with(operation: str, first: int) -> int:
    """Of a program that returns what the operation gives; `first` only spares the search."""
    for seed in range(first, first + 1000):
        program = program_of(seed).program
        if any(program.nodes[output].op.name == operation for output in program.outputs):
            return seed
    raise AssertionError(f"no random program returns a {operation}")


def number_of(check: VerifyCheck, name: str) -> int:
    anything = Subject(registry.find("numpy").facts)
    return next(case.number for case in check.cases(anything) if case.name == name)


def test_a_wrong_function_is_named_with_its_seed_its_driver_and_the_command() -> None:
    seed = seed_with("tanh", 1037)
    device, record = verified("tanh", programs(1, first=seed), seed)
    assert not record.is_clean
    (finding,) = record.findings
    assert (finding.check, finding.seed, finding.kind) == ("programs", seed, "differs")
    assert finding.driver == device.driver
    assert finding.command == f"anygpu verify {device.id} --only programs --seed {seed}"
    # Everything else was dropped.
    assert finding.operations == ("tanh",)
    assert finding.nodes == 2
    assert finding.nodes_before is not None
    assert finding.nodes_before >= 2
    assert finding.program is not None
    assert "= tanh a" in finding.program


def test_conformance_names_the_function_too() -> None:
    number = number_of(CONFORMANCE, "unary functions of float32")
    (finding,) = verified("tanh", CONFORMANCE, number)[1].findings
    assert finding.operations == ("tanh",)
    assert finding.sentence.startswith("tanh")
    assert finding.command.endswith(f"--only conformance --seed {number}")


def test_a_lost_workgroup_is_found_by_its_length() -> None:
    number = number_of(SIZES, "65,537 elements")
    (finding,) = verified("last group", SIZES, number)[1].findings
    assert (finding.case, finding.kind) == ("65,537 elements", "differs")
    assert finding.nodes is not None
    assert finding.nodes_before is not None
    assert finding.nodes < finding.nodes_before


def test_a_crash_is_a_finding_and_the_command_survives_it() -> None:
    seed = seed_with("sort", 100)
    (finding,) = verified("dies", programs(1, first=seed), seed)[1].findings
    assert (finding.kind, finding.seed) == ("crashes", seed)
    assert "sort" in finding.operations
    assert "its process ended by SIG" in finding.sentence


def test_the_same_cases_are_right_without_the_fault() -> None:
    seed = seed_with("tanh", 1037)
    checks = chosen(("programs",), all_checks(1, first=seed))
    record = verify_device(registry.find("webgpu").facts, checks, Silent(), seconds=120, number=seed, timeout=100)
    assert (record.is_clean, record.findings) == (True, ())
