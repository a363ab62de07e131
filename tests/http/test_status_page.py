"""The status page in a real browser: pip install 'edbatch[browser]', and Chromium.

Run with ``-m slow``; pictures of the page are saved in the ``--basetemp`` folder.
"""

import json
import re
import threading

import pytest
from chromium import chromium
from served_process import JSON, ServeProcess

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install 'edbatch[browser]'"
)
pytestmark = pytest.mark.slow

SIZES = {"desktop": (1200, 900), "phone": (360, 740)}
# The contrast between texts and their background, by the formula of WCAG 2.
CONTRAST = """
(() => {
  const context = document.createElement("canvas").getContext("2d");
  const light = (color) => {
    context.fillStyle = color;
    const number = parseInt(context.fillStyle.slice(1), 16);
    const [r, g, b] = [number >> 16, (number >> 8) & 255, number & 255].map((c) =>
      c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!color.startsWith("rgba(0, 0, 0, 0")) return color;
    }
  };
  const nodes = document.querySelectorAll("h1, h2, b, span, p, td, th, a, svg text");
  return Math.min(...[...nodes].map((node) => {
    const style = getComputedStyle(node);
    const own = light(node instanceof SVGElement ? style.fill : style.color);
    const other = light(behind(node));
    return (Math.max(own, other) + 0.05) / (Math.min(own, other) + 0.05);
  }));
})()
"""

# Labels of a chart that overlap another label.
OVERLAPS = """
[...document.querySelectorAll("svg")].flatMap((svg) => {
  const labels = [...svg.querySelectorAll("text")];
  const boxes = labels.map((label) => label.getBoundingClientRect());
  return labels.filter((label, i) => boxes.some((box, j) => i < j
    && boxes[i].left < box.right && box.left < boxes[i].right
    && boxes[i].top < box.bottom && box.top < boxes[i].bottom))
    .map((label) => label.textContent);
})
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    found = ServeProcess(
        tmp_path_factory.mktemp("page"), "--model", "served_jobs:service"
    )
    yield found
    found.end()


@pytest.fixture
def open_page(browser, server):
    """Opens the page; fails on console messages and on requests to other hosts."""
    problems, pages = [], []

    def note_request(request):
        if not request.url.startswith((f"http://127.0.0.1:{server.port}/", "data:")):
            problems.append(f"asked {request.url}")

    def open_it(size="desktop", scheme="light"):
        width, height = SIZES[size]
        view = {"width": width, "height": height}
        page = browser.new_page(viewport=view, color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", note_request)
        page.goto(f"http://127.0.0.1:{server.port}/")
        sync_api.expect(page.locator("#phase")).to_have_text("ready")
        return page

    yield open_it
    for each in pages:
        each.close()
    assert not problems, problems


@pytest.fixture
def load(server):
    """Clients with requests that succeed and that fail, until the test is done."""
    stop = threading.Event()

    def client(number):
        connection = server.connect()
        while not stop.is_set():
            job = {"words": [number, 1], "steps": 5}
            if number == 0:
                job["fails_at"] = 2
            connection.request("POST", "/v1/run", json.dumps({"input": job}), JSON)
            connection.getresponse().read()
        connection.close()

    threads = [threading.Thread(target=client, args=(k,)) for k in range(5)]
    for each in threads:
        each.start()
    yield
    stop.set()
    for each in threads:
        each.join()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_when_idle(open_page, tmp_path, size, scheme):
    page = open_page(size, scheme)
    check_looks(page, size, scheme)
    assert page.inner_text("#model") == "jobs"
    assert page.inner_text("#uptime").startswith("up ")
    assert page.locator("svg[role=img]").count() == 4
    page.screenshot(path=tmp_path / f"idle-{scheme}-{size}.png", full_page=True)


def check_looks(page, size, scheme):
    width, _ = SIZES[size]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) >= 4.5
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(background.removeprefix("rgb(").split(",")[0])
    assert red > 200 if scheme == "light" else red < 60
    tops = page.evaluate(
        "[...document.querySelectorAll('figure')].map((x) => x.offsetTop)"
    )
    assert tops.count(tops[0]) == (2 if size == "desktop" else 1)
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_under_load(open_page, load, server, tmp_path, size, scheme):
    page = open_page(size, scheme)
    sync_api.expect(page.locator("#rate")).to_have_text(re.compile("[1-9]"))
    page.wait_for_timeout(3500)
    check_looks(page, size, scheme)
    for name in ("p50", "p95", "p99", "width"):
        assert float(page.inner_text(f"#{name}")) > 0, name
    shown = page.inner_text("[data-name=answered]").replace(",", "")
    assert 0 < int(shown) <= server.stats()["totals"]["answered"]
    assert int(page.inner_text("[data-name=failed]").replace(",", "")) > 0
    for chart in ("throughput", "latency", "widths", "queue"):
        for path in page.locator(f"#{chart} path").all():
            assert path.get_attribute("d").count("L") >= 2, chart
    page.screenshot(path=tmp_path / f"load-{scheme}-{size}.png", full_page=True)


def test_the_values_under_the_pointer(open_page, load):
    page = open_page()
    sync_api.expect(page.locator("#rate")).to_have_text(re.compile("[1-9]"))
    chart = page.locator("#throughput svg")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    page.wait_for_selector("#throughput .cursor", state="attached")
    label = chart.get_attribute("aria-label")
    assert "now" not in label and "answered" in label
    page.mouse.move(5, 5)
    page.wait_for_selector("#throughput .cursor", state="detached")
    assert "now" in chart.get_attribute("aria-label")


def test_a_server_that_is_gone(browser, tmp_path):
    own = ServeProcess(tmp_path, "--model", "served_jobs:cold")
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{own.port}/")
    sync_api.expect(page.locator("#phase")).to_have_text("ready")
    own.end()
    sync_api.expect(page.locator("#phase")).to_have_text("no answer")
    page.close()
