"""The built site, opened from a folder in a real browser.

Needs pip install 'edbatch[browser,docs]'. Run with ``-m slow``; screenshots of the
pages are saved in the folder that ``--basetemp`` names.
"""

import re
import subprocess
import sys

import pytest
from chromium import chromium

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'edbatch[docs]'")

STRICT = ("--fail-on-warning", "--keep-going", "--quiet")
SIZES = {"desktop": (1280, 900), "phone": (390, 800)}
PAGES = ("index", "start", "concepts", "reference/edbatch", "notebooks")


def build(project_root, source, site, *options):
    command = [sys.executable, "-P", "-m", "sphinx", *STRICT, *options]
    command += ["--conf-dir", str(project_root / "docs"), str(source), str(site)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a page](missing.md)", "missing.md"),
        ("[a section](index.md#nowhere)", "nowhere"),
        ("`eb.bath` runs models", "edbatch.bath"),
        ("`eb.Batched.aply` runs plans", "edbatch.Batched.aply"),
    ],
)
def test_what_is_broken_fails(project_root, tmp_path, text, message):
    (tmp_path / "static").mkdir()
    (tmp_path / "index.md").write_text(f"# Title\n\n{text}\n")
    (tmp_path / "names.rst").write_text(
        ":orphan:\n\nNames\n=====\n\n.. autoclass:: edbatch.Batched\n"
    )
    found = build(project_root, tmp_path, tmp_path / "site", "--builder", "dummy")
    assert found.returncode != 0
    own = [line for line in found.stderr.splitlines() if "index.md" in line]
    assert any(message in line for line in own), found.stderr


@pytest.fixture(scope="module")
def site(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    root = request.getfixturevalue("project_root")
    done = build(root, root / "docs", folder, "--jobs", "auto")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser):
    """A page that records its network requests and console errors."""
    context = browser.new_context()
    found = context.new_page()
    found.requests, found.errors = [], []
    found.on(
        "request",
        lambda request: (
            request.url.startswith(("file:", "data:"))
            or found.requests.append(request.url)
        ),
    )
    found.on(
        "console",
        lambda message: message.type == "error" and found.errors.append(message.text),
    )
    found.on("pageerror", lambda error: found.errors.append(str(error)))
    yield found
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_pages_fit_and_need_no_network(site, page, size, scheme, tmp_path):
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)
    notebook = next((site / "notebooks").glob("*.html")).relative_to(site)
    for name in (*PAGES, str(notebook.with_suffix(""))):
        page.goto((site / f"{name}.html").as_uri())
        page.screenshot(path=tmp_path / f"{name.replace('/', '-')}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        shown = page.evaluate("document.documentElement.dataset.theme")
        assert shown == scheme, name
    assert page.requests == []
    assert page.errors == []


@pytest.mark.slow
def test_the_search_finds_what_is_public(site, page):
    page.goto((site / "search.html").as_uri() + "?q=eb.batch")
    page.wait_for_selector("#search-results li")
    page.wait_for_function(
        "!document.querySelector('#search-progress')?.textContent.includes('...')"
    )
    links = page.eval_on_selector_all(
        "#search-results li a", "found => found.map((each) => each.href)"
    )
    assert any(re.search(r"reference/edbatch\.html.*edbatch\.batch$", x) for x in links)
    assert page.requests == []
    assert page.errors == []


@pytest.mark.slow
def test_pages_name_no_other_host_for_what_they_load(site):
    loaded = re.compile(
        r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(https?:[^\"]+)"
    )
    for file in site.rglob("*.html"):
        found = loaded.findall(file.read_text("utf-8"))
        assert found == [], file
