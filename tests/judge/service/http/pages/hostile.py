"""What every text of a page may be, and a check that none of it became a part of the page."""

from html.parser import HTMLParser

import httpx

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}\u202eevil"
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "script", "noscript", "body", "header", "main", "nav", "section"),
    *("a", "svg", "path", "line", "circle", "form", "label", "select", "option", "input", "datalist", "button", "div"),
    *("h1", "h2", "p", "span", "pre", "code", "b", "small", "bdi", "time", "dl", "dt", "dd", "ul", "ol", "li"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary"),
}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(answer: httpx.Response) -> _Page:
    """The page's elements and text; it is one of ours, and has nothing of what it shows as a part of it."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "'unsafe" not in answer.headers["content-security-policy"]
    page = _Page()
    page.feed(answer.text)
    page.close()
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if tag in ("script", "link"):
            assert str(attributes.get("src") or attributes.get("href")).startswith("/assets/")
        if tag == "a":
            assert str(attributes["href"]).startswith(("/", "#", "?")) or attributes["href"] == ""
    return page
