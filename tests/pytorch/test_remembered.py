"""What is kept of steps across runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from anygpu.pytorch import step_plans
from anygpu.pytorch.planning import Kept, recall, remember, step_key

LAYERS = ("blocks.0", "blocks.1", "blocks.2")
KEPT = Kept(
    rows=64,
    budget=10_000,
    precision="float32",
    micro_batch=16,
    checkpoint=("blocks.2",),
    correction=1.1,
    predicted_bytes=9000,
    seconds_per_row=0.001,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ANYGPU_HISTORY", raising=False)
    return tmp_path / "history" / "steps"


def test_what_was_kept_is_recalled_without_names_on_disk(folder: Path) -> None:
    remember("ab" * 16, KEPT, LAYERS)
    assert recall("ab" * 16, LAYERS) == KEPT
    assert recall("cd" * 16, LAYERS) is None
    (file,) = folder.iterdir()
    assert b"blocks" not in file.read_bytes()


def test_nothing_is_kept_for_those_who_want_nothing_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_HISTORY", "off")
    remember("ab" * 16, KEPT, LAYERS)
    assert not folder.exists()
    monkeypatch.delenv("ANYGPU_HISTORY")
    remember("ab" * 16, KEPT, LAYERS)
    monkeypatch.setenv("ANYGPU_HISTORY", "off")
    assert recall("ab" * 16, LAYERS) is None


@pytest.mark.parametrize("damage", [lambda text: text[:-2], lambda text: b"", lambda text: text.replace(b"16", b"99")])
def test_a_damaged_file_counts_as_none(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    remember("ab" * 16, KEPT, LAYERS)
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert recall("ab" * 16, LAYERS) is None


def test_layers_that_are_gone_make_it_worthless() -> None:
    remember("ab" * 16, KEPT, LAYERS)
    assert recall("ab" * 16, LAYERS[:2]) is None


def test_the_oldest_files_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_plans, "MOST_FILES", 3)
    for number in range(5):
        remember(f"{number:032x}", KEPT, LAYERS)
    assert len(list(folder.iterdir())) == 3
    assert recall(f"{4:032x}", LAYERS) == KEPT
    step_plans.forget_steps()
    assert list(folder.iterdir()) == []


def test_a_key_is_that_of_the_structure_and_not_of_the_values() -> None:
    def key(width: int = 4, rows: int = 8, **options: bool) -> str:
        model = nn.Sequential(nn.Linear(3, width), nn.Dropout(0.1))
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        return step_key(model, optimizer, [torch.zeros(rows, 3)])

    assert key() == key()
    assert len({key(), key(width=5), key(rows=9), key(foreach=False)}) == 4
