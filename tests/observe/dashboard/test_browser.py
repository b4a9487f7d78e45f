"""The page in a real browser: what users call their functions stays text, and nothing comes from other hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from anygpu.observe.snapshot import Advice, Anomaly, DeviceMemoryUse, FallbackRecord, ProcessInfo, Snapshot
from anygpu.observe.statistics import Summary
from anygpu.runtime.health import Health, LaneHealth, TenantHealth
from tests.observe.dashboard.invented import Invented, call, snapshot, statistics, usage
from tests.observe.dashboard.serving import served
from tests.support.browser import Tab, chromium

#: Chromium alone has a dozen processes.

Look = Callable[[Callable[[Tab], Awaitable[None]]], None]

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
        process = ProcessInfo(
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
                fallbacks=tuple(FallbackRecord(now, name, name, name) for name in HOSTILE),
                runtime=Health(
                    ok=True, closed=None, waiting=1, limit=9, open_tasks=1, oldest_seconds=None,
                    lanes=lanes, tenants=tenants, losses=(),
                ),
                usage={name: usage(name, load=0.5) for name in HOSTILE},
                memory={name: DeviceMemoryUse(bytes=9, peak_bytes=9, by_owner={name: 5}) for name in HOSTILE},
                anomalies=tuple(
                    Anomaly(kind=name, subject=name, device=name, sentence=name, time=now) for name in HOSTILE
                ),
                advice=tuple(Advice(kind=name, line=name, cost=1.0, finding=name, instead=name) for name in HOSTILE),
            )
        }  # fmt: skip


class Nobody:
    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
        return {}


@pytest.fixture(scope="module")
def in_a_tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    """Runs what a test does in a tab of its own. All share one Chromium, which takes longer to start than they take."""
    with asyncio.Runner() as runner:
        opened = AsyncExitStack()
        browser = runner.run(opened.enter_async_context(chromium(tmp_path_factory.mktemp("chromium"))))

        def look(what: Callable[[Tab], Awaitable[None]]) -> None:
            async def run() -> None:
                async with browser.tab() as tab:
                    await what(tab)

            runner.run(run())

        yield look
        runner.run(opened.aclose())


async def open_page(tab: Tab, url: str, *, dark: bool = False) -> None:
    await tab.open(url, dark=dark)
    await tab.until("document.body?.dataset.ready === 'yes'")


async def choose(tab: Tab, name: str) -> None:
    await tab.value(f"document.querySelector('nav button[data-tab={name}]').click()")
    await tab.until(f"!document.querySelector('main .{name}').hidden")


async def tip(tab: Tab, figure: str, x: str, y: str) -> str:
    """What is beside the pointer when it is there in the figure. Names have made no element in it."""
    # Time goes on in the figure: where it is to be is computed anew, until something is there.
    for _ in range(100):
        where = await tab.value(
            f"""(() => {{
              const model = Bokeh.documents.at(-1).get_model_by_name("{figure}");
              const view = Bokeh.index.find_one(model), data = model.renderers.at(-1).data_source.data;
              const get = (name) => data instanceof Map ? data.get(name) : data[name];
              const box = document.getElementById("plot-{figure}").getBoundingClientRect();
              if (!get("colour").length) return null;
              return [box.x + view.frame.x_scale.compute({x}), box.y + view.frame.y_scale.compute({y})];
            }})()"""
        )
        if where is not None:
            for each in (where[0] + 1, where[0]):
                await tab.do("Input.dispatchMouseEvent", type="mouseMoved", x=each, y=where[1])
        await tab.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        text, kinds = await tab.value(
            f"""(() => {{
              {_EVERYTHING}
              const tips = everything(document).filter((each) => each.shadowRoot && each.checkVisibility()
                && each.classList.contains("bk-Tooltip"));
              const inside = tips.flatMap((each) => everything(each.shadowRoot));
              const text = inside.filter((each) => each.localName !== "style" && !each.childElementCount);
              return [text.map((each) => each.textContent).join(" "), inside.map((each) => each.localName)];
            }})()"""
        )
        assert not {"img", "svg", "script", "b", "i", "a", "mjx-container"} & set(kinds)
        if text:
            return str(text)
    raise AssertionError(f"nothing was said beside the pointer in {figure}")


def same_host(tab: Tab, url: str) -> bool:
    ours = urlsplit(url).netloc
    return all(each.startswith("data:") or urlsplit(each).netloc == ours for each in tab.requests)


async def no_name_is_more_than_text(tab: Tab, about: str) -> None:
    kinds = await tab.value(f"(() => {{ {_EVERYTHING} return everything(document).map((each) => each.localName); }})()")
    assert not {"img", "svg", "iframe", "object", "mjx-container"} & set(kinds), about
    assert kinds.count("script") == 2, about
    assert await tab.value("window.entered") is None, about


def test_names_stay_text_everywhere(in_a_tab: Look) -> None:
    with served(Hostile(), interval=0.2) as dashboard:

        async def look(tab: Tab) -> None:
            await open_page(tab, dashboard.url)
            for name in TABS:
                await choose(tab, name)
                await tab.until(f"document.querySelectorAll('main .{name} td').length > 5")
                await no_name_is_more_than_text(tab, name)
                if name == "overview":
                    # In each row of the timeline another function.
                    tips = [await tip(tab, "timeline", "-2", str(row + 0.5)) for row in range(len(HOSTILE))]
                    assert all("process 7" in each for each in tips)
                    assert any("<img src=x onerror=window.entered=1>" in each for each in tips)
                    assert any("</script><script>window.entered=1</script>" in each for each in tips)
                elif name == "devices":
                    # Somewhere in the lowest of the areas, which lie one upon the other.
                    said = await tip(tab, "owners", "get('xs')[0].at(1) / 2 + get('xs')[0].at(-1) / 2", "2")
                    assert "window.entered=1" in said
                elif name == "predictions":
                    said = await tip(tab, "predictions", "get('predicted').at(-1)", "get('actual').at(-1)")
                    assert any(each[:20] in said for each in HOSTILE)
                await no_name_is_more_than_text(tab, f"{name}, with a pointer over it")
            text = await tab.value("document.querySelector('table[data-source=functions]').textContent")
            assert "<img src=x onerror=window.entered=1>" in text
            assert not any(ord(letter) < 32 or letter == "\u202e" for letter in text)
            assert same_host(tab, dashboard.url)
            assert tab.console == []

        in_a_tab(look)


@pytest.mark.full
def test_the_page_says_what_to_do_when_there_is_no_process(in_a_tab: Look) -> None:
    with served(Nobody()) as dashboard:

        async def look(tab: Tab) -> None:
            await open_page(tab, dashboard.url)
            text = await tab.value("document.querySelector('.nobody').textContent")
            assert text == "No observed process. Start one with: anygpu run script.py"
            assert await tab.value("document.querySelector('main').checkVisibility()") is False

        in_a_tab(look)


@pytest.mark.full
def test_the_page_follows_fits_and_says_when_it_is_over(in_a_tab: Look) -> None:
    async def look(tab: Tab) -> None:
        with served(Invented(time.time)) as dashboard:
            await open_page(tab, dashboard.url, dark=True)
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

    in_a_tab(look)
