# ruff: noqa: N999 - PyInstaller finds a hook by its name
"""For a submodule and not for llvmlite, whose own hook collects its library."""

from __future__ import annotations

from PyInstaller.utils.hooks import copy_metadata  # type: ignore[import-untyped]

datas = copy_metadata("llvmlite")
