"""The page of what each engine runs itself is true on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_engines_is_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "engines"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
