"""An interrupt that Python loses, as in a weak reference's callback, is raised after all."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from course_lib import launch
from course_lib.runtime.interrupts import never_lost, raise_lost


class Thing:
    """Something that a weak reference can point to."""


@pytest.fixture
def lose_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function in which SIGINT arrives while a weak reference's callback runs."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    def arrives(_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            continue  # the handler runs between two of these

    def lose() -> None:
        thing = Thing()
        reference = weakref.ref(thing, arrives)
        del thing
        assert reference() is None

    return lose


def test_python_itself_loses_it(lose_an_interrupt: Callable[[], None]) -> None:
    lose_an_interrupt()


def test_a_lost_interrupt_is_raised_at_the_end(lose_an_interrupt: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt), never_lost():
        lose_an_interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with never_lost():
        raise_lost()  # that one is over


def test_a_lost_interrupt_is_raised_by_a_loop_that_asks(
    lose_an_interrupt: Callable[[], None],
) -> None:
    with pytest.raises(KeyboardInterrupt), never_lost():
        lose_an_interrupt()
        with never_lost():
            raise_lost()
        pytest.fail("it was not raised")


def test_an_error_goes_before_a_lost_interrupt(lose_an_interrupt: Callable[[], None]) -> None:
    with pytest.raises(ZeroDivisionError), never_lost():
        lose_an_interrupt()
        raise ZeroDivisionError


def test_another_handler_and_other_threads_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with never_lost():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    entered = []

    def inside() -> None:
        with never_lost():
            entered.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert entered == [before]


def test_a_launch_whose_interrupt_was_lost_ends(
    lose_an_interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks would sleep for a minute; the interrupt is lost while their code is pickled."""

    class Sleeper:
        def __call__(self) -> None:
            time.sleep(60)

        def __reduce__(self) -> tuple:
            lose_an_interrupt()
            return Sleeper, ()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(Sleeper(), world_size=1)
    assert time.monotonic() - began < 50
