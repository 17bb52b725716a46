"""Where handed-out notebooks lie on GitHub: links that open them there, and the badges around these."""

from __future__ import annotations

import re
from dataclasses import dataclass

REPOSITORY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")
PLACEHOLDER = "owner/name"  # in the pages and the help
BRANCH = re.compile(r"[A-Za-z0-9._/-]{1,100}")
FOLDER = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+){0,9}")


class ReleaseError(Exception):
    """Nothing was handed out; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where the handed-out notebooks lie on GitHub: `repository` is "owner/name", `folder` lies in it.

    The course is installed from there, too. ReleaseError for a name that cannot be one.
    """

    repository: str
    branch: str = "main"
    folder: str = "notebooks"

    def __post_init__(self) -> None:
        if not REPOSITORY.fullmatch(self.repository):
            raise ReleaseError(
                f"{self.repository!r} is not the name of a repository: it is OWNER/NAME, as on GitHub."
            )
        if self.repository.lower() == PLACEHOLDER:
            raise ReleaseError(
                f"{self.repository} stands for your own repository: put in its name."
            )
        if not BRANCH.fullmatch(self.branch) or ".." in self.branch:
            raise ReleaseError(f"{self.branch!r} is not the name of a branch.")
        if not FOLDER.fullmatch(self.folder) or ".." in self.folder:
            raise ReleaseError(
                f"{self.folder!r} is not a folder of a repository: it is a path such as notebooks."
            )

    @property
    def package(self) -> str:
        """The address from which pip installs the course."""
        return f"git+https://github.com/{self.repository}@{self.branch}"

    def colab(self, assignment: str) -> str:
        return f"https://colab.research.google.com/github/{self._file(assignment)}"

    def kaggle(self, assignment: str) -> str:
        return f"https://kaggle.com/kernels/welcome?src=https://github.com/{self._file(assignment)}"

    def badges(self, assignment: str) -> str:
        colab = "https://colab.research.google.com/assets/colab-badge.svg"
        kaggle = "https://kaggle.com/static/images/open-in-kaggle.svg"
        return (
            f"[![Open in Colab]({colab})]({self.colab(assignment)}) "
            f"[![Open in Kaggle]({kaggle})]({self.kaggle(assignment)})"
        )

    def _file(self, assignment: str) -> str:
        return f"{self.repository}/blob/{self.branch}/{self.folder}/{assignment}/{assignment}.ipynb"
