# ruff: noqa: N999 - PyInstaller finds a hook by its name
"""For a submodule and not for jax, so that a hook for jax itself, if there is one, is not replaced by this one."""

from __future__ import annotations

from PyInstaller.utils.hooks import copy_metadata  # type: ignore[import-untyped]

datas = copy_metadata("jax") + copy_metadata("jaxlib")
