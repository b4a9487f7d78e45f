"""Nothing in a text tells whose machine it comes from."""

from __future__ import annotations

import pytest

from anygpu.testing.verify import Owner, this_owner, without_personal_data

OWNER = Owner(folders=("/home/mallory smith", "/home/mallory", "/tmp"), names=("mallory", "mallorys-laptop"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cannot open /home/mallory/.cache/anygpu/x.bin", "cannot open …/x.bin"),
        ("in /tmp/pocl-1/kernel.cl:3", "in …/kernel.cl:3"),
        ("/home/mallory smith/one/x.bin is gone", "…/x.bin is gone"),
        ("/opt/company/secret/lib.so failed", "…/lib.so failed"),
        (r"C:\Users\Eve\driver.dll failed", "…/driver.dll failed"),
        ("card GPU-8a3f21bc-1111-2222-3333-444455556666 is lost", "card <identity> is lost"),
        ("id 8a3f21bc-1111-2222-3333-444455556666.", "id <identity>."),
        ("Mallory on mallorys-laptop", "<name> on <name>"),
        ("malloryx stays, and 3 / 4 and a/b stay", "malloryx stays, and 3 / 4 and a/b stay"),
    ],
)
def test_what_is_taken_out(text: str, wanted: str) -> None:
    assert without_personal_data(text, OWNER) == wanted


def test_short_names_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ai")
    assert "ai" not in this_owner().names


def test_the_owner_of_this_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "mallory")
    monkeypatch.setenv("HOME", "/home/mallory")
    owner = this_owner()
    assert "mallory" in owner.names
    assert "/home/mallory" in owner.folders
