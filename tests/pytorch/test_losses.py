from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from anygpu.pytorch.accumulation import fits, found_by_values, has_any, known
from tests.pytorch.modules import contrastive

torch.manual_seed(0)
SCORES, CLASSES, VALUES = torch.randn(4, 5), torch.tensor([0, 3, 2, 4]), torch.randn(4, 5)
IMAGES, PIXELS = torch.randn(4, 5, 3), torch.randint(0, 5, (4, 3))


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "kind"),
    [
        (nn.MSELoss(), SCORES, VALUES, "mean"),
        (nn.MSELoss(reduction="sum"), SCORES, VALUES, "sum"),
        (nn.KLDivLoss(reduction="batchmean"), SCORES, VALUES, "mean"),
        (F.l1_loss, SCORES, VALUES, "mean"),
        (partial(F.huber_loss, reduction="sum"), SCORES, VALUES, "sum"),
        (nn.CrossEntropyLoss(), SCORES, CLASSES, "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), SCORES, CLASSES, "sum"),
        (nn.CrossEntropyLoss(), SCORES, VALUES.softmax(1), "mean"),
        (nn.NLLLoss(ignore_index=0), SCORES, CLASSES, "mean"),
        (F.cross_entropy, IMAGES, PIXELS, "mean"),
    ],
)
def test_losses_of_torch_are_known(loss: Any, outputs: Any, targets: Any, kind: str) -> None:
    found = known(loss, outputs, targets)
    assert found is not None
    assert (found.kind, found.by_values) == (kind, False)


class MyMSE(nn.MSELoss):
    pass


@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        (nn.MSELoss(), SCORES, VALUES[:, 0]),  # shapes that are broadcast couple rows
        (nn.MSELoss(), SCORES[:, 0], VALUES[:, :1]),
        (nn.BCEWithLogitsLoss(weight=torch.ones(4, 1)), SCORES, VALUES),
        (MyMSE(), SCORES, VALUES),
        (partial(F.mse_loss, VALUES), SCORES, VALUES),
        (nn.MSELoss(reduction="none"), SCORES, VALUES),
        (nn.CrossEntropyLoss(), SCORES[0], CLASSES[0]),
        (contrastive, SCORES, CLASSES),
        (nn.MSELoss(), {"x": SCORES}, VALUES),
    ],
)
def test_others_are_not(loss: Any, outputs: Any, targets: Any) -> None:
    assert known(loss, outputs, targets) is None


@pytest.mark.parametrize("weight", [None, torch.rand(5) + 0.1])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_counted_means_are_sums_over_counts(weight: Any, smoothing: float, ignored: int) -> None:
    loss = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing, ignore_index=ignored)
    found = known(loss, IMAGES, PIXELS)
    assert found is not None
    assert found.counted is not None
    total = found.counted.divisor(IMAGES, PIXELS)
    parts = [found.counted.summed(IMAGES[a:b], PIXELS[a:b]) / total for a, b in ((0, 1), (1, 4))]
    assert torch.allclose(torch.stack(parts).sum(), loss(IMAGES, PIXELS), rtol=1e-5)


def asked(loss: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> Any:
    return found_by_values(lambda tree: loss(*tree), (outputs, targets), 4, changed=targets)


def masked(outputs: Any, targets: Any) -> Any:
    values, mask = targets
    return ((outputs - values) ** 2 * mask).sum() / mask.sum()


def uncertain(outputs: Any, targets: Any) -> Any:
    return (outputs + torch.randn_like(outputs)).mean()


@pytest.mark.parametrize(
    ("loss", "targets", "kind"),
    [
        (lambda o, t: ((o - t) ** 2).mean(), VALUES, "mean"),
        (lambda o, t: ((o - t) ** 2).mean(1).sum(), VALUES, "sum"),
        (lambda o, t: ((o - t) ** 2).sum() / len(o), VALUES, "mean"),
        (lambda o, t: F.mse_loss(o, t) + 0.3, VALUES, "mean"),
        (lambda o, t: F.mse_loss(o, t, reduction="sum") + 0.3, VALUES, "unknown"),
        (lambda o, t: F.mse_loss(o, t).sqrt(), VALUES, "unknown"),
        (contrastive, CLASSES, "unknown"),
        (masked, (VALUES, torch.ones(4, 5)), "unknown"),
        (masked, (VALUES, torch.ones(4, 5, dtype=torch.bool)), "unknown"),
        (uncertain, VALUES, "unknown"),
        (lambda o, t: o.sum() * 0, VALUES, "unknown"),
        (lambda o, t: o[5].sum(), VALUES, "unknown"),
    ],
)
def test_other_losses_show_it_by_their_values(loss: Any, targets: Any, kind: str) -> None:
    found = asked(loss, SCORES, targets)
    assert (found.kind, found.unless) == (kind, ()), found.reason


def test_targets_that_do_not_count_are_noticed() -> None:
    found = asked(lambda o, t: F.cross_entropy(o, t), SCORES, CLASSES)
    assert (found.kind, found.unless) == ("mean", (-100,))
    found = asked(lambda o, t: F.cross_entropy(o, t, ignore_index=0), SCORES, CLASSES)
    assert found.kind == "unknown" or found.unless == (0,)
    assert has_any((VALUES, torch.tensor([3, -100])), (-100,))
    assert not has_any((torch.full((3,), -100.0), torch.tensor([3])), (-100,))


def test_what_parts_make_of_the_whole() -> None:
    assert fits(2.5, [(1, 1.0), (3, 3.0)]) == {"mean"}
    assert fits(4.0, [(1, 1.0), (3, 3.0)]) == {"sum"}
    assert fits(0.0, [(1, 0.0), (3, 0.0)]) == {"mean", "sum"}
    assert fits(float("nan"), [(1, 1.0), (3, 3.0)]) == set()
