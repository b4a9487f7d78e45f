from __future__ import annotations

from typing import Any

import msgspec
import pytest

from anygpu.errors import InvalidOption
from anygpu.runtime.task_queue import Tenant


def test_a_tenant_has_a_share_of_one_and_no_limits_unless_told() -> None:
    tenant = Tenant(name="search")
    assert (tenant.share, tenant.bytes, tenant.queued) == (1.0, None, None)


def test_a_tenant_crosses_processes() -> None:
    tenant = Tenant(name="search", share=2.5, bytes=1 << 30, queued=100)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tenant), type=Tenant) == tenant


def test_limits_of_zero_are_allowed_and_mean_nothing_at_all() -> None:
    assert Tenant(name="suspended", bytes=0, queued=0).queued == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": 3},
        {"share": 0},
        {"share": -1.0},
        {"share": float("inf")},
        {"share": float("nan")},
        {"share": "half"},
        {"share": True},
        {"bytes": -1},
        {"bytes": 1.5},
        {"bytes": True},
        {"queued": -1},
        {"queued": "ten"},
    ],
)
def test_what_makes_no_sense_is_refused_and_named(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "search", **wrong}
    [(field, value)] = wrong.items()
    with pytest.raises(InvalidOption) as caught:
        Tenant(**given)
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)
