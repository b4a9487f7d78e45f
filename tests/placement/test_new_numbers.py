"""A device that is wrong for some numbers alone: each kind of number is compared with NumPy before it is used."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from anygpu.agreement.trust import Trust, number_kind
from anygpu.errors import ResultMismatch
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.receipts.notes import last_receipt
from anygpu.workers.worker import Argument, Ran
from tests.placement.moved import moved
from tests.support.wrong_results import Wrong, WrongRegistry

pytestmark = pytest.mark.software_devices("calls move by themselves to a device that may be wrong")

DEVICE = "torch:cpu"
X = np.linspace(0.1, 2.0, 50)


class WrongForNumbers(Wrong):
    """Wrong where a number among the inputs is one for which `is_wrong` holds."""

    is_wrong: Callable[[Any], bool] = staticmethod(lambda number: False)

    def run(self, program: Program, arguments: Sequence[Argument], **options: Any) -> Ran:
        numbers = [np.asarray(each).item() for each in arguments if np.ndim(each) == 0]  # type: ignore[arg-type]
        self.when = lambda program, run: any(map(self.is_wrong, numbers))
        return super().run(program, arguments, **options)


@pytest.fixture(scope="module")
def wrong() -> WrongForNumbers:
    return WrongForNumbers(
        WrongRegistry(DEVICE, lambda program, run: False).wrong.inner, lambda *_: False, random.Random(1)
    )


@pytest.fixture
def planner(wrong: WrongForNumbers, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    places = WrongRegistry(DEVICE, lambda program, run: False)
    places.wrong = wrong
    return Planner(known=places)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ((0, 0.0, -0.0, False), {"0"}),
        ((1, 1.0, True), {"1"}),
        ((math.nan,), {"NaN"}),
        ((math.inf,), {"infinite"}),
        ((-math.inf,), {"negative", "infinite"}),
        ((2, 4.0, 0.5, 2**60), {"power of two"}),
        ((-2, -1.0, -0.25), {"negative", "power of two"}),
        ((-3, -0.7), {"negative"}),
        ((3, 0.7, 1e300), set()),
    ],
)
def test_kinds_of_numbers(numbers: tuple[Any, ...], kind: set[str]) -> None:
    assert all(number_kind(each) == kind for each in numbers)


def test_the_parts_of_complex_numbers() -> None:
    assert number_kind(1 - 2j) == {"real 1", "imaginary negative", "imaginary power of two"}


def test_numbers_are_known_by_kind_for_each_program_and_device() -> None:
    trust = Trust()
    zero, other = number_kind(0), number_kind(5)
    assert trust.knows_numbers("p", DEVICE, (zero,))  # nothing was compared, which is asked elsewhere
    trust.agree("p", DEVICE, None, 1, (zero, zero))
    assert trust.knows_numbers("p", DEVICE, (zero, zero))
    assert not trust.knows_numbers("p", DEVICE, (zero, other))
    assert trust.begin_comparing("p", DEVICE, (zero, other))
    assert not trust.begin_comparing("p", DEVICE, (zero, other))
    trust.end_comparing("p", DEVICE, (zero, other), agreed=True)
    assert trust.knows_numbers("p", DEVICE, (zero, other))
    assert not trust.knows_numbers("p", DEVICE, (other, other))
    trust.agree("p", DEVICE, None, 2, (zero, zero))
    assert not trust.knows_numbers("p", DEVICE, (zero, other))


#: A number for which a device is right, and those for which it is wrong, with examples.
WRONG: list[tuple[float, Callable[[Any], bool], tuple[float, ...]]] = [
    (0.0, lambda k: k != 0, (5.0, -3.0, 0.7)),
    (1.0, lambda k: k != 1, (5.0, 3.0, 0.3)),
    (5.0, lambda k: k == 0, (0.0,)),
    (5.0, lambda k: k < 0, (-5.0, -0.3)),
    (4.0, lambda k: math.frexp(k)[0] != 0.5, (5.0, 3.0)),
]
FUNCTIONS: list[Callable[[Any, Any], Any]] = [
    lambda x, k: np.sin(x) * 2 + k,
    lambda x, k: x + k * x,
    lambda x, k: (x - k) * (x + 1),
    lambda x, k: np.where(x > 1, x + k, x),
    lambda x, k: np.maximum(x, x * 0.5 + k) + x,
    lambda x, k: np.cumsum(x) + k,
    lambda x, k: np.exp(-x) + x * k,
    lambda x, k: (x + k).sum() + x,
]


def test_a_wrong_device_is_noticed_within_100_calls(wrong: WrongForNumbers, planner: Planner) -> None:
    """200 functions: 8, with 5 kinds of errors, on arrays of 5 shapes."""
    late: list[str] = []
    for shape in ((50,), (5, 10), (10, 5), (2, 25), (1, 50)):
        x = X.reshape(shape)
        for number, function in enumerate(FUNCTIONS):
            for right, is_wrong, examples in WRONG:
                wrong.is_wrong = is_wrong
                planner.pinned.clear()
                offloaded, state = moved(planner, function, x, right, device=DEVICE)
                assert np.allclose(offloaded(x, right), function(x, right))
                count = 0
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ResultMismatch)
                    for k in (examples * 50)[:100]:
                        count += not np.allclose(offloaded(x, k), function(x, k))
                        assert planner.settle(60)
                        if state.chooser.pinned is not None:
                            break
                if state.chooser.pinned is None or count:
                    late.append(f"function {number} on {shape}: {count} wrong results")
    assert not late


def test_a_device_that_is_right_runs_numbers_of_every_kind(wrong: WrongForNumbers, planner: Planner) -> None:
    wrong.is_wrong = staticmethod(lambda number: False)
    offloaded, _ = moved(planner, FUNCTIONS[0], X, 0.0, device=DEVICE)
    devices = []
    for k in (0.0, 5.0, 7.0, -1.5, -2.5, 2.0, 8.0, 0.0, 5.5):
        assert np.allclose(offloaded(X, k), FUNCTIONS[0](X, k))
        assert planner.settle(60)
        receipt = last_receipt()
        assert receipt is not None
        devices.append(receipt.device)
    new = "numpy"
    assert devices == [DEVICE, new, DEVICE, new, DEVICE, new, DEVICE, DEVICE, DEVICE]
