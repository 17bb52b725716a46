"""A choice among options that can be made from the keyboard.

JupyterLab and Notebook 7 take the arrow keys for commands unless the cursor is in a text field, so they go to
the next cell, and a Dropdown keeps its value. Notebook 7 does the same to sliders. Buttons keep their keys
(Tab, then Space) in every front end. So do fields, such as the number next to a slider of numbers. So
`choice` makes buttons of a few short options, and a slider of others; `stepped` puts two buttons next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

WIDEST = 40  # characters of all options together, if they are buttons in one row
FEW = 4  # numbers that are buttons; more of them are a scale
SLIDER = 310  # pixels of a slider whose options have up to six characters
CHARACTER = 8  # pixels of a further one


def choice(
    widgets: Any, options: Iterable[Any], value: Any, description: str, width: str = "80px"
) -> Any:
    """A control for one of `options`; `widgets` is ipywidgets, `width` the description's."""
    options = list(options)
    shown = {"options": options, "value": value, "description": description}
    if as_buttons(options):
        return widgets.ToggleButtons(
            **shown, style={"description_width": width, "button_width": "auto"},
            layout=widgets.Layout(width="auto", display="flex", flex_flow="row nowrap"),
        )  # fmt: skip
    longest = max(len(str(option)) for option in options)
    return widgets.SelectionSlider(
        **shown, style={"description_width": width}, continuous_update=False,
        layout=widgets.Layout(width=f"{SLIDER + CHARACTER * max(0, longest - 6)}px"),
    )  # fmt: skip


def as_buttons(options: Sequence[Any]) -> bool:
    """Whether all options show at the same time. Two always do, since a slider cuts long ones off."""
    if len(options) <= 2:
        return True
    if all(isinstance(option, int | float) for option in options):
        return len(options) <= FEW
    return sum(len(str(option)) for option in options) <= WIDEST


def stepped(widgets: Any, controls: Iterable[Any]) -> list[Any]:
    """The laid-out controls. Each slider of options has buttons for the next options next to it."""
    return [
        _with_steps(widgets, control) if isinstance(control, widgets.SelectionSlider) else control
        for control in controls
    ]


def _with_steps(widgets: Any, slider: Any) -> Any:
    def step(by: int) -> Callable[[Any], None]:
        def clicked(_button: Any) -> None:
            slider.index = min(max(slider.index + by, 0), len(slider.options) - 1)

        return clicked

    buttons = []
    for sign, by, word in (("‹", -1, "previous"), ("›", 1, "next")):
        button = widgets.Button(
            description=sign, tooltip=f"{word} {slider.description}",
            layout=widgets.Layout(width="26px", padding="0", flex="0 0 auto"),
        )  # fmt: skip
        button.on_click(step(by))
        buttons.append(button)
    return widgets.HBox([slider, *buttons])
