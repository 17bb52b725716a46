"""Settings that do not exist: traitlets drops them without a word, and late work then keeps its points."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from nbgrader.apps.nbgraderapp import NbGraderApp
from traitlets.config import Config

from autograder.book.extra_credit import ExtraCredit

ALIKE = 0.85  # of a class's name: an instructor's own plugin may have any other one


def refuse_misspelt(config: Config) -> None:
    """NameError for a class that nearly is one of nbgrader's or of this course, or a setting it lacks."""
    known: dict[str, set[str]] = {}
    kinds: list[Any] = [*NbGraderApp().all_configurable_classes(), ExtraCredit]
    for kind in kinds:
        known.setdefault(kind.__name__, set()).update(kind.class_trait_names(config=True))
    for name, settings in config.items():
        if not isinstance(settings, Config):
            continue
        if near := get_close_matches(name, known, 1, ALIKE) if name not in known else []:
            raise NameError(f"there is no {name}; did you mean {near[0]}?")
        for setting, value in settings.items():
            if name in known and setting not in known[name] and not isinstance(value, Config):
                alike = get_close_matches(setting, known[name], 3, 0.5) or known[name]
                raise NameError(
                    f"{name} has no setting {setting}; there is {', '.join(sorted(alike))}"
                )
