"""Values as HTML: results of calls, tasks, streams and training steps, arrays and programs. Nothing is waited for.

Each function `*_html` returns a whole frame for one kind of value; those that end in `_body` have none, and are put
inside of others. Devices and diagnoses come first, with their texts for IPython in a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.base.events import Listed
from anygpu.base.markup import (
    BLUE,
    GREY,
    OLIVE,
    RED,
    TEAL,
    Html,
    Share,
    bar,
    clipped,
    details,
    framed,
    join,
    legend,
    pairs,
    paragraph,
    safe,
    spoken,
    table,
    tag,
)
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.cli.notebook.receipts import receipt_body
from anygpu.hardware.device import Device, State
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.inventory import Finding, all_facts, explained, in_a_few_words, memory_of, more_words
from anygpu.program.graph import Program, to_text
from anygpu.program.picture import to_svg
from anygpu.store.tensor import Tensor

if TYPE_CHECKING:
    from anygpu.calls.offload import Result
    from anygpu.pytorch.step import StepResult
    from anygpu.runtime.future import Future
    from anygpu.runtime.runtime import Outcome
    from anygpu.runtime.streams.pipeline import Streamed


# -- devices and the diagnosis as HTML, and as text for IPython in a terminal


_MARKS: dict[State, tuple[str, str]] = {
    "verified": ("✓", TEAL),
    "usable": ("?", OLIVE),
    "present": ("✗", RED),
    "hung": ("✗", RED),
    "absent": ("–", GREY),
}
_SEVERITIES = {"problem": ("Problem", "✗"), "advice": ("Advice", "→"), "note": ("Note", "·")}


def device_html(device: Device) -> str:
    """A device: its state, what it is, memory, driver and features, and all its figures folded."""
    rows: list[tuple[str, object]] = [
        ("state", join((_mark(device.state), " ", device.state))),
        ("what", in_a_few_words(device)),
        ("kind", f"{device.kind}, {device.form}"),
        ("memory", memory_of(device)),
        ("driver", device.driver or f"unknown: {device.unknown['driver']}"),
        ("features", " ".join(device.features) or "none"),
    ]
    head = paragraph(tag("b", device.id), f" ({device.name})")
    return framed(f"Device {device.id}", head, pairs(rows, "Facts of the device"), _more(device))


def devices_html(devices: Sequence[Device]) -> str:
    """A table of devices, best first, with the figures of each folded."""
    rows = [(_mark(each.state), tag("b", each.id), in_a_few_words(each), more_words(each)) for each in devices]
    return framed(
        "Devices",
        table((spoken("state"), "device", "what", "driver, memory and features"), rows, "Devices, best first"),
        details("All figures", *(join((paragraph(tag("b", each.id)), _facts(each))) for each in devices)),
    )


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """A diagnosis as HTML: its verdict, the devices, and the findings with their fixes."""
    inventory = diagnosis.inventory
    rows = [(_mark(each.state), tag("b", each.id), in_a_few_words(each)) for each in inventory.devices]
    parts: list[object] = [
        paragraph(tag("b", diagnosis.verdict)),
        table((spoken("state"), "device", "what can compute here"), rows, "Devices"),
        *(_finding(each) for each in diagnosis.findings),
    ]
    if not diagnosis.problems:
        parts.append(paragraph("No problems found."))
    if inventory.unavailable:
        missing = [(_mark(each.state), each.id, explained(each)) for each in inventory.unavailable]
        label = "Devices that are not available"
        parts.append(details("Not available", table((spoken("state"), "what", "why"), missing, label)))
    return framed("Diagnosis", *parts)


def _finding(finding: Finding) -> Html:
    """A finding: its severity and title, its cause, and the steps that fix it."""
    word, sign = _SEVERITIES[finding.severity]
    heading = tag("span", f"{sign} {word}:", class_="bad" if finding.severity == "problem" else "k")
    steps = [tag("li", "→ ", tag("code", step)) for step in finding.fix]
    parts: Iterable[object] = (
        paragraph(heading, " ", tag("b", finding.title)),
        paragraph(finding.cause),
        tag("ul", *steps) if steps else "",
    )
    return tag("div", *parts, style="margin:8px 0")


def _more(device: Device) -> Html:
    return details("All figures", _facts(device))


def _facts(device: Device) -> Html:
    return pairs(all_facts(device), f"Figures of {device.id}")


def _mark(state: State) -> Html:
    """The sign for a device's state, coloured, with its name for screen readers."""
    sign, colour = _MARKS[state]
    return tag("span", sign, role="img", aria_label=state, title=state, style=f"color:{colour};font-weight:700")


#: Modules and names of the classes. They are named and not imported, because not every notebook loads them.
WRITTEN = (
    ("anygpu.receipts.receipt", "Receipt"),
    ("anygpu.placement.plan.plan", "Plan"),
    ("anygpu.observe.statistics", "Summary"),
    ("anygpu.hardware.device", "Device"),
    ("anygpu.hardware.diagnosis", "Diagnosis"),
    ("anygpu.base.events", "Listed"),
)


def write(value: Any, printer: Any, cycle: bool) -> None:
    """Writes a value to IPython's printer in a terminal."""
    printer.text(text_of(value))


def text_of(value: Any) -> str:
    """The text of a value in a terminal: lines for lists and diagnoses, `str` for all others."""
    if isinstance(value, Diagnosis):
        return _diagnosis(value)
    if isinstance(value, Listed):
        if value and all(isinstance(each, Device) for each in value):
            return _devices(value)
        return "\n".join(str(each) for each in value) if value else "[]"
    return str(value)


def _devices(devices: list[Device] | tuple[Device, ...]) -> str:
    """A line for each device, with the ids in one column."""
    width = max((len(each.id) for each in devices), default=0)
    return "\n".join(f"{each.id:<{width}}  {in_a_few_words(each)}" for each in devices)


def _diagnosis(diagnosis: Diagnosis) -> str:
    """The verdict, the devices and the findings, line by line."""
    lines = [diagnosis.verdict, _devices(diagnosis.inventory.devices)]
    for each in diagnosis.findings:
        lines += [f"{each.severity}: {each.title}", f"  {each.cause}", *(f"  → {step}" for step in each.fix)]
    if not diagnosis.problems:
        lines.append("No problems found.")
    return "\n".join(line for line in lines if line)


#: Rows of a table of outcomes; errors come first.
MOST_ROWS = 50
_LONGEST_VALUE = 400


def result_html(result: Result) -> str:
    """The value of a call with its receipt below."""
    return framed(f"Result of {result.receipt.task}", _value(result.value), receipt_body(result.receipt))


def outcome_html(outcome: Outcome) -> str:
    """The value and receipt of a task, or its error."""
    if outcome.error is not None:
        return framed("Outcome: an error", paragraph(_error(outcome.error)))
    receipt = "" if outcome.receipt is None else receipt_body(outcome.receipt)
    return framed("Outcome: a value", _value(outcome.value), receipt)


def outcomes_html(outcomes: Sequence[Outcome]) -> str:
    """Outcomes of `map` as HTML: where they ran, and failures first."""
    devices = Counter(each.receipt.device for each in outcomes if each.receipt is not None)
    failed = [(number, each) for number, each in enumerate(outcomes) if each.error is not None]
    done = [(number, each) for number, each in enumerate(outcomes) if each.error is None]
    where = ", ".join(f"{count:,} on {device}" for device, count in devices.most_common())
    shown = sorted([*failed, *done][:MOST_ROWS], key=lambda each: each[0])
    rows = [
        (
            f"{number:,}",
            _error(each.error) if each.error is not None else _in_short(each.value),
            each.receipt.device if each.receipt is not None else "",
            readable_seconds(each.receipt.seconds) if each.receipt is not None else "",
        )
        for number, each in shown
    ]
    cut = f" {len(shown):,} of them are below, errors first." if len(shown) < len(outcomes) else ""
    return framed(
        "Outcomes",
        paragraph(f"{len(done):,} of {len(outcomes):,} done" + (f": {where}." if where else ".") + cut),
        table(("item", "value or error", "device", "time"), rows, "Outcomes", (0, 3)),
    )


def future_html(future: Future) -> str:
    """A future as HTML: waiting, running, or with its receipt or error."""
    if not future.done():
        return framed("Future", paragraph(tag("b", "Future"), ": running." if future.running() else ": waiting."))
    if future.cancelled():
        return framed("Future", paragraph(tag("b", "Future"), ": cancelled."))
    error = future.exception()
    if error is not None:
        return framed("Future", paragraph(tag("b", "Future"), ": ", _error(error)))
    receipt = future.receipt
    return framed(
        "Future",
        paragraph(tag("b", "Future"), ": done."),
        _value(future.result()),
        "" if receipt is None else receipt_body(receipt),
    )


def streamed_html(streamed: Streamed) -> str:
    """The report of a stream as HTML, with a bar of its stages."""
    seconds = streamed.seconds
    stages = (
        ("read", seconds.read, OLIVE),
        ("transfer", seconds.transfer, TEAL),
        ("compute", seconds.compute, BLUE),
        ("write", seconds.write, GREY),
    )
    shares = [Share(name, value, readable_seconds(value), colour) for name, value, colour in stages if value >= 5e-7]
    return framed(
        f"Stream of {streamed.receipt.task}",
        paragraph(str(streamed)),
        bar(shares),
        legend(shares),
        _value(streamed.value),
    )


def step_html(step: StepResult) -> str:
    """The loss, the norm of the gradients and the receipt of a training step. Reads the loss from its device."""
    facts: list[tuple[str, object]] = [("loss", f"{float(step.loss):.6g}")]
    if step.grad_norm is not None:
        facts.append(("norm of the gradients", f"{float(step.grad_norm):.6g}"))
    facts.append(("the optimiser made its step", "yes" if step.stepped else "no"))
    return framed("Training step", pairs(facts, "Facts of the step"), receipt_body(step.receipt))


def _value(value: Any) -> Html:
    """A value of the user's. What would have to be computed or read from a device is only described."""
    if type(value) is np.ndarray:
        about = paragraph(tag("b", f"{value.dtype}{list(value.shape)}"), f", {readable_bytes(value.nbytes)}")
        return join((about, values_html(value)))
    return paragraph(_in_short(value))


def _in_short(value: Any) -> str:
    """A value on one line: a small array in full, larger ones by type and shape, others cut."""
    if type(value) is np.ndarray:
        if value.size > 6:
            return f"{value.dtype}{list(value.shape)}"
        return clipped(np.array2string(value, separator=", ").replace("\n", " "), _LONGEST_VALUE)
    if hasattr(value, "__dlpack__"):
        return f"{type(value).__name__}, {value.dtype}{list(value.shape)}"
    return clipped(repr(value), _LONGEST_VALUE)


def _error(error: BaseException) -> Html:
    """The class of an error, marked, and its message."""
    return join((tag("span", type(error).__name__, class_="bad"), f": {error}"))


#: Elements beyond which only the edges are shown.
MOST_ELEMENTS = 100


def array_html(array: Array) -> str:
    """An array as HTML: its facts and the corner of its values, which are not computed for it."""
    value = array._value
    facts = [
        ("shape", str(array.shape)),
        ("dtype", array.dtype.name),
        ("size", readable_bytes(array.nbytes)),
        ("device", array.device),
    ]
    rest: list[object] = []
    if not value.computed:
        program = array.program
        count = len(program) - program.input_count
        facts.append(("values", "not computed yet"))
        rest.append(
            details(f"Still to be computed: {count:,} operation{'' if count == 1 else 's'}", program_body(program))
        )
    elif array.device == "numpy":
        facts.append(("values", "computed"))
        rest.append(values_html(array._host()))
    else:
        facts.append(("values", f"computed, on {array.device}; np.asarray(x) reads them"))
    return framed("Array", paragraph(tag("b", "Array")), pairs(facts, "Facts of the array"), *rest)


def tensor_html(tensor: Tensor) -> str:
    """A tensor of a store as HTML: its facts, its tier and its holders."""
    facts: list[tuple[str, object]] = [
        ("shape", str(tensor.shape)),
        ("dtype", tensor.dtype.name),
        ("size", readable_bytes(tensor.nbytes)),
        ("device", tensor.device),
        ("on", tensor.tier),
        ("owner", tensor.owner),
        ("holders", ", ".join(tensor.holders)),
        ("version", str(tensor.version)),
    ]
    if tensor.namespace:
        facts.insert(0, ("namespace", "/".join(tensor.namespace)))
    return framed(
        f"Tensor {tensor.name}", paragraph(tag("b", f"Tensor {tensor.name}")), pairs(facts, "Facts of the tensor")
    )


def values_html(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Html:
    """The values of a NumPy array as text; of more than `MOST_ELEMENTS` only the edges."""
    text = np.array2string(values, threshold=MOST_ELEMENTS, edgeitems=3, separator=", ", max_line_width=96)
    return tag("pre", text, tabindex="0")


#: A graph of more nodes is wider than a notebook, and its picture larger than what notebooks should keep.
MOST_DRAWN = 60
#: Lines of the text; of more the first ones are shown.
MOST_LINES = 200


def program_html(program: Program) -> str:
    return framed(f"Program {program.key[:8]}", program_body(program))


def program_body(program: Program, name: str | None = None) -> Html:
    """A program without the frame, for what contains one.

    Its picture, or a table of its operations if it is too large to draw, and its text folded.
    """
    if len(program) <= MOST_DRAWN:
        picture = Html(to_svg(program, name or f"program {program.key[:8]}", inside=True))
        return join((tag("div", picture, class_="wide"), _text(program, name)))
    return join((_summary(program), _text(program, name)))


def _summary(program: Program) -> Html:
    """A table of the operations of a program that is too large to draw, by kind."""
    operations = program.nodes[program.input_count :]
    counts = Counter((node.op.operation_class, node.op.label) for node in operations)
    kinds: dict[str, list[str]] = {}
    for (kind, label), count in counts.most_common():
        kinds.setdefault(kind, []).append(f"{label} × {count:,}" if count > 1 else label)
    numbers = Counter(node.op.operation_class for node in operations)
    rows = [(kind, f"{count:,}", ", ".join(kinds[kind])) for kind, count in numbers.most_common()]
    said = (
        f"{program!r} is too large to draw: a program of up to {MOST_DRAWN} nodes is drawn. It consists of these "
        "operations."
    )
    return join((paragraph(said), table(("kind", "number", "operations"), rows, "Operations of the program", (1,))))


def _text(program: Program, name: str | None) -> Html:
    """The text of a program, folded, `MOST_LINES` lines at most."""
    lines = to_text(program, name or "program").splitlines()
    shown = lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        shown.append(f"… {len(lines) - MOST_LINES:,} more lines; print(program) has them all.")
    # Line by line: a whole program may be longer than a text of the user's may be.
    text = Html("\n".join(safe(line) for line in shown))
    return details("As text", tag("pre", text, tabindex="0"))
