"""Finds for each cell of a submission the released cell that it was made from.

Every editor and host saves a notebook in its own way: ids are new or gone, metadata are cut or have grown,
lines end otherwise. A cell is recognised by the first of these that is left of it: the exercise's name in
its metadata (`grade_id`), its id, its text, the names that an exercise defines, and its place between two
known cells.

If a text stands in a notebook several times, a cell with it is recognised only by its neighbours as well.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nbformat import NotebookNode

from autograder.course.twin import grade_id

DEFINED = re.compile(r"^(?:(?:async +)?def|class) +(\w+)|^(\w+) *(?::[^=\n]*)?=(?!=)", re.MULTILINE)

Key = Callable[[NotebookNode], object]


def recognise(submission: NotebookNode, released: NotebookNode) -> dict[str, NotebookNode]:
    """The submission's cell for each released cell that is there, by the released cell's id."""
    matching = Matching(submission.cells, released.cells)
    matching.by_key(lambda cell: own_metadata(cell)["grade_id"], grade_id)
    matching.by_key(lambda cell: cell.get("id"), lambda cell: cell["id"])
    matching.by_key(_id_in_metadata, lambda cell: cell["id"])
    matching.by_text()
    matching.by_names()
    matching.by_place()
    return {
        released.cells[place]["id"]: submission.cells[index]
        for place, index in matching.indices.items()
    }


def own_metadata(cell: NotebookNode) -> dict:
    """A submission's grading metadata for a cell, whatever they are; `grade_id` is a text."""
    own = cell.metadata.get("nbgrader")
    own = own if isinstance(own, dict) else {}
    name = own.get("grade_id")
    return {**own, "grade_id": name if isinstance(name, str) else ""}


def plain(source: str) -> str:
    """`source` without the space at the ends of lines and cell that editors add and remove."""
    return "\n".join(line.rstrip() for line in source.split("\n")).strip("\n")


def defined_names(source: str) -> frozenset[str]:
    """Names that `source` binds at the beginning of a line; it need not be valid Python."""
    return frozenset(name for pair in DEFINED.findall(source) for name in pair if name)


@dataclass
class Matching:
    """Pairs of a submission's cells and released ones; each step adds pairs and takes none back.

    places: for each of `cells`, the index of its released cell if that is known; indices: the inverse.
    """

    cells: Sequence[NotebookNode]
    released: Sequence[NotebookNode]
    places: dict[int, int] = field(default_factory=dict)
    indices: dict[int, int] = field(default_factory=dict)

    def pair(self, index: int, place: int) -> None:
        self.places[index], self.indices[place] = place, index

    def by_key(self, own: Key, original: Key) -> None:
        """Pair cells of the same key; of several such cells the first."""
        wanted = {key: place for place, cell in enumerate(self.released) if (key := original(cell))}
        for index, cell in self._unknown():
            place = wanted.get(own(cell))
            if place is not None and place not in self.indices:
                self.pair(index, place)

    def by_text(self) -> None:
        """Pair cells of the same text: if it stands once, wherever it is; else between known neighbours."""
        wanted, there = defaultdict(list), defaultdict(list)
        for place, cell in self._missing():
            wanted[_text(cell)].append(place)
        for index, cell in self._unknown():
            if _text(cell) in wanted:
                there[_text(cell)].append(index)
        for text, places in wanted.items():
            if len(places) == len(there[text]) == 1:
                self.pair(there[text][0], places[0])
        reach = self._reach()
        texts = {index: text for text, indices in there.items() for index in indices}
        for index in sorted(texts.keys() - self.places.keys()):
            fitting = (place for place in wanted[texts[index]] if place in reach[index])
            place = next(
                (candidate for candidate in fitting if candidate not in self.indices), None
            )
            if place is not None:
                self.pair(index, place)

    def by_names(self) -> None:
        """Pair an exercise with the cell that defines most of its names, best between its neighbours."""
        defining = defaultdict(list)
        for index, cell in self._unknown():
            for name in defined_names(cell.source) if cell.cell_type == "code" else ():
                defining[name].append(index)
        reach = self._reach()
        for place, original in self._answers():
            shared = defaultdict(int)
            for name in defined_names(original.source):
                for index in defining[name]:
                    shared[index] += index not in self.places
            if any(shared.values()):
                rank = {
                    index: (place in reach[index], n, -index) for index, n in shared.items() if n
                }
                self.pair(max(rank, key=lambda index: rank[index]), place)

    def by_place(self) -> None:
        """Pair an exercise with the only cell of its type between its neighbours, if it is the only one."""
        reach = self._reach()
        answers = self._answers()
        fitting = defaultdict(list)
        for index, cell in self._unknown():
            for place, original in answers:
                if place in reach[index] and cell.cell_type == original.cell_type:
                    fitting[place].append(index)
        choices = Counter(index for indices in fitting.values() for index in indices)
        for place, indices in fitting.items():
            if len(indices) == 1 and choices[indices[0]] == 1:
                self.pair(indices[0], place)

    def _unknown(self) -> list[tuple[int, NotebookNode]]:
        return [cell for cell in enumerate(self.cells) if cell[0] not in self.places]

    def _missing(self) -> list[tuple[int, NotebookNode]]:
        return [cell for cell in enumerate(self.released) if cell[0] not in self.indices]

    def _answers(self) -> list[tuple[int, NotebookNode]]:
        """Missing exercises that a student answers. A locked cell would lose the student's text."""
        return [
            (place, cell)
            for place, cell in self._missing()
            if grade_id(cell) and not cell.metadata["nbgrader"]["locked"]
        ]

    def _reach(self) -> dict[int, range]:
        """For each unknown cell, the places between those of its nearest known neighbours."""
        above, last = {}, -1
        for index in range(len(self.cells)):
            last = above[index] = self.places.get(index, last)
        reach, below = {}, len(self.released)
        for index in reversed(range(len(self.cells))):
            below = self.places.get(index, below)
            reach[index] = range(above[index] + 1, below)
        return {index: reach[index] for index, _ in self._unknown()}


def _text(cell: NotebookNode) -> tuple[str, str]:
    return cell.cell_type, plain(cell.source)


def _id_in_metadata(cell: NotebookNode) -> str | None:
    """The place of a cell's id in Colab's files of nbformat 4.0."""
    name = cell.metadata.get("id")
    return name if isinstance(name, str) else None
