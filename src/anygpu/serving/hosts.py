"""The headers with which a browser says for whom it asks.

A page of any site can make the browser of this machine's user send requests to the loopback address, and a name of the
site that leads here lets it read the answers (DNS rebinding). The browser names the site in `Origin`, or in `Host`.
"""

from __future__ import annotations

#: Names under which the loopback address is asked.
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def name_of_host(host: str) -> str:
    """The name in a `Host` header, without the port."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() else host.strip().lower()


def refusal_of_page(hosts: list[str], origins: list[str], names: tuple[str, ...] = LOOPBACK_NAMES) -> str | None:
    """Why a request with these headers is refused, or `None` if it comes from a program and not from a page."""
    if len(hosts) != 1 or name_of_host(hosts[0]) not in names:
        return f"only requests to {', '.join(names)} are answered: the header Host names another."
    if origins:
        return "pages of a browser are not answered: the request has the header Origin."
    return None
