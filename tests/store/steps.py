"""A store beside its model: the steps, each made of one number, with everything that has to be true after it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.array.core.array import Array
from anygpu.errors import (
    AnyGPUError,
    CopyNeeded,
    DeviceLost,
    NameTaken,
    NotHeld,
    OverBudget,
    StoreClosed,
    UnknownTensor,
)
from anygpu.store import HostBytes, Lease, Store, Tensor, tensor_files
from anygpu.store.entry import label_of
from anygpu.store.shared_store import open_shared
from anygpu.workers.device_arrays.registry import registry
from tests.store.checking import Checks, Look, Wrong
from tests.store.model import Key, Known, Model, Values, same

#: Sizes of whole blocks, so that what the store counts is what the engines count. Equal ones come up often.
SPECS: tuple[tuple[tuple[int, ...], str], ...] = (
    ((8, 8), "float32"),
    ((8, 8), "float32"),
    ((64,), "float32"),
    ((16, 8), "float32"),
    ((4, 2, 8), "int32"),
    ((16, 16), "int8"),
    ((256,), "bool"),
    ((8, 4), "complex64"),
    ((8, 16), "float16"),
)
#: Of these the store and the engines count differently: a block is never smaller than 256 bytes.
ODD: tuple[tuple[tuple[int, ...], str], ...] = (((), "float32"), ((0, 4), "int32"), ((3, 5), "uint8"), ((1,), "int16"))
CONTENTS = 5
KEYS: tuple[Key, ...] = (("", "a"), ("", "b"), ("", "c/d"), ("", ""), ("m", "a"), ("m", "b"))
PEOPLE = ("main", "text", "image")
MODES = ("speed", "memory", "balanced")


class Person:
    """A holder that dies."""


class Machine:
    """One store and its model."""

    def __init__(self, device: str, setting: int, *, deadly: bool = False) -> None:
        rng = random.Random(setting)
        self.device = device
        self.folder = Path(tempfile.mkdtemp(prefix="anygpu-machine-"))
        disk: Any = rng.choice((None, True, self.folder / "disk"))
        mode: Any = rng.choice(MODES)
        self.mode: str = mode
        self.store = Store(
            device=device,
            budget=rng.choice((None, 1024, 1536, 1536, 2560)),
            host_budget=rng.choice((None, None, 1024, 0 if disk else None)),
            disk=disk,
            mode=mode,
            hash=rng.random() < 0.85,
        )
        self.model = Model()
        self.specs = (*SPECS, *ODD) if rng.random() < 0.2 else SPECS
        if device.startswith("webgpu"):
            self.specs = tuple(each for each in self.specs if each[1] not in ("complex64", "float16"))
        #: How often the worker, or another process, is killed: that takes long.
        self.deadly = deadly
        self.looks: list[Look] = []
        self.leases: list[tuple[Known, str, Lease]] = []
        self.people: list[Person] = []
        self.dead: list[Tensor] = []
        exact = len(self.specs) <= len(SPECS)
        self.checks = Checks(self.store, self.model, exact=exact, may_lack=self.may_lack)
        self.saves = 0

    # -- one step

    def step(self, number: int) -> None:
        rng = random.Random(number)
        rule = rng.choices(RULES, WEIGHTS)[0]
        try:
            rule(self, rng)
            if self.deadly and rng.random() < 0.03:
                self.kill(rng)
            self.checks(self.looks, thorough=rng.random() < 0.2)
        except Wrong as error:
            raise Wrong(f"{rule.__name__}: {error}") from error
        except Exception as error:
            raise Wrong(f"{rule.__name__} raised {type(error).__name__}: {error}") from error

    def attempt(
        self, act: Callable[[], Any], wanted: type[AnyGPUError] | None = None, *, need: int = 0, on_host: int = 0
    ) -> Any:
        """What it returns; `_FAILED` if it raised what it had to, or had no room and said so with reason."""
        try:
            found = act()
        except OverBudget as error:
            if not self.may_lack(need, on_host):
                raise Wrong(f"there was room, but: {error}") from error
            return _FAILED
        except AnyGPUError as error:
            if wanted is None or type(error) is not wanted:
                raise Wrong(f"{type(error).__name__} instead of {wanted and wanted.__name__}: {error}") from error
            return _FAILED
        if wanted is not None:
            raise Wrong(f"{wanted.__name__} was not raised")
        return found

    def may_lack(self, need: int, on_host: int = 0) -> bool:
        """Whether so many bytes may be refused: what has to stay, and what is used now, take the rest."""
        store = self.store
        if on_host > (on_host if store._tiers.budgets.host is None else store._tiers.budgets.host):
            return True
        if store.budget is None:
            return store._tiers.budgets.host is not None
        if store._tiers.budgets.host is not None and not store._tiers.budgets.disk:
            return True
        held = {id(look.base): look.base for look in self.looks if look.base is not None}
        held.update({id(each): each for look in self.looks for each in look.others})
        held.update({id(each): each for each in self.model.tensors.values() if each.pins or each.leases})
        # A view that has to look again holds what it saw last, which other tensors may have too.
        stale = [look for look in self.looks if look.array._view is not None and look.array._view.stale]
        old = sum(self.bytes_of(look.base) for look in stale)
        return need + old + sum(each.values.nbytes for each in held.values()) > store.budget

    # -- names

    def key(self, rng: random.Random) -> Key:
        return rng.choice(KEYS)

    def known(self, rng: random.Random) -> Known | None:
        """Mostly one that there is."""
        there = [self.model.tensors[key] for key in sorted(self.model.tensors)]
        return rng.choice(there) if there else None

    def put_under(self, key: Key, source: Any, values: Values, owner: str, **options: Any) -> Any:
        allowed = self.model.check_owner(key, values, owner)
        old = self.model.tensors.get(key)
        tensor = self.tensor(old) if old is not None else None
        # What is put is in use while it is compared with others.
        need = 2 * values.nbytes + (old.values.nbytes if old is not None else 0)
        found = self.attempt(
            lambda: self.store.put(key[1], source, owner=owner, namespace=key[0], **options),
            None if allowed else NameTaken,
            need=need,
        )
        if found is not _FAILED:
            self.entered(key, values, owner, tensor, found)
        return found

    def entered(self, key: Key, values: Values, owner: str, old: Tensor | None, new: Tensor) -> None:
        before = self.model.tensors.get(key)
        known = self.model.put(key, values, owner)
        if old is not None and before is not known:
            self.dead.append(old)
        if (before is known) != (old is new):
            raise Wrong("the same tensor was to go on, or another one was to take its place")

    def put(self, rng: random.Random) -> None:
        values = some(rng, self.specs)
        key, owner = self.key(rng), rng.choice(PEOPLE[:2])
        form = rng.randrange(6)
        source: Any = values
        if form == 0:
            source = values.copy(order="F")
        elif form == 1:
            source = values.astype(values.dtype.newbyteorder(">"))
        elif form >= 4:
            source = ag.asarray(values, device=self.device if form == 4 else "numpy")
            if form == 4 and values.ndim and rng.random() < 0.3:
                source, values = source[1:], values[1:]
                if not self.is_whole(values):
                    return
        keep = isinstance(source, Array) and rng.random() < 0.3
        found = self.put_under(key, source, values, owner, hash=rng.choice((None, None, True, False)))
        if form in (0, 2):
            values[...] = 0  # the caller's own memory, which the store must not share
        if keep and found is not _FAILED:
            self.looks.append(Look(source, values.copy(), self.model.tensors[key], exact=False))
        del source, found

    def put_tensor(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        tensor = self.tensor(known)
        values = known.values.copy()
        source: Any = tensor
        look_put: Look | None = None
        kind = rng.randrange(4)
        if kind == 1:
            source = self.attempt(lambda: tensor * 1, need=known.values.nbytes)
            values = np.asarray(values * 1)
        elif kind == 2 and self.looks:
            look = rng.choice(self.looks)
            if look.is_lost or not self.is_whole(look.wanted):
                return
            source, values = look.array, look.wanted.copy()
            look.exact = look.exact and not (look.array._view is not None and look.array._view.stale)
            look_put = look
        elif kind == 3 and values.ndim == 2:
            source = self.attempt(lambda: tensor.T, need=known.values.nbytes)
            values = values.T.copy()
        if source is _FAILED:
            return
        key = self.key(rng)
        if self.put_under(key, source, values, rng.choice(PEOPLE[:2])) is not _FAILED and look_put is not None:
            look_put.others.append(self.model.tensors[key])

    def is_whole(self, values: Values) -> bool:
        """Whether it takes whole blocks, or these are not counted."""
        return not self.checks.exact or (values.nbytes >= 256 and values.nbytes % 256 == 0)

    def tensor(self, known: Known) -> Tensor:
        return self.store.get(known.key[1], namespace=known.key[0])

    def get(self, rng: random.Random) -> None:
        key = self.key(rng)
        there = key in self.model.tensors
        self.attempt(lambda: self.store.get(key[1], namespace=key[0]), None if there else UnknownTensor)
        for name in ("release", "lease", "pin", "unpin"):
            if not there:
                self.attempt(partial(getattr(self.store, name), key[1], namespace=key[0]), UnknownTensor)
        if self.dead:
            gone = rng.choice(self.dead)
            self.attempt(lambda: np.asarray(gone), UnknownTensor)
            self.attempt(lambda: gone.__setitem__(..., 1), UnknownTensor)

    # -- holders

    def share(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        holders: list[Any] = rng.sample(PEOPLE, rng.randrange(1, 3))
        if rng.random() < 0.4:
            person = Person() if rng.random() < 0.6 or not self.people else rng.choice(self.people)
            if person not in self.people:
                self.people.append(person)
            holders.append(person)
        self.store.share(known.key[1], holders, namespace=known.key[0])
        known.holders.update(map(label_of, holders))

    def release(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        holder: Any = rng.choice((None, *PEOPLE, *self.people[:1]))
        label = known.owner if holder is None else label_of(holder)
        tensor = self.tensor(known)
        held = label in known.holders
        self.attempt(
            lambda: self.store.release(known.key[1], holder=holder, namespace=known.key[0]), None if held else NotHeld
        )
        if held:
            self.model.release(known, label)
            self.bury(known, tensor)

    def bury(self, known: Known, tensor: Tensor) -> None:
        if known.gone:
            self.dead.append(tensor)
            del self.dead[:-2]

    def die(self, rng: random.Random) -> None:
        """A holder."""
        if not self.people:
            return
        person = self.people.pop(rng.randrange(len(self.people)))
        label = label_of(person)
        del person
        for known in list(self.model.tensors.values()):
            if label in known.holders:
                self.model.release(known, label)

    def lease(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        holder: Any = rng.choice((*PEOPLE, *self.people[:1]))
        found = self.attempt(
            lambda: self.store.lease(known.key[1], holder=holder, namespace=known.key[0]), need=known.values.nbytes
        )
        if found is not _FAILED:
            known.leases[label_of(holder)] += 1
            self.leases.append((known, label_of(holder), found))

    def end_lease(self, rng: random.Random) -> None:
        if not self.leases:
            return
        known, label, lease = self.leases.pop(rng.randrange(len(self.leases)))
        tensor = lease.tensor
        if rng.random() < 0.6:
            lease.release()
            for again in (Lease.release, Lease.tensor.__get__):
                self.attempt(partial(again, lease), NotHeld)
        del lease
        self.model.end_lease(known, label)
        self.bury(known, tensor)

    def pin(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        if rng.random() < 0.4:
            found = self.attempt(lambda: self.store.pin(known.key[1], namespace=known.key[0]), need=known.values.nbytes)
            known.pins += found is not _FAILED
        else:
            self.attempt(
                lambda: self.store.unpin(known.key[1], namespace=known.key[0]), None if known.pins else NotHeld
            )
            known.pins -= known.pins > 0

    # -- values

    def view(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None or len(self.looks) > 4:
            return
        tensor = self.tensor(known)
        index, shape = a_way(rng, known.values.shape)
        looked_at = (
            known.values[index if isinstance(index, tuple) else (index, ...)] if index is not None else known.values
        )
        wanted = looked_at if shape is None else looked_at.reshape(shape)
        kind = rng.randrange(6)
        need = 2 * known.values.nbytes
        if kind == 5 and self.looks:
            self.view_of_view(rng)
            return
        if kind == 4:
            array = self.attempt(lambda: tensor + tensor, need=need)
            wanted = np.asarray(known.values + known.values)
        elif kind == 3:
            array = self.attempt(lambda: tensor[index] if index is not None else tensor[...], need=need)
            # A single element is a number of its own, as it is in NumPy.
            wanted = looked_at if looked_at.ndim or index is None else looked_at.copy()
        else:
            never = kind == 0
            try:
                array = self.attempt(
                    lambda: tensor.view(index, shape=shape, copy="never" if never else "allow"), need=need
                )
            except Wrong as error:
                if never and isinstance(error.__cause__, CopyNeeded):
                    return
                raise
        if array is _FAILED:
            return
        exact = kind < 3 and self.checks.is_alias(array)
        self.looks.append(Look(array, wanted, known, exact=exact))

    def view_of_view(self, rng: random.Random) -> None:
        look = rng.choice(self.looks)
        if look.is_lost or look.wanted.ndim == 0:
            return
        array = self.attempt(lambda: look.array[1:], need=3 * look.wanted.nbytes + self.bytes_of(look.base))
        if array is not _FAILED:
            self.looks.append(Look(array, look.wanted[1:], look.base, exact=False))

    def bytes_of(self, known: Known | None) -> int:
        return known.values.nbytes if known is not None else 0

    def drop_view(self, rng: random.Random) -> None:
        if self.looks:
            self.looks.pop(rng.randrange(len(self.looks)))
        if rng.random() < 0.2:
            self.looks.clear()

    def look(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        tensor = self.tensor(known)
        way = rng.randrange(4)
        if way == 0 and known.values.dtype != np.bool_:
            found = self.attempt(lambda: np.asarray(tensor + tensor), need=known.values.nbytes)
            wanted = np.asarray(known.values + known.values)
        elif way == 1:
            found = self.attempt(lambda: np.asarray(tensor[...]), need=known.values.nbytes)
            wanted = known.values
        elif way == 2:
            found, wanted = tensor.host(), known.values
        else:
            found, wanted = np.asarray(tensor), known.values
        if found is not _FAILED and not same(found, wanted):
            raise Wrong(f"{known} reads {found.ravel()[:4]} instead of {wanted.ravel()[:4]}")

    def write(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        tensor = self.tensor(known)
        index = slice(0, rng.randrange(1, 9)) if known.values.ndim and rng.random() < 0.5 else ...
        new = number_for(rng, known.values.dtype)
        # What it was is in use until what it becomes is there.
        need = 2 * known.values.nbytes
        if rng.random() < 0.5:
            done = self.attempt(lambda: tensor.__setitem__(index, new), need=need)
            if done is not _FAILED:
                known.values[index] = new
        elif rng.random() < 0.5:
            values = some(rng, ((known.values.shape, known.values.dtype.name),))
            done = self.attempt(lambda: tensor.__setitem__(..., values), need=need)
            if done is not _FAILED:
                known.values[...] = values
        elif known.values.dtype != np.bool_:
            done = self.attempt(lambda: tensor.__iadd__(new), need=need)
            if done is not _FAILED:
                known.values += new

    def write_view(self, rng: random.Random) -> None:
        if not self.looks:
            return
        look = rng.choice(self.looks)
        if look.is_lost or look.wanted.dtype == np.bool_:
            return
        new = number_for(rng, look.wanted.dtype)
        whole = rng.random() < 0.5
        lost = look.array._view is not None and look.base is not None and look.base.gone
        need = 2 * self.bytes_of(look.base)
        act = (lambda: look.array.__iadd__(new)) if whole else (lambda: look.array.__setitem__(..., new))
        done = self.attempt(act, UnknownTensor if lost else None, need=need)
        if done is not _FAILED:
            if whole:
                look.wanted += new
            else:
                look.wanted[...] = new
            look.exact = False

    # -- tiers

    def synchronise(self, rng: random.Random) -> None:
        known = self.known(rng)
        if known is None:
            return
        where: Any = rng.choice(("host", "device"))
        done = self.attempt(
            lambda: self.store.synchronise(known.key[1], where, namespace=known.key[0]),
            need=known.values.nbytes,
            on_host=known.values.nbytes if where == "host" else 0,
        )
        if done is not _FAILED and where == "device" and self.tensor(known).tier != "device":
            raise Wrong(f"{known} was to be on the device")
        if done is not _FAILED and where == "host" and self.tensor(known).dirty:
            raise Wrong(f"{known} was to be on the host")

    def prefetch(self, rng: random.Random) -> None:
        keys = [key for key in sorted(self.model.tensors) if key[0] == ""]
        rng.shuffle(keys)
        self.store.prefetch([key[1] for key in keys], wait=rng.random() < 0.5)

    def optimise(self, rng: random.Random) -> None:
        self.checks.settle()
        before = self.store.statistics()
        report = self.store.optimise()
        after = self.store.statistics()
        for tier, was, now in (
            ("device", before.device_bytes, after.device_bytes),
            ("host", before.host_bytes, after.host_bytes),
            ("disk", before.disk_bytes, after.disk_bytes),
        ):
            told = (report.before[tier], report.after[tier])  # type: ignore[index]
            change = report.gained[tier] - report.freed[tier]  # type: ignore[index]
            if told != (was, now) or was + change != now:
                raise Wrong(f"the report is of {told} and a change of {change}, but {tier} went from {was} to {now}")

    # -- files and other processes

    def save_and_open(self, rng: random.Random) -> None:
        keys = sorted(self.model.tensors)
        if not keys:
            return
        self.saves += 1
        path = self.folder / f"{self.saves}.safetensors"
        tensors = {f"{key[0]}|{key[1]}": self.tensor(self.model.tensors[key]) for key in keys}
        keeps = {name: each for name, each in tensors.items() if each.dtype != np.complex64}
        done = self.attempt(lambda: tensor_files.save(path, keeps), need=512)
        if done is _FAILED or not keeps:
            return
        file = tensor_files.open_file(path)
        for name in keeps:
            namespace, _, own = name.partition("|")
            if not same(file.values(name), self.model.tensors[namespace, own].values):
                raise Wrong(f"{name!r} was saved as something else")
        name = rng.choice(sorted(keeps))
        values = file.values(name)
        self.put_bytes(rng, HostBytes(values, "file", file.close), values)

    def save_and_open_again(self, rng: random.Random) -> None:
        """By the store itself, from one namespace into another one."""
        source, target = rng.choice((("", "m"), ("m", "")))
        names = [
            key[1] for key, each in self.model.tensors.items() if key[0] == source and each.values.dtype.kind != "c"
        ]
        if not names:
            return
        self.saves += 1
        path = self.folder / f"{self.saves}.safetensors"
        if self.attempt(lambda: self.store.save(path, names, namespace=source), need=512) is _FAILED:
            return
        key, owner = (target, rng.choice(sorted(names))), rng.choice(PEOPLE[:2])
        wanted = self.model.tensors[source, key[1]].values.copy()
        old = self.tensor(self.model.tensors[key]) if key in self.model.tensors else None
        found = self.attempt(
            lambda: self.store.open(path, [key[1]], owner=owner, namespace=target),
            None if self.model.check_owner(key, wanted, owner) else NameTaken,
            need=wanted.nbytes,
        )
        if found is not _FAILED:
            self.entered(key, wanted, owner, old, found[key[1]])

    def put_bytes(self, rng: random.Random, source: HostBytes, values: Values) -> None:
        key, owner = self.key(rng), rng.choice(PEOPLE[:2])
        wanted = values.copy()
        # Half of the time a hash is told, and it is not always the right one.
        told = rng.choice((None, None, tensor_files.content_hash(values), tensor_files.content_hash(values + values)))
        old = self.store.get(key[1], namespace=key[0]) if key in self.model.tensors else None
        found = self.attempt(
            lambda: self.store._put_host(key[1], source, owner=owner, namespace=key[0], claimed_hash=told),
            None if self.model.check_owner(key, wanted, owner) else NameTaken,
            need=wanted.nbytes,
            on_host=wanted.nbytes if source.kind == "memory" else 0,
        )
        if found is not _FAILED:
            self.entered(key, wanted, owner, old, found)

    def put_memory(self, rng: random.Random) -> None:
        values = some(rng, self.specs)
        self.put_bytes(rng, HostBytes(values), values)

    # -- processes that die

    def kill(self, rng: random.Random) -> None:
        if self.device.partition(":")[0] in ("opencl", "webgpu"):
            self.kill_worker()
        else:
            self.kill_another(rng)

    def kill_worker(self) -> None:
        self.looks = [look for look in self.looks if look.base is not None and not look.base.gone and look.exact]
        if self.mode == "memory" and not self.all_are_on_the_host():
            return  # there is one copy of each tensor, and that would go with the device
        self.checks.settle()
        registry.kill(self.store.device)
        with contextlib.suppress(DeviceLost):
            registry.worker(self.store.device).memory()  # the first who asks finds out
        self.checks.forget_engine()
        for known in self.model.tensors.values():
            if known.leases or known.pins:
                self.store.synchronise(known.key[1], "device", namespace=known.key[0])

    def all_are_on_the_host(self) -> bool:
        everything = sum(each.values.nbytes for each in self.model.tensors.values())
        for key in self.model.tensors:
            self.attempt(partial(self.store.synchronise, key[1], "host", namespace=key[0]), on_host=everything)
        return not any(self.tensor(known).dirty for known in self.model.tensors.values())

    def kill_another(self, rng: random.Random) -> None:
        """A process that made a tensor, which the store has from it."""
        values = some(rng, self.specs[:1])
        name = f"machine-{os.getpid()}-{self.saves}"
        script = (
            "import sys, numpy as np\nfrom pathlib import Path\nfrom anygpu.store.shared_store import open_shared\n"
            f"shared = open_shared({name!r}, within=Path({str(self.folder)!r}))\n"
            f"values = np.frombuffer(bytes.fromhex({values.tobytes().hex()!r}), np.float32).reshape(8, 8)\n"
            "shared.publish(('x',), values, owner='other')\nprint(flush=True)\nsys.stdin.read()\n"
        )
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            try:
                if other.stdout is None or not other.stdout.readline():
                    raise Wrong("the other process did not start")
                shared = open_shared(name, within=self.folder)
                found = shared.find(("x",))
                if found is None:
                    raise Wrong("what the other process has put is not there")
                self.put_bytes(rng, HostBytes(found.values, "shared", shared.close), found.values)
            finally:
                other.send_signal(signal.SIGKILL)

    # -- the end

    def close(self) -> None:
        """With everything that has to be gone then."""
        try:
            self.checks(self.looks, thorough=True)
            if len(self.looks) % 2:
                self.looks.clear()  # before, so that the rest is counted exactly
                self.checks([], thorough=True)
            tensors = [self.tensor(known) for known in self.model.tensors.values()]
            self.store.close()
            self.store.close()
            self.model.close()
            self.use_after_close(tensors)
            for everything in (self.looks, self.leases, self.people, self.dead, tensors):
                everything.clear()
            self.checks.nothing_is_left(self.folder / "disk")
        finally:
            self.discard()

    def use_after_close(self, tensors: list[Tensor]) -> None:
        for look in self.looks:
            self.read_after_close(look)
        self.attempt(lambda: self.store.get("a"), StoreClosed)
        for tensor in tensors:
            self.attempt(partial(np.asarray, tensor), StoreClosed)
        for _, _, lease in self.leases:
            lease.release()

    def read_after_close(self, look: Look) -> None:
        try:
            found = np.asarray(look.array)
        except StoreClosed:
            return  # it would have to look again
        if not same(found, look.wanted):
            raise Wrong(f"after the store was closed, a view reads {found.ravel()[:4]}")

    def discard(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Failed:
    """It raised what it had to."""


_FAILED = _Failed()

Rule = Callable[[Machine, random.Random], None]
_TABLE: dict[Rule, int] = {
    Machine.put: 10,
    Machine.put_tensor: 5,
    Machine.put_memory: 1,
    Machine.get: 1,
    Machine.share: 4,
    Machine.release: 6,
    Machine.die: 2,
    Machine.lease: 4,
    Machine.end_lease: 4,
    Machine.pin: 3,
    Machine.view: 6,
    Machine.drop_view: 4,
    Machine.look: 6,
    Machine.write: 6,
    Machine.write_view: 4,
    Machine.synchronise: 3,
    Machine.prefetch: 2,
    Machine.optimise: 3,
    Machine.save_and_open: 1,
    Machine.save_and_open_again: 1,
}
RULES, WEIGHTS = list(_TABLE), list(_TABLE.values())


def some(rng: random.Random, specs: Sequence[tuple[tuple[int, ...], str]]) -> Values:
    """Whole numbers, few enough of which are different."""
    shape, dtype = rng.choice(specs)
    numbers = np.random.default_rng(rng.randrange(CONTENTS)).integers(-5, 6, shape)
    return numbers.astype(dtype)


def number_for(rng: random.Random, dtype: np.dtype[Any]) -> Any:
    return dtype.type(rng.randrange(2 if dtype == np.bool_ else 4))


def a_way(rng: random.Random, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """An index and a shape; `None` for none."""
    kind = rng.randrange(7)
    if not shape or kind == 0:
        return None, None
    rows = shape[0]
    if kind == 1:
        return None, -1
    if kind == 2:
        return slice(rows // 4, rows // 2), None
    if kind == 3:
        return slice(None, None, rng.choice((2, -1))), None
    if kind == 4 and len(shape) > 1:
        return (slice(None), slice(0, shape[1] // 2)), rng.choice((None, -1))
    if kind == 5 and rows:
        return rng.randrange(rows), None
    return slice(rows // 2, None), -1
