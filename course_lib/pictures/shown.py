"""The forms of a picture with controls in a notebook: widgets, a still picture, and a line of text.

Jupyter asks an object for all its forms at the same time and shows the richest it can.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable
from typing import Any

from PIL import Image

from course_lib.pictures.colours import Picture

SHARPNESS = 160  # dots per inch of a picture among widgets: sharp on dense screens too
STILL_SHARPNESS = 110  # of the still picture
STILL = "COURSE_STILL"  # environment variable: 1 shows the still picture alone
VIEW = "application/vnd.jupyter.widget-view+json"


def forms(text: str, still: Picture, widget: Callable[[], Any]) -> dict[str, Any]:
    """The forms of a picture, by their MIME types; `widget` is called only in a notebook's kernel."""
    png = base64.b64encode(small_png(still, dpi=STILL_SHARPNESS)).decode()
    bundle: dict[str, Any] = {"text/plain": text, "image/png": png}
    if os.environ.get(STILL) != "1" and in_a_kernel():
        bundle |= widget_view(widget())
    return bundle


def widget_view(widget: Any) -> dict[str, Any]:
    """The message by which a browser finds the widget. ipywidgets 7 (used by Colab) does not offer it."""
    if hasattr(widget, "_repr_mimebundle_"):
        bundle = widget._repr_mimebundle_()
        return {kind: data for kind, data in bundle.items() if kind == VIEW}
    return {VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}


def in_a_kernel() -> bool:
    """Whether there is a notebook kernel that a widget could talk through."""
    try:
        from IPython.core.getipython import get_ipython
    except ModuleNotFoundError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def small_png(picture: Picture, dpi: int = SHARPNESS) -> bytes:
    """A figure as a PNG of at most 128 colours, which is a quarter of the bytes a notebook would keep."""
    with io.BytesIO() as raw, io.BytesIO() as small:
        picture.savefig(raw, format="png", dpi=dpi, facecolor="white")
        with Image.open(raw) as image:
            image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
                small, format="png", optimize=True
            )
        return small.getvalue()
