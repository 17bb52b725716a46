"""The controls of ipywidgets in a page, and how a person changes each by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator, TimeoutError

from tests.browser.lab import Lab

# The elements that a person can change. Of radio buttons the keyboard stops at the chosen one alone.
CONTROLS = (
    ".noUi-target:not([disabled]) .noUi-handle, select, button, textarea, "
    "input:not([type=radio]), input[type=radio]:checked"
)
# A control's value; of a button, which has none, all that its widget shows.
VALUE = """control => {
    if (control.matches(".noUi-handle")) return control.getAttribute("aria-valuenow");
    if (control.matches("select")) return control.selectedIndex;
    if (control.matches("[type=checkbox], [type=radio]")) return control.checked;
    if (control.matches("input, textarea")) return control.value;
    const widget = control.closest(".jp-OutputArea-output");
    return [...widget.querySelectorAll("input, select")].map(x => x.value).join() + widget.innerHTML;
}"""

# The text and the pictures that a widget shows; those of controls are not among them.
PICTURE = """node => [...node.querySelectorAll("img, .widget-html, .widget-label")]
    .filter(part => part.checkVisibility()).map(part => part.src ?? part.textContent).join("\\n")"""


class Widget:
    """The widget that a cell shows, and its controls in the order of the page."""

    def __init__(self, lab: Lab, place: int):
        self.lab, self.place = lab, place
        self.node = lab.go_to(place).locator(".jp-OutputArea-output .jupyter-widgets").first
        self.node.wait_for()

    def controls(self) -> Locator:
        """Those that can be seen; a control that the widget has switched off is not one."""
        enabled = self.lab.page.locator(":enabled, .noUi-handle")
        return self.node.locator(CONTROLS).locator("visible=true").and_(enabled)

    def picture(self) -> str:
        return self.node.evaluate(PICTURE)

    def wait_for_another_picture(self, before: str) -> None:
        """The page may draw what the kernel has sent some time after the kernel has become idle."""
        self.lab.wait(
            f"({PICTURE})(argument[0]) !== argument[1]", [self.node.element_handle(), before]
        )

    def press(self, number: int) -> str:
        """Change a control with the keyboard; "" or the sentence that says how this failed."""
        control = self.controls().nth(number)
        control.focus()
        return self._changed(
            control, lambda: self.lab.page.keyboard.press(key(control)), key(control)
        )

    def click(self, number: int) -> str:
        """The same with the mouse."""
        control = self.controls().nth(number)
        return self._changed(control, lambda: use_mouse(control), "the mouse")

    def _changed(self, control: Locator, act: Callable[[], object], by: str) -> str:
        """Act, then wait until the control has another value, or the notebook has taken the key."""
        name, element = describe(control), control.element_handle()
        before = element.evaluate(VALUE)
        act()
        try:
            self.lab.wait(
                f"!argument[0].isConnected || ({VALUE})(argument[0]) !== argument[1] || "
                "notebook.activeCellIndex !== argument[2] || notebook.mode !== 'command'",
                [element, before, self.place],
            )
        except TimeoutError:
            return f"{name}: {by} changed nothing"
        # In one look, since a widget that draws itself anew may take the control away between two.
        changed = f"(control, before) => !control.isConnected || ({VALUE})(control) !== before"
        if element.evaluate(changed, before):
            return ""
        self.lab.go_to(self.place)
        return f"{name}: {by} went to the notebook"


def describe(control: Locator) -> str:
    """A control as a person would name it: its kind and its label."""
    return control.evaluate("""control => {
        const box = control.closest(".jupyter-widgets.widget-inline-hbox, .jupyter-widgets");
        const label = box?.querySelector("label, .widget-label")?.textContent || control.textContent;
        const own = control.type || control.tagName.toLowerCase();
        const kind = control.matches(".noUi-handle") ? "slider" : own;
        return `${kind} ${label || control.title}`.trim();
    }""")


def is_chosen(control: Locator) -> bool:
    """Whether a button is the one that is pressed in already, so that pressing it changes nothing."""
    return control.evaluate(
        "control => control.matches('.widget-toggle-buttons .mod-active')"
        " || control.style.fontWeight === 'bold'"
    )


def key(control: Locator) -> str:
    """The key that changes a control; at its upper end the one that leads back."""
    return control.evaluate("""control => {
        if (control.matches(".noUi-handle"))
            return control.getAttribute("aria-valuenow") === control.getAttribute("aria-valuemax")
                ? "ArrowLeft" : "ArrowRight";
        if (control.matches("select"))
            return control.selectedIndex === control.length - 1 ? "ArrowUp" : "ArrowDown";
        if (control.matches("[type=number]")) return "ArrowUp";
        if (control.matches("[type=radio]")) return "ArrowDown";
        return control.matches("[type=checkbox], button") ? "Space" : "1";
    }""")


def use_mouse(control: Locator) -> None:
    """Click where a person would. A list's choices are drawn by the system, where no click can be made."""
    kind = control.evaluate("control => control.matches('.noUi-handle') ? 'slider' : control.type")
    if kind == "slider":
        rail = control.locator("xpath=ancestor::*[contains(@class, 'noUi-target')]")
        size = rail.bounding_box()
        assert size is not None
        least, now, most = (
            float(control.get_attribute(f"aria-value{name}") or 0) for name in ("min", "now", "max")
        )
        across = size["width"] * (0.2 if now > (least + most) / 2 else 0.8)
        rail.click(position={"x": across, "y": size["height"] / 2}, force=True)
    elif kind in ("select-one", "select-multiple"):
        chosen, most = control.evaluate("control => [control.selectedIndex, control.length]")
        control.select_option(index=(chosen + 1) % most)
    elif kind == "radio":
        control.locator("xpath=ancestor::*[contains(@class, 'widget-radio-box')]").locator(
            "input:not(:checked)"
        ).first.click()
    elif kind == "number":
        control.click()
        control.press("Control+a")
        control.page.keyboard.type("2")
    else:
        control.click()
