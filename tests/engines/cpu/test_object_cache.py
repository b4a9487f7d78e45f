"""Images on disk: used again by the next process, and never when there is any doubt about them."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from anygpu.engines.cpu import compiler, loader
from anygpu.engines.cpu.loader import Image, host_processor, image_of
from tests.engines.cpu.test_compiler import module, value


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    host_processor()
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    return tmp_path / "native"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that LLVM was asked for. It is asked once for each: what matters here is whether it is."""
    asked: list[str] = []
    known: dict[str, bytes] = {}
    real = compiler.compiled

    def compile_text(text: str, *given: object, **named: object) -> bytes:
        asked.append(text)
        if text not in known:
            known[text] = real(text, *given, **named)  # type: ignore[arg-type]
        return known[text]

    monkeypatch.setattr(loader, "compiled", compile_text)
    return asked


def answer(number: int) -> int:
    return value(Image(image_of(module(number), host_processor()), {}))


def test_a_module_is_compiled_once(folder: Path, compiled: list[str]) -> None:
    assert [answer(1), answer(1), answer(2), answer(1)] == [1, 1, 2, 1]
    assert len(compiled) == 2
    assert len(list(folder.iterdir())) == 2


def test_another_processor_and_another_level_have_their_own(folder: Path, compiled: list[str]) -> None:
    lesser = msgspec.structs.replace(host_processor(), features="")
    answer(1)
    image_of(module(1), lesser)
    image_of(module(1), host_processor(), level=0)
    assert len(compiled) == 3
    assert len(list(folder.iterdir())) == 3


def test_hundreds_of_damaged_files_are_not_loaded(folder: Path, compiled: list[str]) -> None:
    answer(1)
    (path,) = folder.iterdir()
    right = path.read_bytes()
    rng = random.Random(0)
    for number in range(400):
        damaged = bytearray(right)
        kind = number % 4
        if kind == 0:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del damaged[rng.randrange(len(damaged)) :]
        elif kind == 2:
            damaged += rng.randbytes(1 + rng.randrange(100))
        else:
            at = rng.randrange(len(damaged))
            damaged[at : at + 16] = rng.randbytes(16)
        path.write_bytes(damaged)
        before = len(compiled)
        assert answer(1) == 1
        assert len(compiled) == before + 1 or bytes(damaged) == right
        assert path.read_bytes() == right, "the damaged file is replaced"


def test_a_swapped_file_is_not_loaded(folder: Path, compiled: list[str]) -> None:
    answer(1)
    (first,) = folder.iterdir()
    answer(2)
    (second,) = set(folder.iterdir()) - {first}
    shutil.copy(second, first)
    assert (answer(1), answer(2)) == (1, 2)
    assert len(compiled) == 3


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="without owners of files")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_others_can_write_is_not_loaded(folder: Path, compiled: list[str], what: str) -> None:
    answer(1)
    (path,) = folder.iterdir()
    (path if what == "file" else folder).chmod(0o777)
    assert answer(1) == 1
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]
) -> None:
    host_processor()
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path / "file"))
    assert [answer(1), answer(1)] == [1, 1]
    assert len(compiled) == 2


def test_an_image_is_code_that_can_be_called() -> None:
    code = Image(image_of(module(12), host_processor()), {})
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code["number"])() == 12
