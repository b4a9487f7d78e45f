"""Runs the blocks of one page, in order, as a reader would: `python -m tests.docs.page_runner PAGE`.

All Python blocks of a page share one namespace, and all its blocks one temporary folder. The exit status is 1 if a
block failed or printed something that the page does not show.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.blocks import ROOT, Block, blocks, engines, is_run

_CHECKER = doctest.OutputChecker()
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_NUMBER = re.compile(r"(?<![A-Za-z_])\d(?:[\d,.:]*\d)?(?:e[-+]?\d+)?(?: ?(?:ns|µs|ms|s|min|%|bytes|B|[KMGT]i?B)\b)?")
#: The phases of a receipt that took no time are left out of it, so which ones there are varies as their numbers do.
_PHASES = re.compile(r"\[\w+ #(?:, \w+ #)*\]")
_NEXT_COMMAND = "-- the next command --"


class Differs(Exception):
    """What a block printed is not what the page shows."""


def check_page(page: str) -> None:
    """Runs a page in a process of its own, because what it sets and opens must not reach another page."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.page_runner", page],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=240,
    )
    assert done.returncode == 0, done.stdout


def run_page(page: str) -> list[str]:
    """The failures, each as a text that names the block."""
    failures = []
    # The page's functions belong to the module __main__, as they do in a script and in an interactive session.
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    for block in blocks(page):
        if not is_run(block):
            continue
        try:
            run_block(block, main.__dict__)
        except Differs as difference:
            failures.append(f"{block.where}: {difference}")
        except (Exception, SystemExit):  # noqa: BLE001 - whatever a block raises is the finding
            failures.append(f"{block.where}:\n{block.text}{traceback.format_exc()}")
    return failures


def run_block(block: Block, names: dict[str, Any]) -> None:
    if block.language == "console":
        _run_console(block)
    elif block.language == "pycon":
        _run_session(block, names)
    else:
        _run_script(block, names)


def _run_script(block: Block, names: dict[str, Any]) -> None:
    if block.file is not None:
        Path(block.file).write_text(block.text, encoding="utf-8")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.file or block.where, "exec"), names)
    if block.output is not None:
        _compare(block, block.text, block.output, printed.getvalue())


def _run_session(block: Block, names: dict[str, Any]) -> None:
    for example in doctest.DocTestParser().get_examples(block.text, block.where):
        printed = io.StringIO()
        raised = None
        # Warnings stand among the output, as on a terminal.
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                exec(compile(example.source, "<stdin>", "single"), names)
            except Exception as error:
                raised = "".join(traceback.format_exception_only(error))
                if example.exc_msg is None:
                    raise
        if (example.exc_msg is None) != (raised is None):
            raise Differs(f"this should have raised:\n{example.source}")
        if raised is not None:
            _compare(block, example.source, example.exc_msg or "", raised)
        else:
            _compare(block, example.source, example.want, printed.getvalue())


def _run_console(block: Block) -> None:
    commands = list(_commands(block.text))
    script = f"\necho '{_NEXT_COMMAND}'\n".join(f"{command} || exit" for command, _ in commands)
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=120
    )
    outputs = done.stdout.split(_NEXT_COMMAND + "\n")
    for (command, expected), output in zip(commands, outputs, strict=False):
        if expected:
            _compare(block, command, expected, output)
    if done.returncode:
        raise Differs(f"{commands[len(outputs) - 1][0]}\nended with status {done.returncode}:\n{outputs[-1]}")


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command with the output that the page shows, which may be none."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command += "\n" + more.removeprefix("> ")
        yield command, output


def _compare(block: Block, source: str, expected: str, printed: str) -> None:
    if block.output_varies is not None:
        return
    wanted, got = expected.replace("…", "..."), printed
    if block.numbers_vary:
        wanted, got = _without_numbers(wanted), _without_numbers(got)
    if not _CHECKER.check_output(wanted, got, _OPTIONS):
        raise Differs(f"{source.rstrip()}\nprints\n{printed}\nand the page shows\n{expected}")


def _without_numbers(text: str) -> str:
    return _PHASES.sub("[#]", _NUMBER.sub("#", text))


def main() -> int:
    [page] = sys.argv[1:]
    os.environ["ANYGPU_ENGINES"] = engines(page)
    # Lines are as wide as the page shows them, and commands find the Python that runs this.
    os.environ.update(
        COLUMNS="100", NO_COLOR="1", PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    with tempfile.TemporaryDirectory(prefix="anygpu-docs-", ignore_cleanup_errors=True) as folder:
        Path(folder, "examples").symlink_to(ROOT / "examples")
        os.chdir(folder)
        # The first entry is where Python was started, the root. A reader has the package installed and works elsewhere.
        sys.path[0] = folder
        if "$ anygpu history" in (ROOT / page).read_text(encoding="utf-8"):
            # What this page is about, and what nobody else has added to.
            os.environ.update(ANYGPU_HISTORY="on", ANYGPU_CACHE_DIR=folder)
        failures = run_page(page)
        os.chdir(ROOT)
    for failure in failures:
        sys.stdout.write(failure + "\n\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
