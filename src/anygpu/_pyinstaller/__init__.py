"""What PyInstaller is told about anygpu, found through the entry point group `pyinstaller40`.

Nothing of this is imported by anygpu itself, and none of it goes into an application, except the runtime hook.
"""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    return [str(Path(__file__).parent)]
