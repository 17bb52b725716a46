"""Drawings of a submission: SVG that holds shapes and texts and nothing else."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
LONGEST = 500_000
_NAMES = """
    svg g defs path rect circle ellipse line polyline polygon text tspan title desc use symbol clipPath
    linearGradient radialGradient stop pattern marker mask
"""
ELEMENTS = frozenset(_NAMES.split())
ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
REFERENCE = re.compile(r"#[\w.-]+")
# Texts that reach out of a drawing: url(...) to anything but a part of it, CSS that imports.
OUTSIDE = re.compile(r"url\s*\(\s*['\"]?\s*(?!#)|@|expression|javascript:|\\", re.IGNORECASE)


def clean_svg(text: str) -> str:
    """The drawing with its shapes and texts only; "" if it is not SVG, too large, or nested too deeply."""
    if len(text) > LONGEST:
        return ""
    try:
        root = fromstring(text, forbid_dtd=False)
    except (ElementTree.ParseError, DefusedXmlException, ValueError, RecursionError):
        return ""
    if root.tag != f"{{{SVG}}}svg":
        return ""
    _clean(root)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    try:
        return ElementTree.tostring(root, encoding="unicode")
    except RecursionError:  # of the writer: the parser needs no stack for elements within elements
        return ""


def _clean(root: ElementTree.Element) -> None:
    waiting = [root]
    while waiting:
        element = waiting.pop()
        element.attrib = {
            name: value for name, value in element.attrib.items() if _may_stay(name, value)
        }
        for child in list(element):
            namespace, _, name = str(child.tag).rpartition("}")
            if namespace == f"{{{SVG}" and name in ELEMENTS:
                waiting.append(child)
            else:
                element.remove(child)


def _may_stay(name: str, value: str) -> bool:
    if name in ("href", f"{{{XLINK}}}href"):
        return REFERENCE.fullmatch(value) is not None
    return (
        ATTRIBUTE.fullmatch(name) is not None
        and not name.lower().startswith("on")
        and OUTSIDE.search(value) is None
    )
