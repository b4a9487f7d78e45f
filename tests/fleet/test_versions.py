"""Which versions count as others, and what is said about machines that have them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from anygpu import __version__
from anygpu.fleet import device_actor
from anygpu.fleet.device_actor import (
    Difference,
    Visited,
    decode,
    differences,
    installed_versions,
    library_of,
    refused,
    warnings_of,
)

HERE = {"anygpu": "1.2.0", "numpy": "2.3.1", "torch": "2.9.0+cpu"}


@pytest.mark.parametrize(
    ("here", "there", "differ"),
    [
        ("1.2.0", "1.2.0", False),
        ("1.2.0", "1.2.7", False),
        ("1.2.0", "1.2.0.dev3", False),
        ("2.9.0+cpu", "2.9.1+cu128", False),
        ("1.2", "1.2.3", False),
        ("1.2.0", "1.3.0", True),
        ("1.2.0", "2.2.0", True),
        ("0.1.0", "0.0.9", True),
        ("1.2.0", "1.20.0", True),
        ("1.2.0", "unknown", True),
        ("unknown", "unknown", False),
    ],
)
def test_the_first_two_numbers_count(here: str, there: str, differ: bool) -> None:
    found = differences(["anygpu"], {"anygpu": here}, {"anygpu": there})
    assert found == ((Difference("anygpu", here, there),) if differ else ())


def test_only_what_both_have_is_compared() -> None:
    assert differences(["torch", "jax"], HERE, {"jax": "0.4.1"}) == ()
    assert differences(["numpy"], HERE, {"numpy": "1.26.0", "torch": "1.0"}) == (
        Difference("numpy", "2.3.1", "1.26.0"),
    )


def test_what_is_installed_here() -> None:
    found = installed_versions()
    assert found["anygpu"] == __version__
    assert found["numpy"] == np.__version__
    assert library_of("numpy") == ("numpy",)
    assert library_of("torch") == ("torch",)
    assert library_of("nonsense") == ()


def test_many_machines_alike_are_one_sentence() -> None:
    old = (Difference("anygpu", "1.2.0", "1.1.4"), Difference("numpy", "2.3.1", "1.26.0"))
    missing = [refused(f"fleet@node-{number}", "fleet", old) for number in range(3)]
    missing.append(refused("torch:cuda:0@node-7", "torch", (Difference("torch", "2.9.0", "2.5.0"),)))
    first, second = warnings_of(missing, HERE)
    assert first.startswith("Devices of node-0, node-1 and node-2 are not used")
    assert "pip install 'anygpu==1.2.0' 'numpy==2.3.1'" in first
    assert "other_versions=True" in first
    assert "node-7" in second
    assert "torch 2.5.0 (here 2.9.0+cpu)" in second


class TestAnswers:
    """What a machine has answered, in the form of whatever version is there."""

    def test_of_this_version(self) -> None:
        visited = Visited((), (), {}, __version__, "3.12", HERE)
        assert decode(msgspec.msgpack.encode(visited)) == visited

    def test_of_one_that_did_not_tell_its_libraries(self) -> None:
        assert decode(
            msgspec.msgpack.encode(
                {"devices": [], "unavailable": [], "calibrations": {}, "version": "0.0.9", "python": "3.12"}
            )
        ).versions == {"anygpu": "0.0.9"}

    def test_of_one_that_cannot_be_read(self) -> None:
        answer = msgspec.msgpack.encode({"devices": [{"new": 1}], "version": "9.0"})
        assert decode(answer).versions == {"anygpu": "9.0"}

    def test_nonsense_of_this_version_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_actor, "__version__", "9.0")
        with pytest.raises(msgspec.ValidationError):
            decode(msgspec.msgpack.encode({"devices": [{"new": 1}], "version": "9.0"}))
