"""A driver for JupyterLab's page: open a notebook, run cells, read outputs, press keys.

Keys are pressed and buttons clicked as by a person. States, such as a cell's star that turns into a number,
are read from the page's own model, since JupyterLab draws only the cells in view.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Locator, Page

from tests.browser.server import Server

LOOKS = 100  # ms between two looks at a state of the page
# Names that all snippets of JavaScript use: the panel in front, its notebook, its kernel.
WORDS = """
const panel = window.jupyterapp?.shell.currentWidget;
const notebook = panel?.content;
const kernel = panel?.sessionContext?.session?.kernel;
const cells = notebook?.model?.cells ? [...Array(notebook.model.cells.length).keys()].map(
    k => notebook.model.cells.get(k)) : [];
const code = cells.filter(cell => cell.type === "code");
"""


class Lab:
    """One page of JupyterLab with a notebook in it; `shots` is the folder for pictures of it."""

    def __init__(self, page: Page, server: Server, shots: Path):
        self.page, self.server, self.shots = page, server, shots

    # ---- the page's own objects

    def ask(self, body: str, argument: Any = None) -> Any:
        """The value that a snippet returns in the page; `argument` is there under its name."""
        return self.page.evaluate(f"async argument => {{ {WORDS} {body} }}", argument)

    def wait(self, condition: str, argument: Any = None) -> None:
        """Wait until an expression is true. A look at each frame would make the page draw all the time."""
        look = f"argument => {{ {WORDS} return {condition}; }}"
        self.page.wait_for_function(look, arg=argument, polling=LOOKS)

    # ---- notebooks

    def open(self, path: str) -> None:
        """Open a notebook of `work/` and wait for its kernel."""
        address = f"{self.server.address}lab/tree/{quote(path)}?reset&token={self.server.token}"
        self.page.goto(address)
        self.ready(path)

    def ready(self, path: str) -> None:
        self.wait("panel?.context?.path === argument && panel.context.isReady", path)
        self.wait("panel.sessionContext.isReady && kernel?.status === 'idle'")

    def run_all(self) -> None:
        """Run all cells by the menu's command, and wait until the kernel has done what it was asked."""
        self.ask("await window.jupyterapp.commands.execute('notebook:run-all-cells');")
        self.idle()

    def idle(self) -> None:
        """Wait until the kernel has done all that the page asked for before, moves of a slider included.

        It answers requests in turn, so that the answer to a new one means that the others are done.
        """
        self.ask("await kernel.requestKernelInfo();")
        self.wait(
            "kernel?.status === 'idle' && code.every(cell => cell.executionState !== 'running')"
        )

    def kernel_process(self) -> int:
        """The process of the kernel: the one child of the server that a notebook talks to."""
        (process,) = self.server.kernels()
        return process

    def restart(self) -> None:
        """Restart the kernel with the keyboard, and say yes to the question."""
        self.focus()
        self.ask(
            "window.before = kernel; window.restarts = 0;"
            "panel.sessionContext.statusChanged.connect("
            "    (_, status) => { window.restarts += status === 'restarting'; });"
        )
        self.page.keyboard.press("0")
        self.page.keyboard.press("0")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self.wait("window.restarts > 0 && kernel?.status === 'idle'")

    def save(self) -> None:
        self.focus()
        self.page.keyboard.press("Control+s")
        self.wait("!notebook.model.dirty")

    # ---- cells

    def find(self, text: str) -> int:
        """The place of the one code cell that contains `text`."""
        places = self.ask(
            "return cells.flatMap((cell, k) => cell.type === 'code' && "
            "cell.sharedModel.getSource().includes(argument) ? [k] : []);",
            text,
        )
        assert len(places) == 1, f"{text!r} is in the cells {places}"
        return places[0]

    def go_to(self, place: int) -> Locator:
        """Bring a cell into view and make it the active one; its node."""
        self.ask(
            "notebook.activeCellIndex = argument; notebook.mode = 'command';"
            "await notebook.scrollToItem(argument, 'smart');",
            place,
        )
        self.focus()
        cell = self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{place}']")
        cell.wait_for(state="attached")
        return cell

    def focus(self) -> None:
        """Give the notebook the keyboard, in command mode.

        A widget's field would keep it, since the notebook takes a cursor in an output for its own. And while
        a notebook is still being drawn, another part of the page may take it, so it is asked for again.
        """
        self.ask(
            "const field = document.activeElement;"
            "if (field?.matches('input, textarea, select')) field.blur();"
            "notebook.mode = 'command'; notebook.activate();"
        )
        self.wait("notebook.node.contains(document.activeElement) || void notebook.activate()")

    def run(self, place: int) -> None:
        """Run one cell with the keyboard and wait for its end."""
        before = self.count(place)
        self.start(place)
        self.wait(
            "cells[argument[0]].executionCount !== null && cells[argument[0]].executionCount !== argument[1]"
            " && cells[argument[0]].executionState !== 'running'",
            [place, before],
        )
        self.idle()

    def start(self, place: int) -> None:
        """Run one cell with the keyboard; returns when the kernel has it."""
        self.go_to(place)
        self.page.keyboard.press("Control+Enter")
        self.wait(
            "cells[argument].executionState === 'running' || cells[argument].executionCount !== null",
            place,
        )

    def count(self, place: int) -> int | None:
        return self.ask("return cells[argument].executionCount;", place)

    def write(self, place: int, source: str) -> None:
        """Replace a cell's text with the keyboard."""
        self.go_to(place)
        self.page.keyboard.press("Enter")
        self.wait("notebook.mode === 'edit'")
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)
        self.wait("cells[argument[0]].sharedModel.getSource() === argument[1]", [place, source])
        self.page.keyboard.press("Escape")
        self.wait("notebook.mode === 'command'")

    def add(self, source: str) -> int:
        """A new cell behind the last one."""
        last = self.ask("return cells.length - 1;")
        self.go_to(last)
        self.page.keyboard.press("b")
        self.wait(
            "cells.length === argument + 2 && notebook.activeCellIndex === argument + 1", last
        )
        self.write(last + 1, source)
        return last + 1

    # ---- outputs

    def outputs(self, place: int) -> list[dict[str, Any]]:
        """A cell's outputs, as a notebook's file has them."""
        return self.ask("return cells[argument].outputs.toJSON();", place)

    def text(self, place: int) -> str:
        """All that a cell printed, and the text of its error."""
        return "".join(plain(output) for output in self.outputs(place))

    def red(self) -> list[str]:
        """Every error and every line of stderr of cells that are not marked to fail on purpose."""
        return self.ask("""
            return code.flatMap(cell => {
                const fails = (cell.getMetadata("tags") ?? []).includes("raises-exception");
                return cell.outputs.toJSON().filter(
                    output => output.name === "stderr" || (output.output_type === "error" && !fails)
                ).map(output => cell.id + ": " + JSON.stringify(output).slice(0, 1000));
            });""")

    def shot(self, name: str) -> None:
        self.shots.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.shots / f"{name}.png")


def plain(output: dict[str, Any]) -> str:
    """The text of an output, whatever its kind."""
    match output["output_type"]:
        case "stream":
            text = output["text"]
        case "error":
            return "\n".join(output["traceback"])
        case _:
            text = output["data"].get("text/plain", "")
    return text if isinstance(text, str) else "".join(text)
