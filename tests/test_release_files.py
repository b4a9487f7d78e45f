"""What a release consists of names one version, and asks for the same packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import anygpu

ROOT = Path(__file__).parents[1]
#: Names on PyPI, where conda-forge has another one.
ON_CONDA = {"wgpu": "wgpu-py"}


def recipe() -> Any:
    return yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == recipe()["context"]["version"] == anygpu.__version__
    assert citation["license"] == recipe()["about"]["license"] == project()["license"]


def test_the_changelog_has_the_next_version() -> None:
    version = anygpu.__version__.removesuffix(".dev0")
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text()


def test_conda_asks_for_what_pip_does() -> None:
    # Markers name the systems for which PyPI has a wheel; conda-forge has a package for each.
    wanted = [re.split(r"(?=>=)", each.partition(";")[0]) for each in project()["dependencies"]]
    expected = [f"python {project()['requires-python']}"]
    expected += [f"{ON_CONDA.get(name, name)} {least}" for name, least in wanted]
    assert recipe()["requirements"]["run"] == expected


def test_conda_has_the_same_commands() -> None:
    commands = [f"{name} = {target}" for name, target in project()["scripts"].items()]
    assert recipe()["build"]["python"]["entry_points"] == commands


def test_links_of_the_changelog_lead_somewhere() -> None:
    links = re.findall(r"\]\(([\w/.-]+)\)", (ROOT / "CHANGELOG.md").read_text())
    assert links
    assert [each for each in links if not (ROOT / each).exists()] == []
