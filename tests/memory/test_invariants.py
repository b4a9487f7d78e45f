"""Any sequence of calls, on several compositions: what must be true at every moment."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anygpu.engines.memory import Block, Fenced, Limit, Pool, Resource, Stats, Timeline, lazy, pooled, reclaim
from anygpu.errors import AllocationError
from anygpu.testing import FakeMemory, ManualClock

BUDGET = 40_000
CAPACITY = 30_000
KEEP = 12_000
OWNERS = ("model", "work", None)


class AnyUse(RuleBasedStateMachine):
    """A model of what is out, beside the resource; subclasses say which."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.timeline = Timeline(lambda: None)
        self.memory = FakeMemory(capacity=CAPACITY)
        self.out: dict[Block, tuple[int, str | None]] = {}
        self.peak = 0
        self.resource = self.composed()

    def composed(self) -> Resource:
        raise NotImplementedError

    @rule(
        nbytes=st.one_of(st.integers(0, 9000), st.sampled_from([256, 257, 1024, 1025])), owner=st.sampled_from(OWNERS)
    )
    def allocate(self, nbytes: int, owner: str | None) -> None:
        try:
            block = self.resource.allocate(nbytes, owner=owner)
        except AllocationError:
            return
        assert block not in self.out, "given out twice"
        assert block.nbytes >= nbytes
        self.out[block] = (block.nbytes, owner)
        self.peak = max(self.peak, sum(size for size, _ in self.out.values()))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(list(self.out)))
        del self.out[block]
        self.resource.release(block)

    @rule(seconds=st.floats(0, 8))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def submit(self) -> None:
        self.timeline.submit()

    @rule()
    def finish(self) -> None:
        self.timeline.finish()

    @rule(times=st.integers(1, 3))
    def fail(self, times: int) -> None:
        self.memory.fail(times)

    @rule()
    def heal(self) -> None:
        self.memory.heal()

    @rule()
    def reclaim(self) -> None:
        reclaim(self.resource)
        assert set(self.memory.live) == set(self.out), "nothing is held back after this"

    @invariant()
    def what_is_out_is_there(self) -> None:
        assert all(block in self.memory.live for block in self.out)

    @invariant()
    def caps_are_kept(self) -> None:
        layer: Resource | None = self.resource
        while layer is not None:
            if isinstance(layer, Limit):
                assert layer.used <= layer.budget
            if isinstance(layer, Pool):
                snapshot = layer.snapshot()
                assert snapshot.idle_bytes <= KEEP
                assert snapshot.idle_blocks >= 0
            layer = getattr(layer, "upstream", None)

    @invariant()
    def figures_agree(self) -> None:
        if isinstance(self.resource, Stats):
            snapshot = self.resource.snapshot()
            assert snapshot.blocks == len(self.out)
            assert snapshot.bytes == sum(size for size, _ in self.out.values())
            assert snapshot.peak_bytes == self.peak
            for owner in ("model", "work"):
                held = snapshot.by_owner.get(owner)
                assert (held.blocks if held else 0) == sum(1 for _, name in self.out.values() if name == owner)

    def teardown(self) -> None:
        for block in self.out:
            self.resource.release(block)
        reclaim(self.resource)
        assert not self.memory.live, "everything comes back"


class PooledUse(AnyUse):
    def composed(self) -> Resource:
        return pooled(self.memory, device="fake", budget=BUDGET, keep_bytes=KEEP, idle_seconds=10.0, clock=self.clock)


class LazyUse(AnyUse):
    def composed(self) -> Resource:
        return lazy(self.memory, self.timeline, device="fake", budget=BUDGET, batch_bytes=4000, hold_bytes=10_000)


class StagingUse(AnyUse):
    def composed(self) -> Resource:
        pool = Pool(self.memory, keep_bytes=KEEP, idle_seconds=10.0, clock=self.clock)
        return Fenced(Limit(pool, BUDGET, device="fake"), self.timeline, batch_blocks=2)


TestPooled = PooledUse.TestCase
TestLazy = LazyUse.TestCase
TestStaging = StagingUse.TestCase
TestPooled.settings = TestLazy.settings = TestStaging.settings = settings(max_examples=30, stateful_step_count=40)
