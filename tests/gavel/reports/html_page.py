"""What the tests of pages share: a parser that refuses unbalanced tags, and text that tries to break out of a page."""

from html.parser import HTMLParser

HOSTILE = "</div></body><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """Tags, attributes and text; raises on a tag that is closed but was not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def shown(html: str) -> str:
    """The text of a report, in one line: it is whole, loads nothing and runs nothing."""
    page = Page(html)
    assert page.open == []
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    assert "default-src 'none'" in html
    return " ".join(page.text.split())
