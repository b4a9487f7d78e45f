"""What the doctor says of torch is a function of what it sees; and it leaves torch as it was."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from anygpu.pytorch import doctor, torch_settings
from anygpu.pytorch.torch_doctor import (
    Measurements,
    TorchCard,
    TorchDiagnosis,
    TorchFacts,
    best_of,
    diagnose,
    facts_here,
    measure,
)

A100 = TorchCard(name="NVIDIA A100", capability=(8, 0))
PLAIN = TorchFacts(
    version="2.13.0",
    processor="A processor",
    processors=8,
    cores=8,
    load=0.1,
    threads=8,
    capability="AVX512",
    matmul_precision="highest",
    cuda_matmul="none",
)


def codes(**changes: Any) -> dict[str, str]:
    found = diagnose(msgspec.structs.replace(PLAIN, **changes)).findings
    return {finding.code: finding.severity for finding in found}


def text(**changes: Any) -> str:
    return str(diagnose(msgspec.structs.replace(PLAIN, **changes)))


def test_a_machine_as_it_should_be() -> None:
    diagnosis = diagnose(PLAIN)
    assert diagnosis.findings == ()
    assert diagnosis.problems == ()
    assert "no setting was found that costs speed" in diagnosis.verdict


def test_more_threads_than_processors() -> None:
    slow = Measurements(product_by_threads={1: 8e-3, 2: 4e-3, 8: 9e-3}, seconds=1.0)
    assert codes(processors=2, measured=slow) == {"torch_too_many_threads": "problem"}
    said = text(processors=2, measured=slow)
    assert "torch.set_num_threads(2)" in said
    assert "takes 9 ms with 8 threads and 4 ms with 2" in said
    harmless = Measurements(product_by_threads={1: 8e-3, 2: 4e-3, 8: 4.1e-3}, seconds=1.0)
    assert codes(processors=2, measured=harmless) == {"torch_too_many_threads": "note"}
    assert codes(processors=2) == {"torch_too_many_threads": "problem"}, (
        "without a measurement it is what usually is so"
    )


def test_fewer_threads_than_processors() -> None:
    times = Measurements(product_by_threads={1: 8e-3, 8: 1.2e-3}, seconds=1.0)
    assert codes(threads=1, measured=times) == {"torch_too_few_threads": "problem"}
    said = text(threads=1, measured=times, environment={"OMP_NUM_THREADS": "1"})
    assert "OMP_NUM_THREADS=1 is set" in said
    assert "unset OMP_NUM_THREADS" in said
    assert "torch uses 1 of 8 processors" in said
    even = Measurements(product_by_threads={1: 1.25e-3, 8: 1.2e-3}, seconds=1.0)
    assert codes(threads=1, measured=even) == {}


def test_fewer_threads_may_be_faster_but_not_because_others_compute() -> None:
    times = Measurements(product_by_threads={4: 1.0e-3, 8: 2.0e-3}, seconds=1.0)
    assert codes(measured=times) == {"torch_fewer_threads_are_faster": "advice"}
    assert codes(measured=times, load=12.0) == {"torch_busy_machine": "note"}


def test_a_card_with_tensor_cores() -> None:
    found = codes(cards=(A100,))
    assert found["torch_no_tf32"] == "advice"
    assert found["torch_no_cudnn_benchmark"] == "note"
    assert found["torch_allocator"] == "note"
    assert found["torch_loading"] == "note"
    assert "NVIDIA A100" in text(cards=(A100,))
    assert "num_workers=7, pin_memory=True" in text(cards=(A100,))
    assert "torch_no_tf32" not in codes(cards=(A100,), matmul_precision="high")
    assert "torch_no_tf32" not in codes(cards=(A100,), matmul_precision=None, cuda_matmul="tf32")
    assert "torch_no_tf32" not in codes(cards=(TorchCard(name="old", capability=(7, 5)),))
    assert "torch_no_cudnn_benchmark" not in codes(cards=(A100,), cudnn_benchmark=True)
    expanding = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert "torch_allocator" not in codes(cards=(A100,), environment=expanding)
    assert "and 1 more" in text(cards=(A100, A100))


@pytest.mark.parametrize(
    ("name", "value", "costs"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", True),
        ("CUDA_LAUNCH_BLOCKING", "0", False),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", True),
        ("NVIDIA_TF32_OVERRIDE", "0", True),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", False),
        ("TORCHDYNAMO_DISABLE", "1", True),
        ("MKL_VERBOSE", "1", True),
    ],
)
def test_variables_that_cost(name: str, value: str, costs: bool) -> None:
    problems = [
        code for code, severity in codes(cards=(A100,), environment={name: value}).items() if severity == "problem"
    ]
    assert bool(problems) == costs
    if costs:
        assert f"unset {name}" in text(cards=(A100,), environment={name: value})


def test_variables_of_cards_cost_nothing_without_one() -> None:
    assert codes(environment={"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "0"}) == {}


def test_flags_that_cost() -> None:
    assert codes(anomaly=True) == {"torch_anomaly_mode": "problem"}
    assert codes(profiler=True) == {"torch_profiler": "problem"}
    assert codes(deterministic=True) == {"torch_deterministic": "advice"}
    assert codes(mkldnn=False) == {"torch_no_onednn": "problem"}
    assert codes(default_dtype="float64") == {"torch_float64": "advice"}
    assert codes(environment={"ATEN_CPU_CAPABILITY": "default"}) == {"torch_variable_aten_cpu_capability": "advice"}
    assert codes(environment={"OMP_WAIT_POLICY": "active"}) == {"torch_variable_omp_wait_policy": "advice"}
    assert "2 settings cost speed" in text(anomaly=True, profiler=True)
    assert "one setting costs speed" in text(anomaly=True)


def test_what_was_measured() -> None:
    measured = Measurements(denormals=20.0, bfloat16=4.0, channels_last=1.6, seconds=1.0)
    assert codes(measured=measured) == {
        "torch_host_has_bfloat16": "advice",
        "torch_channels_last": "note",
        "torch_denormals": "note",
    }
    assert "4.0 times as fast" in text(measured=measured)
    assert codes(measured=Measurements(denormals=1.1, bfloat16=0.5, channels_last=0.9, seconds=1.0)) == {}


def test_problems_come_first_and_json_is_read_again() -> None:
    facts = msgspec.structs.replace(PLAIN, anomaly=True, deterministic=True, cards=(A100,))
    diagnosis = diagnose(facts)
    order = [finding.severity for finding in diagnosis.findings]
    assert order == sorted(order, key=("problem", "advice", "note").index)
    assert msgspec.json.decode(diagnosis.to_json(), type=TorchDiagnosis) == diagnosis


# -- this process


def all_state() -> Any:
    return (
        {slot: torch_settings.read(slot) for slot in torch_settings.SLOTS},
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state()),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
    )


def new_threads(before: set[threading.Thread]) -> list[str]:
    """Ours end by themselves when they have nothing to do for a while."""
    return [each.name for each in set(threading.enumerate()) - before if not each.name.startswith("anygpu-")]


def test_this_process_is_seen_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    before, threads = all_state(), set(threading.enumerate())
    measured = measure([1, 2], budget=0.1)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        facts = facts_here()
    assert all_state() == before
    assert new_threads(threads) == []
    assert facts.anomaly
    assert facts.threads == torch.get_num_threads()
    assert facts.environment["OMP_WAIT_POLICY"] == "ACTIVE"
    assert set(measured.product_by_threads) == {1, 2}
    assert measured.bfloat16 is not None
    assert measured.bfloat16 > 0
    assert not facts_here().anomaly


def test_the_doctor_without_measurements_is_quick() -> None:
    begin = time.thread_time()
    diagnosis = doctor(measured=False)
    assert time.thread_time() - begin < 1.0
    assert diagnosis.facts.version == str(torch.__version__)
    assert diagnosis.facts.measured == Measurements()


def test_the_best_time_counts() -> None:
    first, second = best_of([lambda: None, lambda: sum(range(2000))], 0.0)
    assert 0 <= first < second
