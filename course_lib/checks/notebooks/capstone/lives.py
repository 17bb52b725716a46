"""A run that was killed and called again: the deeds of its calls, and the cause of wrong losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.checks import kit, words
from course_lib.checks.rank.notebooks.capstone.small_run import undisturbed
from course_lib.checks.rank.notebooks.capstone.surviving import (
    DISK,
    MOST,
    NOTHING,
    CallReply,
    CallScript,
    LifeReply,
    SurvivingReply,
    SurvivingScript,
)

FROM_0 = (
    "After a restart, the batches were counted from 0 again, but a batch has the number of its step, which "
    "is the number of losses so far."
)
LOST = "The losses of the earlier calls are missing, so go on with the list load_run returns."
MORE = "`steps` counts from the start of the run, not from the restart."
TOO_FEW = "The steps ended too early, so go on until there are `steps` losses."
ONE_MORE = "One step was too many, because the run is finished as soon as it has `steps` losses."
IGNORED = (
    "load_run was called, but the run began with step 0 all the same. load_run returns the losses of all "
    "finished steps, so go on after them."
)
NEVER = "The run began with step 0 again. Load the newest checkpoint right after `make` instead."
LATE = "The run was loaded only after a step. Load it right after `make`, before the first step."
ONLY_LAST = "Nothing is saved before the end, so a kill costs the run all of its steps."
NEVER_SAVED = (
    "Nothing is saved. Call save_run after every `every` finished steps, and also after the last step."
)
NOT_LAST = (
    "The last step is not saved. Save after it even if no save is due, so that a longer run can go on from "
    "there."
)
AT_START = "Before the first step there is nothing to save."
TWICE = "Some steps are saved twice, because a save can be due after the last step anyway."
TOO_OFTEN = "A save takes time, so save only if the number of finished steps is a multiple of `every`."
NOT_DUE = (
    "The run went on from a save that was not due. Save only if the number of finished steps is a multiple "
    "of `every`, or equal to `steps`."
)
SHIFTED = "`every` counts finished steps, so count k + 1 after the step with number k."
FROM_RESTART = "`every` counts the finished steps of the whole run, not those since the call began."
STALE = (
    "`held()` returns the pieces as they are now. Call it for each save, because a step can replace its "
    "tensors."
)
NUMBER_FROM_0 = (
    "Steps are numbered from 0, so the next one is batches(len(losses)). Yours began with batches(1)."
)
AGAIN = "`make` builds the run from its start, so call it once, before the first step."
WENT_ON = (
    "A killed process runs no `except` and no `finally`, and it cannot start itself again, so leave the "
    "restart to the program that calls train."
)
IN_THE_STEP = (
    "The save came after the kill. A step that was cut off may have changed its tensors, but its loss is "
    "still missing."
)
NOT_ITS_PIECES = (
    "load_run fills the pieces it is given, so give it the pieces `held()` returns for the run you have "
    "just made."
)
PAIR = "`batches(number)` returns inputs and targets, so hand them to `step` as two arguments."
ORDER = "Give the arguments in the order save_run(disk, losses, pieces)."
CALL_HELD = "`held` is a function, so give load_run and save_run what it returns, held()."
NO_STEP = "The run is finished, so just load it and return its losses."
IN_MEMORY = "A killed process loses its memory, so load the newest checkpoint right after `make`."
SIGNS = {"function": CALL_HELD, "'targets'": PAIR, "'list' object is not a mapping": ORDER}  # in an error
IDEAS = (NEVER, IGNORED, ONLY_LAST, NEVER_SAVED)


@dataclass(frozen=True)
class Call:
    """A call, with its arguments, its kill and its reply.

    expected: the losses of an undisturbed run."""

    script: CallScript
    reply: CallReply
    expected: list[float]
    due: int  # finished steps of the newest checkpoint that there should be

    def numbers(self, what: str) -> list[int]:
        return [number for event, number in self.reply.events if event == what]

    @property
    def saved_its_last(self) -> bool:
        return self.numbers("saved")[-1:] == [self.script.steps]

    @property
    def saved_out_of_turn(self) -> bool:
        """Whether it saved after a step after which no save is due."""
        return any(n % self.script.every and n != self.script.steps for n in self.numbers("saved"))

    def count(self, what: str) -> int:
        return len(self.numbers(what))

    @property
    def endless(self) -> bool:
        return len(self.reply.events) >= MOST

    @property
    def looked_first(self) -> bool:
        """Whether it looked at the disk before the first step. A save looks, too."""
        return self.before_the_first_step("looked")

    @property
    def read_first(self) -> bool:
        """Whether it read a file before the first step, as every load does."""
        return self.before_the_first_step("read")

    @property
    def loaded_its_pieces(self) -> bool:
        """Whether it asked for the run's pieces before it read the first file."""
        kinds = [event for event, _ in self.reply.events]
        return "read" not in kinds or "held" in kinds[: kinds.index("read")]

    @property
    def one_more(self) -> bool:
        """Whether it did one step more than were left, and not all steps of the run."""
        done, losses = self.count("stepped"), self.reply.losses
        goes = losses is not None and len(losses) == self.due + done == self.script.steps + 1
        return goes and done != self.script.steps

    @property
    def stopped_early(self) -> bool:
        """Whether it returned before the run was finished, and no steps were lost."""
        done, losses = self.count("stepped"), self.reply.losses
        return losses is not None and max(len(losses), self.due + done) < self.script.steps

    def before_the_first_step(self, what: str) -> bool:
        kinds = [event for event, _ in self.reply.events]
        steps = kinds.index("stepped") if "stepped" in kinds else len(kinds)
        return what in kinds[:steps]

    @property
    def goes_beyond(self) -> bool:
        """Whether it did more steps than were left, behind those of the checkpoint."""
        done, losses = self.count("stepped"), self.reply.losses
        return self.due > 0 and losses is not None and len(losses) == self.due + done > self.script.steps

    @property
    def resumed(self) -> bool:
        """Whether it went on from the checkpoint, be its losses right or wrong."""
        return self.count("stepped") < self.script.steps or self.goes_beyond

    def begun_anew(self) -> str:
        """The usual cause of steps that were done again; "" if there is none."""
        if self.one_more:
            return ONE_MORE
        if self.goes_beyond:
            return MORE
        if not self.resumed:
            return IGNORED if self.looked_first else NEVER
        return "" if self.looked_first else LATE


@dataclass(frozen=True)
class Life:
    """The calls on one disk."""

    script: SurvivingScript
    reply: LifeReply
    ranks: int = 1

    def calls(self) -> Iterator[Call]:
        newest = 0
        for number, script in enumerate(self.script.calls):
            if number == len(self.reply.calls):
                raise ValueError("the reply lacks a call")
            reply = self.reply.calls[number]
            yield Call(script, reply, undisturbed(self.script.seed, script.steps, self.ranks), newest)
            newest = self.newest_after(script, reply, newest)

    def newest_after(self, script: CallScript, reply: CallReply, before: int) -> int:
        """The finished steps of the checkpoint that is due after a call."""
        what, number = script.dies
        if self.script.sweep or what == DISK:
            alive = reply.events[: len(reply.events) - len(reply.after)]
            return max([before, *(n for event, n in alive if event == "saved")])
        if what == NOTHING:
            return script.steps
        return max(before, number // script.every * script.every)


def lives_of(script: SurvivingScript, reply: SurvivingReply, ranks: int = 1) -> list[Life]:
    return [Life(script, life, ranks) for life in reply.lives]


# ---- findings


def broken(call: Call) -> kit.Finding | None:
    """The finding if the call did not return, and was not killed."""
    reply = call.reply
    if reply.error is not None:
        error, text, place = reply.error
        said = kit.Sentence(
            f"train raised {kit.error_in_full(error, text)}.", f"train raised {kit.error_kind(error)}."
        )
        hint = next((says for sign, says in SIGNS.items() if sign in text), "")
        return kit.wrong(said, kit.at(place) if place else "", hint, cause=f"raised {error} {hint}")
    if call.endless:
        return kit.wrong("train had no end.", WENT_ON if reply.after else "", cause="no end")
    if reply.returned and reply.losses is None:
        kind = "None (is there a `return`?)" if reply.kind == "NoneType" else f"a {reply.kind}"
        said = kit.Sentence(f"train returned {kind}.", "train returned no list of numbers.")
        return kit.wrong(said, "Return the losses of all steps as a list of numbers.", cause="no list")
    return None


def went_on(call: Call) -> kit.Finding:
    """A kill ends the call."""
    reply = call.reply
    if not reply.after and not ("killed" in dict(reply.events) and reply.returned):
        return kit.RIGHT
    saved = any(event == "saved" for event, _ in reply.after)
    stepped = any(event in ("stepped", "batch", "made") for event, _ in reply.after)
    said = "train was killed, but it went on."
    return kit.wrong(said, IN_THE_STEP if saved and not stepped else WENT_ON, cause="went on")


def right_losses(call: Call, when: str) -> kit.Finding:
    """All losses of a call that was not killed, to the last bit."""
    if (finding := broken(call)) is not None:
        return finding
    losses = call.reply.losses
    if losses == call.expected:
        return kit.RIGHT
    if losses is None:
        return kit.wrong(f"{when}, train did not return.", WENT_ON, cause="did not return")
    if len(losses) != len(call.expected):
        said = kit.Sentence(
            f"{when}, train returned {words.counted(len(losses), 'loss')} for "
            f"{words.counted(call.script.steps, 'step')}.",
            f"{when}, train returned more or fewer losses than steps.",
        )
    else:
        pairs = enumerate(zip(losses, call.expected, strict=True))
        first = next(k for k, (loss, other) in pairs if loss != other)
        said = kit.Sentence(
            f"{when}, the loss of step {first} differs from a run that does all steps in order.",
            f"{when}, losses differ from a run that does all steps in order.",
        )
    cause = why(call)
    return kit.wrong(said, cause, cause=cause or "losses", misses_point=cause in IDEAS)


def why(call: Call) -> str:
    """The usual cause of wrong losses."""
    losses, batches = call.reply.losses or [], call.numbers("batch")
    if call.count("made") > 1:
        return AGAIN
    if call.stopped_early:
        return TOO_FEW
    if not call.due and batches[:1] == [1]:
        return NUMBER_FROM_0
    if call.one_more or call.goes_beyond or (call.due and not (call.resumed and call.looked_first)):
        return call.begun_anew()
    if call.due and batches and batches[0] == 0:
        return FROM_0
    if call.due and len(losses) < len(call.expected):
        return LOST
    if call.due and not call.loaded_its_pieces:
        return NOT_ITS_PIECES
    if call.count("saved") and call.count("held") < 1 + call.count("saved"):
        return STALE
    return ""


def repeated(call: Call, otherwise: str = "") -> kit.Finding:
    """A call after a kill does the steps that were not saved, and no other ones.

    otherwise: the mistake of the calls before, told as the cause if this call makes none."""
    if (finding := broken(call)) is not None:
        return finding
    done, left = call.count("stepped"), call.script.steps - call.due
    if done == left and call.due and done and not call.read_first:
        said = "called again, train went on from a checkpoint it did not read."
        return kit.wrong(said, IN_MEMORY, cause=IN_MEMORY, misses_point=True)
    if done == left or (call.reply.losses is None and not call.reply.returned):
        return kit.RIGHT
    said = kit.Sentence(
        f"called again, train did {words.counted(done, 'step')}, "
        f"but {left} of {call.script.steps} were left.",
        "called again, train did more or fewer steps than were left.",
    )
    cause = (call.begun_anew() if call.due or call.one_more else "") or otherwise
    cause = TOO_FEW if call.stopped_early else cause
    return kit.wrong(said, cause, cause=cause or "steps", misses_point=cause in IDEAS)


def saves(call: Call) -> kit.Finding:
    """The saves of an undisturbed call from the start."""
    if (finding := broken(call)) is not None:
        return finding
    every, steps, saved = call.script.every, call.script.steps, call.numbers("saved")
    due = saves_due(call)
    if saved == due:
        return kit.RIGHT
    shown = f"after {words.listing(saved)} steps" if saved else "never"
    said = kit.Sentence(
        f"with every={every}, a run of {steps} steps was saved {shown}.",
        "an undisturbed run was saved after the wrong steps.",
    )
    missed = (cause := why_saved(saved, due, every)) in IDEAS
    cause = TOO_FEW if call.stopped_early else cause
    return kit.wrong(said, cause, cause=cause or "saves", misses_point=missed)


def saves_due(call: Call) -> list[int]:
    """The numbers of finished steps after which a call should save that goes on from its checkpoint."""
    every, steps = call.script.every, call.script.steps
    return [n for n in range(call.due + 1, steps + 1) if n % every == 0 or n == steps]


def why_saved(saved: list[int], due: list[int], every: int) -> str:
    once = list(dict.fromkeys(saved))
    if not once or once == [0]:
        return NEVER_SAVED
    if once == due[-1:] and len(due) > 1:
        return ONLY_LAST
    if once == due:
        return TWICE
    if once[0] == 0 and set(once) - {0} <= set(due):
        return AT_START
    if set(once) == set(due[:-1]):
        return NOT_LAST
    if set(once) > set(due):
        return TOO_OFTEN
    return SHIFTED if every > 1 and once[0] % every else ""
