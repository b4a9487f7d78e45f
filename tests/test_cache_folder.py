"""Where the cache is, and that a file in it is whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from anygpu.cache_folder import cache_folder, replace_file


def test_where_the_cache_is() -> None:
    assert cache_folder({"ANYGPU_CACHE_DIR": "/somewhere"}) == Path("/somewhere")
    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/anygpu")
    assert cache_folder({}).name == "anygpu"


def test_a_user_without_a_home_has_a_cache_in_which_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    folder = cache_folder({})
    with pytest.raises(OSError, match="anygpu"):
        (folder / "probes.json").read_bytes()
    with pytest.raises(OSError, match="null"):
        replace_file(folder / "probes.json", b"")
    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/anygpu")


def test_a_file_is_replaced_and_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of this kind")
def test_a_disk_that_is_full_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from anygpu.cache_folder import replace_file
path = Path(sys.argv[1])
replace_file(path, b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    replace_file(path, bytes(1000))
except OSError:
    print("refused")
"""
    path = tmp_path / "file"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused"], done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
