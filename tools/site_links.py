"""Faults of a built site: links and figures that lead nowhere, and files loaded from another host."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}
IN_STYLES = re.compile(r"""(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""")


def faults(site: Path) -> list[str]:
    """Sentences, one for each fault of the pages and style sheets below `site`."""
    sentences = []
    for page in sorted(site.rglob("*.html")):
        where = page.relative_to(site)
        for tag, target in targets(page):
            if reason := fault(site, page, tag, target):
                sentences.append(f"{where}: <{tag}> {target}: {reason}")
    for sheet in sorted(site.rglob("*.css")):
        for address in IN_STYLES.findall(sheet.read_text(encoding="utf-8")):
            sentences.append(f"{sheet.relative_to(site)}: {address}: loaded from another host")
    return sentences


def fault(site: Path, page: Path, tag: str, target: str) -> str:
    """The reason why a page may not point there, or ""."""
    parts = urlsplit(target)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "loaded from another host" if tag in LOADED else ""
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.startswith("/") or not path.is_relative_to(site.resolve()):
        return "not below the site's own folder"
    if not path.exists():
        return "there is no such file"
    if parts.fragment and path.suffix == ".html" and unquote(parts.fragment) not in anchors(path):
        return "the page has no such place"
    return ""


def targets(page: Path) -> list[tuple[str, str]]:
    """(tag, address) of all that a page loads or links to."""
    soup = parsed(page)
    addresses = [(str(link.name), str(link["href"])) for link in soup.select("a[href]")]
    for tag, attribute in LOADED.items():
        addresses += [
            (tag, str(element[attribute])) for element in soup.select(f"{tag}[{attribute}]")
        ]
    for figure in soup.select("[data-frames]"):
        addresses += [("img", frame) for frame in str(figure["data-frames"]).split()]
    return addresses


@cache
def anchors(page: Path) -> frozenset[str]:
    soup = parsed(page)
    named = {str(element["id"]) for element in soup.select("[id]")}
    return frozenset(named | {str(element["name"]) for element in soup.select("a[name]")})


@cache
def parsed(page: Path) -> BeautifulSoup:
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
