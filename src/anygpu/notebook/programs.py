"""Programs as HTML: the graph, and the text below it. Of a large program only what it consists of."""

from __future__ import annotations

from collections import Counter

from anygpu.notebook.markup import Html, details, framed, join, paragraph, safe, table, tag
from anygpu.program.graph import Program
from anygpu.program.picture import to_svg
from anygpu.program.text import to_text

#: A graph of more nodes is wider than a notebook, and its picture larger than what notebooks should keep.
MOST_DRAWN = 60
#: Lines of the text; of more the first ones are shown.
MOST_LINES = 200


def program_html(program: Program) -> str:
    return framed(f"Program {program.key[:8]}", program_body(program))


def program_body(program: Program, name: str | None = None) -> Html:
    """Without the frame, for what contains a program."""
    if len(program) <= MOST_DRAWN:
        picture = Html(to_svg(program, name or f"program {program.key[:8]}", inside=True))
        return join((tag("div", picture, class_="wide"), _text(program, name)))
    return join((_summary(program), _text(program, name)))


def _summary(program: Program) -> Html:
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
    lines = to_text(program, name or "program").splitlines()
    shown = lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        shown.append(f"… {len(lines) - MOST_LINES:,} more lines; print(program) has them all.")
    # Line by line: a whole program may be longer than a text of the user's may be.
    text = Html("\n".join(safe(line) for line in shown))
    return details("As text", tag("pre", text, tabindex="0"))
