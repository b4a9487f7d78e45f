"""The life of a call site: whole lives as sequences of events, and mutants of the machine, which these lives notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import get_args

import pytest

from anygpu.calls import lifecycle, looking
from anygpu.calls.lifecycle import NEVER, RUNS_AS_IS, TRANSITIONS, Event, Life, State, step
from anygpu.calls.looking import Facts, decide

Machine = Mapping[State, Mapping[Event, State]]

STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[Event, ...] = get_args(Event)

#: What leads to a state, from a new site.
WAYS: dict[State, tuple[Event, ...]] = {
    "new": (),
    "loading": ("load",),
    "due": ("ready",),
    "tracing": ("ready", "begun"),
    "compiling": ("ready", "begun", "traced"),
    "trial": ("ready", "begun", "traced", "agreed"),
    "native": ("ready", "begun", "traced", "agreed", "proved"),
    "waiting": ("ready", "postponed"),
    "planned": ("plan",),
    "numpy": ("ready", "begun", "refused"),
}

#: Lives, as events and the states that they lead to. `=` for an event that comes too late to change anything.
LIVES: dict[str, str] = {
    "a function with few calls": "new",
    "calls that are too short, for long": "new postponed new postponed new",
    "the usual one": "new load loading ready due begun tracing traced compiling agreed trial proved native",
    "everything is imported by others": "new ready due begun tracing traced compiling agreed trial proved native",
    "an earlier process has compared it": "new load loading ready due begun tracing kept trial proved native",
    "the caller waits for native code": "new prepare tracing traced compiling agreed trial proved native",
    "imported once more in a forked child": "new load loading load loading ready due",
    "asked for while it is imported": "new load loading prepare tracing traced compiling",
    "asked for before the next call": "new ready due prepare tracing kept trial",
    "asked for twice at once": "new prepare tracing prepare tracing traced compiling",
    "asked for while it is compiled": "new ready due begun tracing traced compiling prepare tracing",
    "asked for in its trial": "new prepare tracing kept trial prepare tracing",
    "asked for again": "new prepare tracing kept trial proved native prepare tracing kept trial",
    "asked for after it was refused": "new ready due begun tracing refused numpy prepare tracing",
    "asked for while it waits": "new ready due postponed waiting prepare tracing",
    "a device is all there is": "new plan planned",
    "a device, once planning is imported": "new load loading plan planned",
    "no time for a trial": "new ready due postponed waiting postponed waiting ready due",
    "no import so early": "new ready due begun tracing interrupted waiting load loading ready due",
    "the traced call raises": "new ready due begun tracing interrupted waiting ready due begun tracing",
    "it cannot be traced": "new ready due begun tracing refused numpy",
    "tracing takes too long now": "new ready due begun tracing refused for now waiting ready due",
    "forked while it is compiled": "new ready due begun tracing traced compiling interrupted waiting ready due",
    "it cannot be compiled": "new ready due begun tracing traced compiling refused numpy",
    "not comparable now": "new ready due begun tracing traced compiling refused for now waiting",
    "wrong before its first use": "new ready due begun tracing traced compiling mismatch numpy",
    "slow in the background": "new ready due begun tracing traced compiling slower numpy",
    "nearly as fast, in the background": "new ready due begun tracing traced compiling slower for now waiting",
    "slow in the background, with a GPU": "new ready due begun tracing traced compiling plan planned",
    "slow in real calls": "new ready due begun tracing kept trial slower numpy",
    "nearly as fast in real calls": "new ready due begun tracing kept trial slower for now waiting",
    "slow in real calls, with a GPU": "new ready due begun tracing kept trial plan planned",
    "another program in its trial": "new ready due begun tracing kept trial changed waiting ready due",
    "values it cannot use, in its trial": "new ready due begun tracing kept trial refused numpy",
    "values it cannot use now, in its trial": "new ready due begun tracing kept trial refused for now waiting",
    "wrong in its trial": "new ready due begun tracing kept trial mismatch numpy",
    "slower since then": "new prepare tracing kept trial proved native slower numpy",
    "slower for now": "new prepare tracing kept trial proved native slower for now waiting",
    "a GPU is faster": "new prepare tracing kept trial proved native plan planned",
    "another program": "new prepare tracing kept trial proved native changed waiting ready due",
    "values it cannot use": "new prepare tracing kept trial proved native refused numpy",
    "values it cannot use now": "new prepare tracing kept trial proved native refused for now waiting",
    "a sample is wrong": "new prepare tracing kept trial proved native mismatch numpy",
    "a sample is wrong, on a thread that is late": "new prepare tracing kept trial changed waiting mismatch numpy",
    "two threads find a change": "new prepare tracing kept trial changed waiting changed =",
    "two calls begin at once": "new ready due begun tracing begun =",
    "compared after it was asked for again": "new ready due begun tracing traced compiling prepare tracing agreed =",
    "faster, found by a call that is late": "new prepare tracing kept trial slower numpy proved =",
    "nothing brings planned calls back": "new plan planned prepare = ready = mismatch = agreed =",
    "refused for good": "new ready due begun tracing refused numpy ready = load = agreed = changed = begun =",
}


def _parsed(text: str) -> tuple[list[Event], list[State]]:
    """Return the events and the states of a life; names may have several words."""
    words, names = text.split(), set(EVENTS) | set(STATES) | {"="}
    found: list[str] = []
    while words:
        count = next(size for size in (3, 2, 1) if " ".join(words[:size]) in names)
        found.append(" ".join(words[:count]))
        del words[:count]
    states: list[State] = []
    for name in found[::2]:
        states.append(states[-1] if name == "=" else name)  # type: ignore[arg-type]
    return found[1::2], states  # type: ignore[return-value]


def _lived(machine: Machine, events: list[Event]) -> list[State]:
    """Return the states that events lead a new site through."""
    state: State = "new"
    states = [state]
    for event in events:
        state = machine[state].get(event, state)
        states.append(state)
    return states


def _is_right(machine: Machine) -> bool:
    """Whether all lives go as they should in a machine."""
    lives = (_parsed(text) for text in LIVES.values())
    return all(_lived(machine, events) == states for events, states in lives)


@pytest.mark.parametrize("name", LIVES)
def test_a_life(name: str) -> None:
    events, states = _parsed(LIVES[name])
    life = Life()
    assert life.state == states[0]
    for event, expected in zip(events, states[1:], strict=True):
        life = step(life, event)
        assert life.state == expected, event


def _mutants() -> Iterator[tuple[str, Machine]]:
    """Machines with one transition dropped, two of a state exchanged, or one that leads elsewhere."""
    for state, row in TRANSITIONS.items():
        for event in row:
            mutant = deepcopy(TRANSITIONS)
            del mutant[state][event]
            if row[event] != state:  # what leads back is as good as nothing, but for its reason and its time
                yield f"{state}: {event} is dropped", mutant
            for other in row:
                if other > event and row[other] != row[event]:
                    mutant = deepcopy(TRANSITIONS)
                    mutant[state][event], mutant[state][other] = row[other], row[event]
                    yield f"{state}: {event} and {other} are exchanged", mutant
            for elsewhere in STATES:
                if elsewhere != row[event]:
                    mutant = deepcopy(TRANSITIONS)
                    mutant[state][event] = elsewhere
                    yield f"{state}: {event} leads to {elsewhere}", mutant
        if state in ("planned", "numpy"):  # which are final but for one event
            for event in EVENTS:
                if event not in row and event in ("ready", "agreed", "mismatch" if state == "planned" else "changed"):
                    mutant = deepcopy(TRANSITIONS)
                    mutant[state][event] = "native"
                    yield f"{state}: {event} is added", mutant


def test_every_mutant_of_the_machine_is_noticed() -> None:
    assert _is_right(TRANSITIONS)
    mutants = dict(_mutants())
    assert len(mutants) > 400
    assert [name for name, mutant in mutants.items() if _is_right(mutant)] == []


def test_what_leads_back_keeps_its_reason_and_time() -> None:
    """Transitions to the same state are noticed by what they set."""
    for state, row in TRANSITIONS.items():
        for event, after in row.items():
            if after == state:
                life = step(_brought_to(state), event, reason="another", look_at=7.0)
                assert (life.state, life.reason, life.look_at) == (state, "another", 7.0)


def _brought_to(state: State) -> Life:
    life = Life(reason="it is new", look_at=0.05)
    for event in WAYS[state]:
        life = step(life, event)
    assert life.state == state
    return life


def test_every_state_can_be_reached_and_every_event_leads_somewhere() -> None:
    assert set(TRANSITIONS) == set(STATES) == set(WAYS)
    assert {event for row in TRANSITIONS.values() for event in row} == set(EVENTS)
    for state in STATES:
        _brought_to(state)


@pytest.mark.parametrize("state", STATES)
def test_an_event_that_comes_too_late_changes_nothing(state: State) -> None:
    life = _brought_to(state)
    for event in EVENTS:
        if event not in TRANSITIONS[state]:
            assert step(life, event, reason="too late", look_at=0.0) is life


def test_a_state_runs_something_else_only_after_it_was_compared_or_begun() -> None:
    """Native code runs after an agreement alone, of this process or an earlier one."""
    for state, row in TRANSITIONS.items():
        for event, after in row.items():
            if after == "trial":
                assert event in ("agreed", "kept")
            if after == "native":
                assert (state, event) == ("trial", "proved")
    assert set(STATES) - RUNS_AS_IS == {"due", "trial", "native", "planned"}


def test_tries_and_changes_are_counted() -> None:
    life = Life()
    events, _ = _parsed("new ready due begun tracing kept trial changed waiting ready due begun tracing kept trial")
    for event in events:
        life = step(life, event)
    assert (life.tries, life.changes) == (2, 1)
    assert step(life, "prepare").tries == 3


def test_a_reason_stays_until_there_is_another() -> None:
    life = step(step(Life(reason="it is new"), "ready"), "begun")
    assert life.reason == "it is new"
    assert step(life, "refused", reason="it prints").reason == "it prints"


# -- what comes next

USUAL = Facts(calls=10, seconds=0.06, least=5e-3, known_faster=False, is_loaded=True, is_loading=False, can_load=True)
NEW = Life(look_at=0.05)


def test_calls_that_have_taken_long_enough_are_tried() -> None:
    assert decide(NEW, USUAL) == ("ready", NEVER)


def test_short_calls_are_left_alone_four_times_as_long() -> None:
    short = USUAL._replace(calls=20_000, least=2e-6)
    assert decide(NEW, short) == ("postponed", 4 * 0.06)
    assert decide(NEW, short._replace(known_faster=True)) == ("ready", NEVER)
    assert decide(_brought_to("loading"), short) is None


def test_what_is_needed_is_imported_where_that_takes_little() -> None:
    assert decide(NEW, USUAL._replace(is_loaded=False)) == ("load", 0.0)
    busy = USUAL._replace(is_loaded=False, can_load=False)
    assert decide(NEW, busy) == ("postponed", 1.5 * 0.06)
    assert decide(NEW, busy._replace(seconds=looking.BEFORE_COSTLY)) == ("load", 0.0), "in any case"


def test_an_import_is_begun_once() -> None:
    beside = USUAL._replace(is_loaded=False, is_loading=True)
    assert decide(_brought_to("loading"), beside) is None
    in_a_forked_child = beside._replace(is_loading=False)
    assert decide(_brought_to("loading"), in_a_forked_child) == ("load", 1.5 * 0.06)


def test_short_calls_wait_until_all_imports_have_ended() -> None:
    beside = USUAL._replace(is_loading=True)
    assert decide(NEW, beside) is None
    assert decide(NEW, beside._replace(least=looking.SHORT)) == ("ready", NEVER)
    assert decide(NEW, beside._replace(known_faster=True)) == ("ready", NEVER)


@pytest.mark.parametrize("state", sorted(set(STATES) - {"new", "waiting", "loading"}))
def test_nothing_is_decided_in_other_states(state: State) -> None:
    assert decide(_brought_to(state), USUAL) is None


def test_a_decision_is_always_a_transition() -> None:
    for state in ("new", "waiting", "loading"):
        for loaded in (False, True):
            for can_load in (False, True):
                for calls in (1, 10**6):
                    facts = USUAL._replace(is_loaded=loaded, can_load=can_load, calls=calls)
                    decision = decide(_brought_to(state), facts)
                    assert decision is None or decision[0] in TRANSITIONS[state]


def test_the_docstring_names_all_states_and_events() -> None:
    lines = [line.strip() for line in (lifecycle.__doc__ or "").splitlines()]
    for name in (*STATES, *EVENTS):
        assert any(line.startswith(f"{name}  ") for line in lines), name
