"""A stepper: an algorithm round by round, with a slider, drawn from a real run.

    stepper(run.ledger, run)            # the ranks returned films, see `watch`
    stepper(run.ledger)                 # messages only

In a notebook it is a slider and a play button over pictures that are drawn once. The browser switches
them, so the stepper also works in a saved notebook or a web page made from one. With ipywidgets 7 (Colab)
the kernel changes the picture, so it works only while the kernel runs. If widgets cannot be shown at all, the
same output holds a still picture of all rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.ledger import wording
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.steps import Steps, steps
from course_lib.ledger.watch import Film
from course_lib.pictures.colours import Picture
from course_lib.pictures.shown import forms, small_png
from course_lib.pictures.steps_figure import frame, still

MOST_FRAMES = 64


def stepper(
    ledger: Ledger, states: Sequence[Film] | np.ndarray | None = None, title: str | None = None
) -> Stepper:
    """Show a run round by round.

    states: the ranks' films in order (such as a `Run` whose function returned its film), or counts of
        your own (see `steps`), or None.
    """
    return Stepper(steps(ledger, states), title)


class Stepper:
    """The result of `stepper`. `film` holds the data, `still()` and `frame(k)` are figures."""

    def __init__(self, film: Steps, title: str | None = None):
        self.film, self.title = film, title

    def __repr__(self) -> str:
        rounds = wording.counted(len(self.film), "round")
        ranks = wording.counted(self.film.world_size, "rank")
        return f"Stepper({self.title + ': ' if self.title else ''}{ranks}, {rounds})"

    def still(self) -> Picture:
        """All rounds in one picture."""
        return still(self.film, self.title)

    def frame(self, k: int) -> Picture:
        """Round k, from 1; 0 is the state at the beginning."""
        where = f"round {k} of {len(self.film)}" if k else "at the beginning"
        return frame(self.film, k, f"{self.title}: {where}" if self.title else where)

    def widget(self) -> Any:
        """The ipywidgets box: play button and slider above the picture of the chosen round."""
        import ipywidgets as widgets

        last = min(len(self.film), MOST_FRAMES)
        play = widgets.Play(min=0, max=last, interval=1200, show_repeat=False)
        slider = widgets.IntSlider(
            min=0, max=last, description="round", layout=widgets.Layout(width="420px")
        )
        widgets.jslink((play, "value"), (slider, "value"))
        if hasattr(widgets, "Stack"):
            images = [self._image(widgets, k) for k in range(last + 1)]
            shown = widgets.Stack(images, selected_index=0)
            widgets.jslink((slider, "value"), (shown, "selected_index"))
        else:  # ipywidgets 7: the kernel has to change the picture
            shown = self._image(widgets, 0)
            slider.observe(lambda change: self._show(shown, change["new"]), names="value")
        controls = [play, slider]
        if last < len(self.film):
            controls.append(widgets.Label(f"the first {last} of {len(self.film)} rounds"))
        return widgets.VBox([widgets.HBox(controls), shown])

    def _image(self, widgets: Any, k: int) -> Any:
        picture = self.frame(k)
        width = f"{picture.get_figwidth() * 96:.0f}px"
        layout = widgets.Layout(width=width, max_width="100%")
        return widgets.Image(value=small_png(picture), format="png", layout=layout)

    def _show(self, image: Any, k: int) -> None:
        image.value = small_png(self.frame(k))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the still picture and a line of text for others."""
        return forms(repr(self), self.still(), self.widget)
