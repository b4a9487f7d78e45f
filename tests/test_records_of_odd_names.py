"""Names and paths that are not UTF-8 get into every record, escaped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import anygpu as ag
from anygpu.base.printable import encodable, encode_json, encode_msgpack

ODD = os.fsdecode(b"caf\xe9")


class Inner(msgspec.Struct, tag="inner"):
    name: str
    data: bytes = b"\xff"


class Record(msgspec.Struct):
    path: str
    by_name: dict[str, int]
    inner: tuple[Inner, ...] = ()


RECORD = Record(ODD, {ODD: 1}, (Inner(ODD),))
ESCAPED = Record(encodable(ODD), {encodable(ODD): 1}, (Inner(encodable(ODD)),))


def test_what_cannot_be_encoded_is_escaped() -> None:
    assert msgspec.json.decode(encode_json(RECORD), type=Record) == ESCAPED
    assert msgspec.msgpack.decode(encode_msgpack(RECORD), type=Record) == ESCAPED
    assert encodable("naïve ☃") == "naïve ☃"


def test_a_receipt_with_an_odd_name_is_json() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        return x * 2

    function.__name__ = function.__qualname__ = ODD
    receipt = ag.run(function, np.ones(3)).receipt
    assert json.loads(receipt.to_json())["task"] == r"caf\udce9"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names of files")
def test_a_script_in_an_odd_folder_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "")
    folder = tmp_path / ODD
    folder.mkdir()
    script = folder / "script.py"
    script.write_text("import numpy as np\n\ndef f(x):\n    return np.sin(x)\n\nf(np.ones(100))\n")
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "anygpu", "advise", "--json", "-o", str(out), str(script)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_bytes())["script"] == encodable(str(script))
