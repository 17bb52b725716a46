"""commit, newest: a save that may be cut off at any moment, by the end of the program or of the power."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.rank.notebooks.in_operation.cutting import (
    Files,
    Operation,
    after,
    cached,
    carry_out,
    states,
)
from course_lib.checks.rank.notebooks.in_operation.saving import (
    Loaded,
    SavingInstructions,
    ScriptInstructions,
    ScriptReply,
)
from course_lib.operation.disk import Disk

RECIPE = "course_lib.checks.rank.notebooks.in_operation.saving:scripts"
POINT = (
    "a checkpoint that appears in one step and only when its bytes are on the disk, so that a save can be "
    "cut off anywhere"
)
REMOVED = (
    "The old checkpoint was gone before the new checkpoint was complete. Remove it last, or leave it, "
    "because older checkpoints can stay."
)
IN_PLACE = (
    "A file of the old checkpoint was overwritten in place. Instead, write under another name, then let one "
    "rename put the new file in its place."
)
NOT_WHOLE = (
    "The file that tells `newest` of a checkpoint existed before the checkpoint was complete. First write "
    "all parts, then the file that names them, under a name that newest does not read. Then one rename, in "
    "one step, makes a checkpoint of them."
)
UNSYNCED = (
    "A name can reach the disk before its bytes, so sync each file before the rename that makes it count."
)
NAMES = (
    "The names in a folder have to be synced as well, but sync(name) does not do this. Call sync_folder() "
    "before commit returns."
)
LEFTOVERS = (
    "Files left by an interrupted save must not disturb the next save. They can have the same names, and "
    "there can be parts of more ranks. So load only the parts in your own list, and overwrite or avoid the "
    "rest."
)
NO_NEWEST = "A later step has to win. Compare steps as numbers, because as text '9' comes after '10'."
OLD_STEP = "A later save of the same step must replace the checkpoint."
EMPTY = "On a disk without a checkpoint, `newest` must return None."
NO_RETURN = (
    "newest returned None, although a checkpoint was saved. Does it end in a `return`, and does what it "
    "looks for still exist when commit ends?"
)
NOT_WRITTEN = (
    "commit wrote nothing to `disk`. Save each part with disk.write(name, data), because `disk` is a model "
    "in memory and does not see files that Python opens."
)
FORM = (
    "newest returns (step, parts), a number and a dict of bytes. Without a checkpoint, it returns None "
    "instead."
)
DRAFT = "`newest` reads a draft, so the rename decides nothing. Give the draft a name that `newest` ignores."
OTHER_DISK = (
    "The returned step was never saved on this disk. Read only `disk`, because a program that starts again "
    "has forgotten everything else."
)
IDEAS = (REMOVED, IN_PLACE, NOT_WHOLE, DRAFT)

Save = tuple[int, dict[str, bytes]]


@dataclass(frozen=True)
class Story:
    """Saves, one after the other, of which the last is cut off; again: the save after each cut."""

    name: str
    saves: tuple[Save, ...]
    again: Save | None = None

    def described(self) -> ScriptInstructions:
        saves = [digits(save) for save in self.saves]
        return ScriptInstructions(self.name, saves, self.again and digits(self.again))

    @property
    def before(self) -> Save | None:
        return self.saves[-2] if len(self.saves) > 1 else None


def digits(save: Save) -> tuple[int, dict[str, str]]:
    return save[0], {name: data.hex() for name, data in save[1].items()}


def drawn(draw: kit.Draw, step: int, *names: str, size: int = 24) -> Save:
    """A save whose parts have bytes that no other save has, the first and the last of a part not 0."""
    return step, {
        name: bytes((draw.distinct(size, low=1, high=251) + 0).tolist()) if size else b"" for name in names
    }


# ---- what came back


def holds(loaded: Loaded, save: Save | None) -> bool:
    """Whether this save was loaded, whole."""
    if loaded.error is not None or loaded.misfit:
        return False
    if save is None:
        return loaded.step is None
    return loaded.step == save[0] and loaded.parts == digits(save)[1]


@dataclass(frozen=True)
class Cut:
    """A save that was cut off after `done` operations, in one state; loaded: by `newest`, there."""

    world: str
    done: int
    files: Files
    loaded: Loaded


class Unreadable(Exception):
    """The reply is not that of the operations that it lists."""


@dataclass(frozen=True)
class Account:
    """A story and the rank's reply about it."""

    story: Story
    reply: ScriptReply

    def start(self) -> Files:
        """The files before the last save."""
        files: Files = {}
        for operations in self.reply.saves[:-1]:
            files = cached(after(files, operations))
        return files

    @property
    def operations(self) -> list[Operation]:
        return self.reply.saves[-1]

    def cuts(self, world: str, again: bool = False) -> Iterator[Cut]:
        """Of all states that the operations make; Unreadable if the rank looked at others."""
        reported = (self.reply.again if again else self.reply.cut).get(world, [])
        if len(reported) != len(self.operations) + 1:
            raise Unreadable
        start = self.start()
        for done, numbers in enumerate(reported):
            possible = list(states(start, self.operations, done, world))
            if len(possible) != len(numbers):
                raise Unreadable
            for files, number in zip(possible, numbers, strict=True):
                if number >= len(self.reply.outcomes):
                    raise Unreadable
                yield Cut(world, done, files, self.reply.outcomes[number])

    def first_harm(self, world: str, empty: Loaded) -> Cut | None:
        """The first cut after which something else was loaded than the save before or this one."""
        new, old = self.story.saves[-1], self.story.before
        for cut in self.cuts(world):
            returned = cut.done == len(self.operations)
            if holds(cut.loaded, new) or (not returned and holds(cut.loaded, old)):
                continue
            if old is None and not returned and alike(cut.loaded, empty):
                continue  # there is no checkpoint, and `newest` says so in the way that another line judges
            return cut
        return None


def alike(loaded: Loaded, empty: Loaded) -> bool:
    """Whether it says what was said of an empty disk."""
    if loaded.error is not None and empty.error is not None:
        return loaded.error[0] == empty.error[0] and loaded.error[2] == empty.error[2]
    return loaded == empty


# ---- words


def named(operation: Operation) -> str:
    method, arguments = operation
    if method == "write":
        arguments = arguments[:1]
    return method if not arguments else f"{method} {' to '.join(map(repr, arguments))}"


def under_way(account: Account, cut: Cut) -> bool:
    """Whether a write was cut off in its middle."""
    whole = cached(after(account.start(), account.operations[: cut.done]))
    return cut.world == "killed" and cut.files != whole


def ended(account: Account, cut: Cut) -> kit.Sentence:
    """When the save was cut off."""
    done = account.operations[: cut.done]
    if cut.done == len(account.operations):
        how = "commit returned, then the program was killed" if cut.world == "killed" else ""
        return kit.Sentence(
            how or "commit returned, then the power failed", how or "the power failed after commit"
        )
    how = "the program was killed" if cut.world == "killed" else "the power failed"
    if under_way(account, cut):
        return kit.Sentence(f"{how} during {named(account.operations[cut.done])}", f"{how} during a write")
    place = f"after {named(done[-1])}" if done else "before the first operation"
    return kit.Sentence(f"{how} {place}", f"{how} during a save")


def outcome(loaded: Loaded, story: Story) -> tuple[str, str]:
    """The words for a result of `newest`, with values and without."""
    new, old = story.saves[-1], story.before
    if loaded.error is not None:
        kind, text, _ = loaded.error
        who = "commit" if loaded.saving else "newest"
        return f"{who} raised {kit.error_in_full(kind, text)}", f"{who} raised {kit.error_kind(kind)}"
    if loaded.misfit:
        return f"newest returned {loaded.misfit}", "newest returned something in another form"
    if loaded.step is None:
        return "newest found no checkpoint", "newest found no checkpoint"
    if holds(loaded, old):
        return f"newest returned step {loaded.step}", "newest returned the previous checkpoint"
    for step, parts in (new, *([old] if old else [])):
        if loaded.step == step:
            return f"newest returned step {step} {with_parts(loaded, digits((step, parts))[1])}", (
                "newest returned a checkpoint that was never saved"
            )
    return f"newest returned step {loaded.step}, which was not saved", "newest returned another step"


def with_parts(loaded: Loaded, parts: dict[str, str]) -> str:
    if missing := sorted(parts.keys() - loaded.parts.keys()):
        return f"without {words.listing(map(repr, missing))}"
    if more := sorted(loaded.parts.keys() - parts.keys()):
        return f"with {words.listing(map(repr, more))}, which this step does not have"
    return "with bytes that were never saved under this step"


def why(account: Account, cut: Cut) -> str:
    """The usual cause, from what the save has done to which files."""
    start = account.start()
    carried = account.operations[: cut.done + (cut.world == "killed")]
    over = {arguments[0] for method, arguments in carried if method == "write"} & start.keys()
    gone = gone_from(start, account.operations[: cut.done])
    lost = cut.loaded.step is None or cut.loaded.error is not None
    if another_disk(cut.loaded, account.story):
        return OTHER_DISK
    if cut.world in ("killed", "names") and cut.done < len(account.operations):
        if gone and lost:
            return REMOVED
        if over:
            return IN_PLACE
        done = account.operations[: cut.done + under_way(account, cut)]
        return DRAFT if done and done[-1] in drafts(account.operations) else NOT_WHOLE
    if cut.world == "names":
        return NAMES
    if cut.world == "killed":
        return ""
    return UNSYNCED if torn(account, cut) else NAMES


def torn(account: Account, cut: Cut) -> list[str]:
    """Names of files whose bytes are not all on the disk."""
    cache = cached(after(account.start(), account.operations[: cut.done]))
    return [name for name, data in cut.files.items() if name in cache and cache[name] != data]


def names_before_bytes(account: Account, cut: Cut) -> bool:
    """Whether a torn file is synced only later, or no file is. An answer without one sync knows the order."""
    synced = [arguments[0] for method, arguments in account.operations if method == "sync"]
    later = [arguments[0] for method, arguments in account.operations[cut.done :] if method == "sync"]
    return not synced or any(name in later for name in torn(account, cut))


def drafts(operations: Sequence[Operation]) -> list[Operation]:
    """The writes of files that are renamed later."""
    renamed = {arguments[0] for method, arguments in operations if method == "rename"}
    return [each for each in operations if each[0] == "write" and each[1][0] in renamed]


def another_disk(loaded: Loaded, story: Story) -> bool:
    """Whether a step was loaded that no save of the story has."""
    steps = {step for step, _ in (*story.saves, *([story.again] if story.again else []))}
    return loaded.step is not None and loaded.step not in steps


def gone_from(start: Files, operations: Sequence[Operation]) -> set[str]:
    """Names of files that were there and were removed or renamed, with none of the name since."""
    disk, gone = Disk(start), set[str]()
    for operation in operations:
        carry_out(disk, operation)
        if operation[0] in ("remove", "rename") and operation[1][0] in start:
            gone.add(operation[1][0])
    return gone - set(disk.names())


# ---- findings


class Judge:
    """The stories of a case. empty: the result of `newest` on an empty disk."""

    def __init__(self, observed: kit.Observed, first: Story):
        self.observed = observed
        reply = observed.values[0][first.name]
        cut = reply.cut.get("killed", [])
        known = bool(cut and cut[0] and cut[0][0] < len(reply.outcomes))
        self.empty = reply.outcomes[cut[0][0]] if known else Loaded()

    def account(self, story: Story) -> Account:
        return Account(story, self.observed.values[0][story.name])

    def plain(self, story: Story) -> kit.Finding:
        """Without a cut: each save is loaded after it was made."""
        reply = self.account(story).reply
        if reply.error is not None:
            return raised("commit", *reply.error)
        if len(reply.loaded) != len(story.saves) or len(reply.saves) != len(story.saves):
            return unreadable()
        for k, (loaded, save) in enumerate(zip(reply.loaded, story.saves, strict=True)):
            if holds(loaded, save):
                continue
            if loaded.error is not None:
                return raised("newest", *loaded.error)
            if loaded.misfit:
                said = f"newest returned {loaded.misfit}."
                return kit.wrong(
                    kit.Sentence(said, "newest returned something in another form."), FORM, cause=FORM
                )
            does, general = outcome(loaded, replace(story, saves=story.saves[: k + 1]))
            said = kit.Sentence(f"step {save[0]} was saved, but {does}.", f"after a save, {general}.")
            older = k > 0 and holds(loaded, story.saves[k - 1])
            same = k > 0 and save[0] == story.saves[k - 1][0]
            hint = (OLD_STEP if same else NO_NEWEST) if older else OLD_STEP if same else ""
            wrote = any(method == "write" for operations in reply.saves for method, _ in operations)
            hint = (NO_RETURN if wrote else NOT_WRITTEN) if loaded.step is None else hint
            hint = OTHER_DISK if another_disk(loaded, story) else hint
            return kit.wrong(said, hint)
        return kit.RIGHT

    def cut(self, story: Story, world: str) -> kit.Finding:
        """Cut off everywhere, in this world; a failure in a simpler world is the cause."""
        if not (finding := self.plain(story)).ok:
            return finding
        account = self.account(story)
        simpler = {
            "killed": (),
            "bytes": ("killed",),
            "names": ("killed",),
            "power": ("killed", "bytes", "names"),
        }
        try:
            if account.first_harm(world, self.empty) is None:
                return kit.RIGHT
            for each in (*simpler[world], world):
                if (harm := account.first_harm(each, self.empty)) is not None:
                    return self.harmed(account, harm)
        except (Unreadable, OSError, ValueError):
            return unreadable()
        return kit.RIGHT

    def harmed(self, account: Account, cut: Cut) -> kit.Finding:
        does, general = outcome(cut.loaded, account.story)
        when = ended(account, cut)
        said = kit.Sentence(f"{when}, and {does}.", f"{when.general}, and {general}.")
        cause = why(account, cut)
        missed = cause in IDEAS or (cause == UNSYNCED and names_before_bytes(account, cut))
        return kit.wrong(said, cause, cause=cause or does, misses_point=missed)

    def again(self, story: Story) -> kit.Finding:
        """After each cut another save is made, and loaded."""
        if not (finding := self.plain(story)).ok:
            return finding
        account = self.account(story)
        assert story.again is not None
        try:
            for world in ("killed", "power"):
                for cut in account.cuts(world, again=True):
                    if holds(cut.loaded, story.again):
                        continue
                    does, general = outcome(cut.loaded, replace(story, saves=(*story.saves, story.again)))
                    when = ended(account, cut)
                    said = kit.Sentence(
                        f"{when}, and step {story.again[0]} was then saved again, but {does}.",
                        f"{when.general}, and a step was then saved again, but {general}.",
                    )
                    cause = OTHER_DISK if another_disk(cut.loaded, story) else LEFTOVERS
                    return kit.wrong(said, cause, cause=cause)
        except (Unreadable, OSError, ValueError):
            return unreadable()
        return kit.RIGHT

    def nothing(self, story: Story) -> kit.Finding:
        """An empty disk."""
        if not (finding := self.plain(story)).ok:
            return finding
        if holds(self.empty, None):
            return kit.RIGHT
        does, general = outcome(self.empty, story)
        return kit.wrong(
            kit.Sentence(f"the disk was empty, but {does}.", f"the disk was empty, but {general}."),
            OTHER_DISK if another_disk(self.empty, story) else EMPTY,
        )


def raised(who: str, error: str, text: str, place: str) -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten(who, place)
    said = kit.Sentence(
        f"{who} raised {kit.error_in_full(error, text)}.", f"{who} raised {kit.error_kind(error)}."
    )
    return kit.wrong(said, kit.at(place) if place else "", cause=f"{who} raised {error}")


def unreadable() -> kit.Finding:
    return kit.wrong("the reply does not match the operations it lists.", cause="other states")


# ---- the exercise


@kit.exercise(points=15, objects=("commit", "newest"), references=REFERENCES, point=POINT)
def commit(draw: kit.Draw) -> Iterator[kit.Case]:
    two, three = ("rank0", "rank1"), ("rank0", "rank1", "rank2")
    early = draw.integer(1, 5)
    late = early + draw.integer(1, 4)
    first = Story("first", (drawn(draw, early, *two),), drawn(draw, early, *two))
    second = Story("second", (drawn(draw, early, *two), drawn(draw, late, *three)), drawn(draw, late, *two))
    ten = Story("ten", (drawn(draw, 9, *two), drawn(draw, 10, *two)))
    replaced = Story("replaced", (drawn(draw, late, *two), drawn(draw, late, *two)))
    odd = Story("odd", ((late, {**drawn(draw, 0, "pp0/tp1")[1], "empty": b""}),))
    stories = [first, second, ten, replaced, odd]

    def line(title: str, weight: float, *parts: tuple[Story, str]) -> kit.Line:
        def look(observed: kit.Observed) -> kit.Finding:
            judge = Judge(observed, first)
            for story, what in parts:
                ask = {"plain": judge.plain, "again": judge.again, "nothing": judge.nothing}.get(what)
                finding = ask(story) if ask else judge.cut(story, what)
                if not finding.ok:
                    return finding
            return kit.RIGHT

        return kit.Line(title, look, weight)

    def not_essential(line: kit.Line) -> kit.Line:
        return replace(line, judge=lambda observed: replace(line.judge(observed), misses_point=False))

    lines = [
        line("a save is loaded again", 1.5, (first, "plain"), (second, "plain")),
        line("an empty disk", 0.5, (first, "nothing")),
        line("killed in the first save", 1, (first, "killed")),
        kit.telling(line("killed in the second: the old checkpoint or the new one", 2.5, (second, "killed"))),
        line("the power fails: bytes", 2, (first, "bytes"), (second, "bytes")),
        line("the power fails: names", 2, (first, "names"), (second, "names")),
        line("every power failure", 1.5, (first, "power"), (second, "power")),
        line("after each of them, another save", 1.5, (first, "again"), (second, "again")),
        line("step 10 after step 9", 1, (ten, "plain")),
        not_essential(line("a step that is saved again", 1, (replaced, "plain"), (replaced, "power"))),
        line("a name with '/', and a part without bytes", 0.5, (odd, "plain"), (odd, "power")),
    ]
    yield case("saves", stories, lines)
    if draw.hidden:
        steps = islice((early * k for k in (1, 10, 100)), 3)
        many = Story(
            "three", tuple(drawn(draw, step, *three, size=6) for step in steps), drawn(draw, 999, "one")
        )
        large = Story("large", (drawn(draw, 99_999_999, "one"), drawn(draw, 100_000_000, "one")))
        zero = Story("zero", (drawn(draw, 0, "one"), drawn(draw, 1, "another")))
        more = [
            line("three saves", 1, (many, "plain"), (many, "power"), (many, "again")),
            line("step 100,000,000", 0.5, (large, "plain")),
            line("step 0, and parts of other names", 0.5, (zero, "plain"), (zero, "power")),
        ]
        hidden = [first, many, large, zero]
        yield replace(case("more saves", hidden, [not_essential(each) for each in more]), hidden=True)


def case(title: str, stories: Sequence[Story], lines: Sequence[kit.Line]) -> kit.Case:
    instructions = SavingInstructions([story.described() for story in stories])
    sides = [kit.RankSide({}, instructions, {})]
    return kit.Case(title, sides, list(lines), recipe=RECIPE, alone=True)
