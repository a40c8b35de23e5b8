"""The site: it builds without a complaint, from pages that are all found, and asks no other host for anything."""

import re
from importlib.util import find_spec
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NAV = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
# What a page loads by itself; links that a reader may follow are not among it.
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//|<link[^>]+rel=[\"']?(?:stylesheet|preconnect)[^>]+//"
)
# Elements of the text of pages. What else is in angle brackets was meant to be read, and the browser swallows it.
ELEMENTS = {
    "a", "article", "br", "button", "code", "details", "div", "em", "figure", "form", "h1", "h2", "h3", "h4", "img",
    "input", "label", "li", "nav", "ol", "p", "path", "pre", "small", "span", "strong", "sub", "summary", "sup", "svg",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip


def test_every_page_is_in_the_navigation_once():
    pages = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    assert sorted(NAV) == pages


def test_styles_and_scripts_of_ours_load_nothing_from_outside():
    for path in (DOCS / "assets").rglob("*.*"):
        if path.suffix in (".css", ".js"):
            assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", path.read_text(encoding="utf-8")), path


@pytest.mark.skipif(find_spec("zensical") is None, reason="needs zensical: pip install '.[docs]'")
def test_the_site_builds_and_is_whole():
    done = processes.run("-m", "zensical", "build", "--strict", "--clean", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    built = list((ROOT / "site").rglob("*.html"))
    assert len(built) >= len(NAV)
    for path in built:
        text = path.read_text(encoding="utf-8")
        found = LOADED.search(text)
        assert not found, f"{path}: {found[0]}"
        article = text.partition("<article")[2].partition("</article>")[0]
        assert not set(re.findall(r"<([a-zA-Z]\w*)", article)) - ELEMENTS, path
