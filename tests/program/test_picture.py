from __future__ import annotations

import random
import struct
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.program.graph import Program, Recorder
from anygpu.program.picture import MOST_NODES, Item, arrange, to_svg
from anygpu.program.primitives import Binary, Broadcast, Concatenate, Constant, Reduce, Spec, Unary
from tests.program.sampling import random_program

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def outlines(svg: str, look: str) -> int:
    return sum(look in (element.get("class") or "").split() for element in ET.fromstring(svg).iter())


def chain(length: int) -> Program:
    recorder = Recorder()
    x = last = recorder.input(Spec((8,), "float32"))
    for _ in range(length):
        last = recorder.add(Binary("add"), last, x)
    return recorder.program([last])


def test_boxes_say_the_operation_its_attributes_and_its_spec() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((4, 5), "float32"))
    total = recorder.add(Reduce("sum", (0,)), recorder.add(Unary("exp"), x), line=("/home/me/score.py", 12))
    svg = to_svg(recorder.program([total, x]), "my <score>")
    assert {"my <score>", "a", "exp", "sum", "over axis 0", "float32[5]", "t2", "return 0", "return 1"} <= set(
        texts(svg)
    )
    assert "score.py:12" in svg
    assert outlines(svg, "input") == 1
    assert outlines(svg, "result") == 2
    assert outlines(svg, "box") == 2


def test_a_scalar_and_its_repetition_are_one_box() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((4,), "float32"))
    two = recorder.add(Constant((), "float32", struct.pack("<f", 2)))
    doubled = recorder.add(Binary("multiply"), x, recorder.add(Broadcast((4,)), two))
    svg = to_svg(recorder.program([doubled]))
    assert "2.0" in texts(svg)
    assert "broadcast" not in texts(svg)
    assert "constant" not in texts(svg)
    kept = to_svg(recorder.program([doubled, two]))
    assert "broadcast" in texts(kept)


def test_it_is_well_formed_whatever_the_names_are() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((4,), "float32"))
    program = recorder.program([recorder.add(Unary("exp"), x, line=('"><script>\x00\ud800.py', 1))])
    svg = to_svg(program, 'a"<b>&\x00\udfff')
    assert "<script>" not in svg
    assert texts(svg)[0] == 'a"<b>&??'
    svg.encode()


def test_it_needs_nothing_from_elsewhere() -> None:
    svg = to_svg(chain(3)).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in svg
    assert "url(" not in svg
    assert "prefers-color-scheme:dark" in svg


def test_a_large_program_is_cut_with_a_note() -> None:
    svg = to_svg(chain(1000))
    assert f"These are the first {MOST_NODES} of 1,001 nodes; the text form has them all." in texts(svg)
    assert sum(text == "add" for text in texts(svg)) == MOST_NODES - 1
    assert not any("first" in text for text in texts(to_svg(chain(MOST_NODES - 1))))


def test_a_program_with_very_many_inputs() -> None:
    recorder = Recorder()
    inputs = [recorder.input(Spec((1,), "int8")) for _ in range(MOST_NODES + 50)]
    ET.fromstring(to_svg(recorder.program([recorder.add(Concatenate(0), *inputs)])))


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_every_program_can_be_drawn(seed: int) -> None:
    ET.fromstring(to_svg(random_program(random.Random(seed))))


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_boxes_do_not_overlap_and_lines_go_down(seed: int) -> None:
    rng = random.Random(seed)
    items: list[Item] = []
    for number in range(rng.randint(1, 40)):
        sources = tuple(rng.randrange(number) for _ in range(rng.randint(0, 3))) if number else ()
        items.append(
            Item(rng.uniform(40, 200), rng.uniform(20, 60), sources, floating=not sources and rng.random() < 0.5)
        )
    plan = arrange(items)
    boxes = [
        (p.x - i.width / 2, p.x + i.width / 2, p.y, p.y + i.height) for p, i in zip(plan.places, items, strict=True)
    ]
    for number, (left, right, top, bottom) in enumerate(boxes):
        assert left >= -1e-6
        assert right <= plan.width + 1e-6
        assert top >= -1e-6
        assert bottom <= plan.height + 1e-6
        for other in boxes[:number]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
    for number, item in enumerate(items):
        for source in item.sources:
            assert boxes[source][3] < boxes[number][2]
    for curve in (curve for curves in plan.curves for curve in curves):
        assert curve.y0 - 1e-6 <= curve.bend0 < curve.bend1 <= curve.y1 + 1e-6
    assert sum(curve.arrives for curves in plan.curves for curve in curves) == sum(len(i.sources) for i in items)


def test_parts_that_have_nothing_in_common_stay_close() -> None:
    inputs = [Item(100, 40, ()) for _ in range(12)]
    plan = arrange([*inputs, Item(100, 40, tuple(range(12))), Item(100, 40, ()), Item(100, 40, (13,))])
    assert plan.width < 14 * 160
