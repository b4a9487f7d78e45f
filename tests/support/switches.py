"""Tests that need another product than users run, each with its reason.

A test runs what a user runs: native code is on, and devices that compute on the processor are used only when they are
named. A test that needs it otherwise asks for it with a mark, which says why::

    pytestmark = pytest.mark.software_devices("calls have to move by themselves, as to a GPU")

`python -m tests.support.switches` lists what asks for a switch, by reason.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest

#: By mark: the variable that it sets, and to what.
SWITCHES = {
    "software_devices": ("ANYGPU_SOFTWARE_DEVICES", "on"),
    "native_off": ("ANYGPU_NATIVE", "off"),
}


def asked_for(item: pytest.Item) -> dict[str, str]:
    """Return the switches of a test, with their reasons."""
    found = {}
    for name in SWITCHES:
        mark = item.get_closest_marker(name)
        if mark is not None:
            (reason,) = mark.args
            found[name] = str(reason)
    return found


@contextlib.contextmanager
def switched(item: pytest.Item) -> Iterator[None]:
    """Within the block the variables are set for which a test asks; fixtures of any scope are made and ended in it."""
    # One by one: other variables may be those of a fixture that outlives the test.
    values = dict(SWITCHES[name] for name in asked_for(item))
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Listing:
    """Collects what asks for a switch."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.tests = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = len(session.items)
        for item in session.items:
            for name, reason in asked_for(item).items():
                self.found[name, reason][item.nodeid.partition("::")[0]] += 1


def main() -> int:
    listing = _Listing()
    pytest.main(["--collect-only", "-q", "-q", "-m", "", "--no-header", "-p", "no:terminal"], plugins=[listing])
    for (name, reason), files in sorted(listing.found.items()):
        print(f"{name}: {reason}")
        for file, count in sorted(files.items()):
            print(f"    {count:5} {file}")
    asking = sum(count for files in listing.found.values() for count in files.values())
    print(f"{asking} of {listing.tests} tests ask for a switch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
