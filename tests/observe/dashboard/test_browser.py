"""The page in a real browser: what users call their functions stays text, and nothing comes from other hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from anygpu.observe.calls import Fallback
from anygpu.observe.findings import Advice, Anomaly, DeviceMemory
from anygpu.observe.snapshot import Process, Snapshot
from anygpu.observe.statistics import Summary
from anygpu.runtime.health import Health, LaneHealth, TenantHealth
from tests.observe.dashboard.invented import Invented, call, snapshot, statistics, usage
from tests.observe.dashboard.serving import served
from tests.support.browser import Tab, chromium

#: Each would set `window.entered` if it were taken for what it looks like.
HOSTILE = (
    "<img src=x onerror=window.entered=1>",
    "\"'><script>window.entered=1</script>",
    "</script><script>window.entered=1</script>",
    "<svg/onload=window.entered=1>",
    "javascript:window.entered=1//{{session}}${window.entered=1}",
    "$$\\href{javascript:window.entered=1}{x}$$ \\(x\\)",
    "\x1b]0;title\x07\x1b[2J\u202egnp.exe\x00\n<b>bold</b>",
    "@function{safe} %s &lt;i&gt;",
)
TABS = ("overview", "devices", "queue", "predictions", "problems")

#: All elements, those of Bokeh's shadow trees included.
_EVERYTHING = """
const everything = (root) => [...root.querySelectorAll("*")].flatMap(
  (each) => [each, ...(each.shadowRoot ? everything(each.shadowRoot) : [])]);
"""


class Hostile:
    """A process whose every name is an attack."""

    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
        now = time.time()
        last = since.get(7, 0)
        process = Process(
            pid=7, command=HOSTILE[0] + HOSTILE[1], version=HOSTILE[2], since=1.0, processor_seconds=1.0, memory_bytes=1
        )
        calls = tuple(
            call(last + number, now, 5.0, function=name, device=HOSTILE[-number], predicted=0.3)
            for number, name in enumerate(HOSTILE, 1)
        )
        lanes = tuple(LaneHealth(device=name, condition="busy", running=(name,)) for name in HOSTILE)
        tenants = tuple(TenantHealth(tenant=name, waiting=1, bytes=1, seconds=1.0) for name in HOSTILE)
        return {
            7: snapshot(
                7,
                now,
                process=process,
                calls=calls,
                statistics=Summary(
                    seconds=1.0, calls=tuple(statistics(name, name, 5, 0.1, errors={name: 1}) for name in HOSTILE)
                ),
                fallbacks=tuple(Fallback(now, name, name, name) for name in HOSTILE),
                runtime=Health(
                    ok=True, closed=None, waiting=1, limit=9, open_tasks=1, oldest_seconds=None,
                    lanes=lanes, tenants=tenants, losses=(),
                ),
                usage={name: usage(name, load=0.5) for name in HOSTILE},
                memory={name: DeviceMemory(bytes=9, peak_bytes=9, by_owner={name: 5}) for name in HOSTILE},
                anomalies=tuple(
                    Anomaly(kind=name, subject=name, device=name, sentence=name, time=now) for name in HOSTILE
                ),
                advice=tuple(Advice(kind=name, line=name, cost=1.0, finding=name, instead=name) for name in HOSTILE),
            )
        }  # fmt: skip


class Nobody:
    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
        return {}


async def choose(tab: Tab, name: str) -> None:
    await tab.value(f"document.querySelector('nav button[data-tab={name}]').click()")
    await tab.until(f"!document.querySelector('main .{name}').hidden")


async def tip(tab: Tab, x: int, y: int) -> str:
    """What is beside the pointer when it is there; what is in it has no elements that names could have made."""
    await tab.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    await tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found = await tab.value(
        f"(() => {{ {_EVERYTHING} const tips = everything(document).filter((each) => "
        "each.classList.contains('bk-Tooltip') && each.shadowRoot); return [tips.map((each) => "
        "each.shadowRoot.textContent).join(' '), tips.flatMap((each) => everything(each.shadowRoot))"
        ".map((each) => each.localName)]; })()"
    )
    assert not {"img", "svg", "script", "b", "i"} & set(found[1])
    return str(found[0])


def same_host(tab: Tab, url: str) -> bool:
    ours = urlsplit(url).netloc
    return all(each.startswith("data:") or urlsplit(each).netloc == ours for each in tab.requests)


def test_names_stay_text_everywhere(tmp_path: Path) -> None:
    async def look(url: str) -> None:
        async with chromium(tmp_path) as tab:
            await tab.open(url)
            await tab.until("document.body?.dataset.ready === 'yes'")
            for name in TABS:
                await choose(tab, name)
                tables = f"document.querySelectorAll('main .{name} td').length"
                await tab.until(f"{tables} > 5")
                # Over the drawings, where names appear in the texts beside the pointer.
                for x, y in ((300, 200), (700, 200), (1000, 200), (300, 600), (640, 350)):
                    await tab.do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
                await tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                kinds = await tab.value(
                    f"(() => {{ {_EVERYTHING} return everything(document).map((each) => each.localName); }})()"
                )
                assert not {"img", "svg", "iframe", "object", "mjx-container"} & set(kinds), name
                assert kinds.count("script") == 3
                assert await tab.value("window.entered") is None
            await choose(tab, "overview")
            text = await tab.value("document.querySelector('table[data-source=functions]').textContent")
            assert "<img src=x onerror=window.entered=1>" in text
            assert not any(ord(letter) < 32 or letter == "\u202e" for letter in text)
            tips = [await tip(tab, 1200, y) for y in range(150, 390, 8)]
            assert any("process 7" in each for each in tips), "no text beside the pointer was seen"
            assert any("window.entered=1" in each for each in tips)
            assert await tab.value("window.entered") is None
            assert same_host(tab, url)
            assert tab.console == []

    with served(Hostile(), interval=0.2) as dashboard:
        asyncio.run(look(dashboard.url))


def test_the_page_says_what_to_do_when_there_is_no_process(tmp_path: Path) -> None:
    async def look(url: str) -> None:
        async with chromium(tmp_path) as tab:
            await tab.open(url)
            await tab.until("document.body?.dataset.ready === 'yes'")
            text = await tab.value("document.querySelector('.nobody').textContent")
            assert text == "No observed process. Start one with: anygpu run script.py"
            assert await tab.value("document.querySelector('main').checkVisibility()") is False

    with served(Nobody()) as dashboard:
        asyncio.run(look(dashboard.url))


def test_the_page_follows_fits_and_says_when_it_is_over(tmp_path: Path) -> None:
    async def look() -> None:
        async with chromium(tmp_path) as tab:
            with served(Invented(time.time)) as dashboard:
                await tab.open(dashboard.url, dark=True)
                await tab.until("document.body?.dataset.ready === 'yes'")
                calls = "Number(document.querySelectorAll('.tiles b')[2].textContent.replaceAll(',', ''))"
                before = await tab.value(calls)
                await tab.until(f"{calls} > {before}")
                for name in TABS:
                    await choose(tab, name)
                    size = await tab.value("[document.body.scrollWidth, document.body.scrollHeight]")
                    assert size[0] <= 1280, name
                    assert size[1] <= 800, name
                back = await tab.value("getComputedStyle(document.body).backgroundColor")
                assert back == "rgb(16, 19, 24)"
                assert tab.console == []
            await tab.until("!document.getElementById('lost').hidden")
            said = await tab.value("document.getElementById('lost').textContent")
            assert "anygpu dashboard" in said

    asyncio.run(look())
