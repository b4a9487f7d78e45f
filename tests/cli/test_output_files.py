"""Commands write whole files, never over an input, and leave a file's mode as it was."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from anygpu.cli.output import check_output, numbered, write_new, write_output
from anygpu.cli.scripts import write_copy
from anygpu.errors import InvalidOption
from tests.cli.test_advise import report_of

SCRIPT = 'import numpy as np\nprint("mine")\n'

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no modes, and links need a privilege")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def anygpu(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "anygpu", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["profile", "--html", "s.py", "s.py"], "--html"),
        (["profile", "--json", "./s.py", "s.py"], "--json"),
        (["profile", "--json", "link.py", "s.py"], "--json"),
        (["profile", "--html", "data.txt", "s.py", "data.txt"], "--html"),
        (["advise", "-o", "s.py", "s.py"], "--output"),
        (["advise", "-o", "data.txt", "s.py", "data.txt"], "--output"),
        (["profile", "--html", "out", "--json", "out", "s.py"], "--json"),
    ],
)
@posix
def test_an_input_is_not_overwritten(tmp_path: Path, arguments: list[str], option: str) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "data.txt").write_text("mine")
    (tmp_path / "link.py").symlink_to("s.py")
    done = anygpu(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert option.encode() in done.stderr
    assert b"mine" not in done.stdout, "it is refused before the script runs"
    assert (tmp_path / "s.py").read_text() == SCRIPT
    assert (tmp_path / "data.txt").read_text() == "mine"


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="is a folder"):
        check_output(tmp_path, (), "-o")
    with pytest.raises(typer.BadParameter, match="there is no folder"):
        check_output(tmp_path / "none" / "file", (), "-o")
    check_output(tmp_path / "file", [tmp_path / "other"], "-o")


@posix
def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to(path)
    with path.open("rb") as reader:
        write_output(link, b"after")
        assert reader.read() == b"before", "who reads it reads one or the other"
    assert path.read_bytes() == b"after"
    assert mode_of(path) == 0o640
    assert link.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "out"]


@posix
def test_a_new_file_has_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output(tmp_path / "out", b"")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "out") == 0o640


@posix
def test_a_pipe_is_written_to() -> None:
    reading, writing = os.pipe()
    write_output(Path(f"/dev/fd/{writing}"), b"report")
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"report"


@posix
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="cannot write '/proc/none'"):
        write_output(Path("/proc/none"), b"")
    with pytest.raises(InvalidOption, match="No such file"):
        write_new([tmp_path / "none" / "file"], b"")


@posix
def test_a_new_name_is_neither_a_file_nor_a_link(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.symlink_to("elsewhere.json")
    assert write_new(numbered(path), b"1") == tmp_path / "record-2.json"
    assert not (tmp_path / "elsewhere.json").exists()
    assert write_new(numbered(path), b"2") == tmp_path / "record-3.json"
    assert (tmp_path / "record-2.json").read_bytes() == b"1"
    with pytest.raises(InvalidOption, match="taken"):
        write_new([path], b"3")


@posix
@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_the_copy_of_a_script_has_its_mode(tmp_path: Path, mode: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f(x):\n    return x\n")
    script.chmod(mode)
    copy = write_copy(script, report_of(script, 1))
    assert copy is not None
    assert mode_of(copy[0]) == mode
