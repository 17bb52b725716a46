"""smallest_failing: the axes that a wrong layout needs, so that it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.checks.notebooks.capstone.searches import (
    EVERY_AXIS,
    NAME,
    SUBSETS,
    Account,
    Axes,
    Search,
    exactly,
    listed,
    needing,
)
from course_lib.checks.rank.notebooks.capstone.searching import SearchInstructions

RECIPE = "course_lib.checks.rank.notebooks.capstone.searching:searches"
POINT = "leaving one axis after the other out of a layout that fails, in few runs"
SOUND = (
    "Ask about `sizes` itself first. If it does not fail, there is nothing to look for, so raise ValueError."
)
REPEATED = "You asked about some layouts more than once, so remember the answers."
COPY = "Work on a copy, such as dict(sizes)."
ONLY_LARGER = "Leave axes of size 1 out of the result."


# ---- lines

Look = Callable[[Account], kit.Finding]


def line(title: str, weight: float, searches: Sequence[Search], look: Look = Account.axes) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        for search in searches:
            finding = look(Account(search, observed.values[0][search.name]))
            if not finding.ok:
                return finding
        return kit.RIGHT

    return kit.Line(title, judge, weight)


def of_results(title: str, weight: float, searches: Sequence[Search], look: Look) -> kit.Line:
    """Judged from the searches that came to a result. To do nothing would be right, too."""

    def judge(observed: kit.Observed) -> kit.Finding:
        accounts = [Account(search, observed.values[0][search.name]) for search in searches]
        ended = [account for account in accounts if account.broken() is None]
        if not ended:
            return accounts[0].broken() or kit.RIGHT
        return next((finding for account in ended if not (finding := look(account)).ok), kit.RIGHT)

    return kit.Line(title, judge, weight, trivial=True)


def telling(made: kit.Line, searches: Sequence[Search]) -> kit.Line:
    """The line; answers that are the other axes of right ones show the exercise's point, too."""

    def shows(observed: kit.Observed) -> float:
        accounts = [Account(search, observed.values[0][search.name]) for search in searches]
        return float(
            all(
                account.reply.result is not None and any(account.search.right(axes) for axes in both(account))
                for account in accounts
            )
        )

    return replace(made, shows=shows)


def both(account: Account) -> tuple[Axes, Axes]:
    return account.named(), account.search.whole - account.named()


def nothing(account: Account) -> kit.Finding:
    """The layout does not fail: ValueError is right."""
    if account.reply.error is not None and account.reply.error[0] == "ValueError":
        return kit.RIGHT
    if account.reply.error is not None and account.reply.error[0] == "AssertionError":
        return kit.wrong(f"{NAME} raised AssertionError, although no layout fails.", SOUND)
    if account.reply.error is not None or account.reply.endless or account.reply.no_sizes:
        return account.broken() or kit.RIGHT
    said = f"{NAME}({account.shown()}, fails) raised no error, although no layout fails."
    return kit.wrong(kit.Sentence(said, f"{NAME} raised no error, although no layout fails."), SOUND)


def form(account: Account) -> kit.Finding:
    """The names, sizes and order of the result."""
    result, sizes = account.reply.result or [], account.search.sizes
    gives = f"{NAME}({account.shown()}, fails) gives {account.shown(result)}"
    if any(size == 1 for _, size in result):
        return kit.wrong(
            kit.Sentence(f"{gives}, with axes of size 1.", "the result has axes of size 1."), ONLY_LARGER
        )
    if any(sizes.get(axis) != size for axis, size in result):
        return kit.wrong(
            kit.Sentence(f"{gives}, with other sizes.", "the result has other sizes."),
            "An axis that is needed keeps the size it has in `sizes`.",
        )
    names = [axis for axis, _ in result]
    if names != [axis for axis in sizes if axis in names]:
        return kit.wrong(
            kit.Sentence(f"{gives}, in another order.", "the result has another order."),
            "Name the axes in the order of `sizes`.",
        )
    return kit.RIGHT


def argument(account: Account) -> kit.Finding:
    """`sizes` is as it was."""
    if not account.reply.changed:
        return kit.RIGHT
    said = kit.Sentence(f"{NAME} changed its argument {account.shown()}.", f"{NAME} changed its argument.")
    return kit.wrong(said, COPY, cause="sizes changed")


def asks(account: Account) -> kit.Finding:
    """The arguments of `fails`: all axes, in order, each with its size or with 1."""
    sizes = account.search.sizes
    for call in account.reply.calls:
        asked = f"`fails` was asked about {account.shown(call)}"
        if [axis for axis, _ in call] != list(sizes):
            missing = [axis for axis in sizes if axis not in dict(call)]
            said = f"without {words.listing(missing)}" if missing else "in another order"
            general = "without some axes" if missing else "in another order"
            sentence = kit.Sentence(f"{asked}, {said}.", f"`fails` was asked about a layout {general}.")
            return kit.wrong(sentence, EVERY_AXIS, cause="axes of fails")
        if odd := [axis for axis, size in call if size not in (1, sizes[axis])]:
            return kit.wrong(
                kit.Sentence(f"{asked}, where {odd[0]} is neither 1 nor {sizes[odd[0]]}.",
                             "`fails` was asked about a size that is neither 1 nor the size in `sizes`."),
                "An axis keeps its size, or it is left out with the size 1.",
            )  # fmt: skip
    return kit.RIGHT


def calls(account: Account) -> kit.Finding:
    """At most a + a^2 of them, since each may be a run."""
    count, most = len(account.reply.calls), account.search.most
    if count <= most:
        return kit.RIGHT
    axes = len(account.search.sizes)
    times = f"`fails` was called {words.times(count)} for {axes} axes"
    said = kit.Sentence(
        f"{times}, but {most} calls are enough.", f"`fails` was called too often for {axes} axes."
    )
    many = len(set(account.asked)) > most
    return kit.wrong(said, SUBSETS if many else REPEATED, misses_point=many)


# ---- the exercise

TORCHTITAN = ("pp", "dp_replicate", "dp_shard", "cp", "ep", "etp", "tp")


def drawn(draw: kit.Draw, *axes: str, ones: str = "") -> dict[str, int]:
    """A layout of these axes; those of `ones` have one rank."""
    return {axis: 1 if axis in ones.split() else draw.choice((2, 3, 4, 8)) for axis in axes}


def case(title: str, searches: Sequence[Search], lines: Sequence[kit.Line]) -> kit.Case:
    instructions = SearchInstructions([search.described() for search in searches])
    return kit.Case(title, [kit.RankSide({}, instructions, {})], list(lines), recipe=RECIPE, alone=True)


@kit.exercise(points=5, objects=(NAME,), references=REFERENCES, point=POINT)
def smallest_failing(draw: kit.Draw) -> Iterator[kit.Case]:
    four = ("pp", "dp", "cp", "tp")
    single = needing("one", drawn(draw, *four, ones="cp"), "dp")
    pair = needing("pair", drawn(draw, *four), "pp tp")
    three = needing("three", drawn(draw, *four), "pp cp tp")
    either = needing("either", drawn(draw, *four), "pp dp", "cp tp")
    sizes = drawn(draw, *four)
    cancel = listed("cancel", sizes, "pp dp cp tp", "pp cp tp", "pp tp", "tp")
    mirror = listed("mirror", sizes, "pp dp cp tp", "pp dp tp", "pp tp", "pp")
    # The first rounds remove an axis each, from whichever end they begin.
    rounds = listed("rounds", sizes, "pp dp cp tp", "pp dp cp", "pp dp", "pp")
    back = listed("back", sizes, "pp dp cp tp", "dp cp tp", "cp tp", "tp")
    anyway = exactly("anyway", drawn(draw, *four, ones="pp"), lambda axes: True)
    sound = listed("sound", drawn(draw, *four))
    many = needing("many", drawn(draw, *TORCHTITAN), "ep etp tp")
    failing = [single, pair, three, either, cancel, mirror, rounds, back, anyway, many]
    lines = [
        line("one axis is to blame", 1, [single]),
        telling(line("two axes that meet", 2, [pair]), [pair]),
        line("three of four axes", 1, [three]),
        line("one pair of axes or another one", 1, [either]),
        line("mistakes that cancel", 1, [cancel, mirror, rounds, back]),
        replace(line("even one rank fails", 1, [anyway]), trivial=True),
        line("a layout that does not fail", 0.5, [sound], nothing),
        of_results("names, sizes and order of the result", 0.5, failing, form),
        of_results("`sizes` is unchanged", 0.5, failing, argument),
        of_results("`fails` is asked about all axes", 0.5, failing, asks),
        of_results("few calls of `fails`", 1.5, failing, calls),
    ]
    yield case("searches", [*failing, sound], lines)
    if draw.hidden:
        alone = {axis: 1 for axis in four}
        more = [
            needing("inner pair", drawn(draw, *four, ones="pp"), "dp cp"),
            needing("five", drawn(draw, "pp", "dp", "ep", "cp", "tp"), "dp tp", "ep cp"),
            needing("reversed", drawn(draw, "tp", "cp", "dp", "pp", ones="dp"), "cp pp"),
            exactly("one rank", alone, lambda axes: True),
        ]
        yield replace(case("more searches", more, [
            line("other layouts", 1, more), of_results("their form", 0.5, more, form),
            of_results("few calls of `fails`, again", 0.5, more, calls),
        ]), hidden=True)  # fmt: skip
