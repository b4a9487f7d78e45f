"""The policy alone: for any tiers and budgets, what it moves may be moved, and afterwards there is room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.store.policy import Budgets, StoreMode, TierFull, TierItem, TierMove, room_on_device, room_on_host, tidied


@st.composite
def tiers(draw: st.DrawFn) -> list[TierItem]:
    items = []
    for key in range(draw(st.integers(0, 8))):
        on_device, on_host, backed = draw(
            st.sampled_from([p for n in range(1, 8) for p in [(bool(n & 1), bool(n & 2), bool(n & 4))]])
        )
        fixed = draw(st.booleans()) and on_device
        items.append(
            TierItem(key, draw(st.integers(0, 50)), draw(st.integers(0, 20)), on_device, on_host, backed, fixed)
        )
    return items


budgets = st.builds(
    Budgets,
    device=st.none() | st.integers(0, 150),
    host=st.none() | st.integers(0, 150),
    disk=st.booleans(),
)


def after(items: list[TierItem], moves: list[TierMove], allowed: Budgets) -> dict[int, TierItem]:
    """Carry the moves out, and check each of them."""
    state = {
        each.key: TierItem(each.key, each.nbytes, each.used, each.on_device, each.on_host, each.backed, each.fixed)
        for each in items
    }
    for move in moves:
        item = state[move.key]
        match move.step:
            case "leave_device":
                assert item.on_device
                assert item.on_host or item.backed
                item.on_device = False
            case "to_host":
                assert item.on_device
                assert not item.on_host
                item.on_device, item.on_host = False, True
            case "to_disk":
                assert item.on_device
                assert allowed.disk
                item.on_device, item.backed = False, True
            case "drop_host":
                assert item.on_host
                assert item.on_device or item.backed
                item.on_host = False
            case "host_to_disk":
                assert item.on_host
                assert allowed.disk
                item.on_host, item.backed = False, True
        assert item.on_device or item.on_host or item.backed, "the last copy went"
        assert not item.fixed or item.on_device, "something in use was moved"
        if allowed.host is not None and move.step == "to_host":
            assert sum(each.nbytes for each in state.values() if each.on_host) <= allowed.host
    return state


@given(tiers(), st.integers(0, 100), budgets)
def test_room_on_the_device(items: list[TierItem], need: int, allowed: Budgets) -> None:
    before = [(each.on_device, each.on_host) for each in items]
    try:
        moves = room_on_device(items, need, allowed)
    except TierFull:
        moves = []
    else:
        state = after(items, moves, allowed)
        if allowed.device is not None:
            assert sum(each.nbytes for each in state.values() if each.on_device) + need <= allowed.device
    assert [(each.on_device, each.on_host) for each in items] == before


@given(tiers(), st.integers(0, 100), budgets)
def test_room_is_refused_only_when_there_is_none(items: list[TierItem], need: int, allowed: Budgets) -> None:
    """With a disk, everything that is not fixed can leave."""
    allowed = Budgets(device=allowed.device, host=allowed.host, disk=True)
    fixed = sum(each.nbytes for each in items if each.fixed)
    try:
        room_on_device(items, need, allowed)
    except TierFull:
        assert allowed.device is not None
        assert fixed + need > allowed.device


@given(tiers(), st.integers(0, 100), budgets)
def test_room_on_the_host(items: list[TierItem], need: int, allowed: Budgets) -> None:
    try:
        moves = room_on_host(items, need, allowed)
    except TierFull:
        return
    state = after(items, moves, allowed)
    if allowed.host is not None:
        assert sum(each.nbytes for each in state.values() if each.on_host) + need <= allowed.host


@given(tiers(), st.integers(0, 20), budgets, st.sampled_from(["speed", "memory", "balanced"]))
def test_tidying_never_loses_anything(items: list[TierItem], since: int, allowed: Budgets, mode: StoreMode) -> None:
    state = after(items, tidied(items, since, allowed, mode), allowed)
    if mode == "memory":
        assert not any(each.on_host and (each.on_device or each.backed) for each in state.values())


def test_the_oldest_leave_first_and_what_is_fixed_stays() -> None:
    items = [
        TierItem(1, 10, used=3, on_device=True, on_host=False),
        TierItem(2, 10, used=1, on_device=True, on_host=True, fixed=True),
        TierItem(3, 10, used=2, on_device=True, on_host=True),
        TierItem(4, 10, used=4, on_device=True, on_host=False),
    ]
    assert room_on_device(items, 20, Budgets(device=40)) == [TierMove(3, "leave_device"), TierMove(1, "to_host")]
    # The host has room for two: the copy of what is fixed on the device makes way.
    assert room_on_device(items, 20, Budgets(device=40, host=20)) == [
        TierMove(3, "leave_device"),
        TierMove(2, "drop_host"),
        TierMove(1, "to_host"),
    ]
    with pytest.raises(TierFull):
        room_on_device(items, 31, Budgets(device=40))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("speed", []),
        ("balanced", [TierMove(1, "leave_device"), TierMove(3, "drop_host")]),
        ("memory", [TierMove(1, "leave_device"), TierMove(2, "to_host"), TierMove(3, "drop_host")]),
    ],
)
def test_three_modes_do_three_things_with_what_is_idle(mode: StoreMode, expected: list[TierMove]) -> None:
    items = [
        TierItem(1, 10, used=1, on_device=True, on_host=True),
        TierItem(2, 10, used=2, on_device=True, on_host=False),
        TierItem(3, 10, used=3, on_device=True, on_host=True, fixed=True),
        TierItem(4, 10, used=9, on_device=True, on_host=False),
    ]
    assert tidied(items, 5, Budgets(), mode) == expected
