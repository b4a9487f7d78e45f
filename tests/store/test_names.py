"""Names, owners, holders and leases: who has what, and when it goes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from anygpu.errors import InvalidOption, NameTaken, NotHeld, StoreClosed, UnknownTensor
from anygpu.store import Store
from tests.store.conftest import MakeStore, some


def test_everybody_gets_the_same_tensor(make_store: MakeStore) -> None:
    store = make_store("shop")
    put = store.put("weights", some(1), owner="text")
    assert store.get("weights") is put
    assert (put.owner, put.holders, put.name, put.namespace) == ("text", ("text",), "weights", ())
    assert np.array_equal(put.host(), some(1))


def test_a_wrong_name_is_answered_with_names_that_are_like_it(make_store: MakeStore) -> None:
    store = make_store("shop")
    store.put("encoder.weight", some(1))
    with pytest.raises(UnknownTensor, match=r"the store shop has no tensor 'encoder.wieght'. Did you mean 'encoder.we"):
        store.get("encoder.wieght")


def test_names_are_any_strings_and_namespaces_keep_them_apart(make_store: MakeStore) -> None:
    store = make_store()
    text, image = store.namespace("text"), store.namespace("image")
    for number, name in enumerate(("", "a/b", "a.b", "a", "日本語", "\0")):
        text.put(name, np.full(3, number))
        image.put(name, np.full(3, -number))
    store.put("b", some(1), namespace=("a",))
    store.put("a/b", some(2))
    assert text.get("a/b").host()[0] == 1
    assert image.get("a/b").host()[0] == -1
    assert text.names() == ["", "a/b", "a.b", "a", "日本語", "\0"]
    assert store.names() == ["a/b"]
    assert store.keys()[-2:] == [("a", "b"), ("a/b",)]
    assert "a" in text
    assert "c" not in text
    assert text.namespace("deep").path == ("text", "deep")
    with pytest.raises(UnknownTensor, match="namespace text"):
        text.get("lost")
    with pytest.raises(InvalidOption, match="are strings"):
        store.put(3, some(1))  # type: ignore[arg-type]


def test_only_the_owner_may_put_something_else_under_a_name(make_store: MakeStore) -> None:
    store = make_store()
    tensor = store.put("a", some(1), owner="text")
    with pytest.raises(NameTaken, match="'a' already belongs to 'text'"):
        store.put("a", some(2), owner="image")
    store.share("a", with_=["image"])
    assert store.put("a", some(2), owner="text") is tensor
    assert np.array_equal(tensor.host(), some(2))
    with pytest.raises(NameTaken, match="'image'"):
        store.put("a", some(3, 2, 2), owner="text")
    store.release("a", holder="image")
    other = store.put("a", some(3, 2, 2), owner="text")
    assert other is not tensor
    assert other.shape == (2, 2)
    with pytest.raises(UnknownTensor):
        tensor.compute()


def test_a_reference_is_released_exactly_once(make_store: MakeStore) -> None:
    store = make_store()
    store.put("a", some(1), owner="text")
    tensor = store.share("a", with_=["search", "duplicates", "search"])
    assert tensor.holders == ("duplicates", "search", "text")
    store.release("a", holder="text")
    with pytest.raises(NotHeld, match="'text' does not hold 'a'"):
        store.release("a", holder="text")
    with pytest.raises(NotHeld):
        store.release("a", holder="stranger")
    store.release("a", holder="search")
    assert "a" in store
    store.release("a", holder="duplicates")
    assert "a" not in store
    assert store.statistics().device_bytes == 0
    with pytest.raises(UnknownTensor):
        store.release("a", holder="duplicates")
    with pytest.raises(UnknownTensor):
        tensor + 1
    with pytest.raises(UnknownTensor):
        tensor += 1
    with pytest.raises(InvalidOption, match=r'with_=\["search"\]'):
        store.share("a", with_="search")


def test_an_object_is_a_holder_until_it_is_gone(make_store: MakeStore) -> None:
    class Model:
        pass

    store = make_store()
    model = Model()
    store.put("a", some(1), owner="text")
    store.share("a", with_=[model])
    store.release("a")
    assert "a" in store
    del model
    gc.collect()
    assert "a" not in store


def test_a_lease_keeps_the_tensor_after_the_last_reference(make_store: MakeStore) -> None:
    store = make_store()
    store.put("a", some(1), owner="text")
    with store.lease("a", holder="search") as tensor:
        store.release("a")
        assert tensor.holders == ("search",)
        assert np.array_equal(np.asarray(tensor + 0), some(1))
        assert store.statistics().leases == 1
    assert "a" not in store


def test_a_lease_is_released_once_by_hand_or_when_it_is_forgotten(make_store: MakeStore) -> None:
    store = make_store()
    store.put("a", some(1))
    lease = store.lease("a", holder="search")
    second = store.lease("a", holder="search")
    lease.release()
    assert not lease.active
    with pytest.raises(NotHeld):
        lease.release()
    with pytest.raises(NotHeld):
        _ = lease.tensor
    assert store.statistics().leases == 1
    del second, lease
    gc.collect()
    assert store.statistics().leases == 0
    assert "a" in store


def test_a_lease_in_a_dead_cycle_is_released(make_store: MakeStore) -> None:
    store = make_store()
    store.put("a", some(1))
    cycle: list[object] = [store.lease("a")]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert store.statistics().leases == 0


def test_a_closed_store_says_so(make_store: MakeStore) -> None:
    with Store("shop") as store:
        tensor = store.put("a", some(1))
        lease = store.lease("a")
    store.close()
    assert store.closed
    for use in (lambda: store.get("a"), lambda: store.put("b", some(1)), lambda: tensor + 1, store.optimise):
        with pytest.raises(StoreClosed, match="the store shop is closed"):
            use()
    lease.release()
    assert "closed" in repr(store)


@pytest.mark.parametrize(
    "options",
    [{"budget": "many"}, {"budget": -1}, {"host_budget": "3 apples"}, {"mode": "fast"}, {"disk": 3.5}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        Store(**options)  # type: ignore[arg-type]
