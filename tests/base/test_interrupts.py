"""A signal is a request that a loop grants when it is ready; the second one interrupts at once."""

import os
import signal
import threading

import pytest

from weiss._base.interrupts import StopRequest

BOTH = [signal.SIGINT, signal.SIGTERM]


def handlers():
    return [signal.getsignal(number) for number in BOTH]


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_signal_is_a_wish_and_the_second_one_is_not_waited_for(first, second):
    before = handlers()
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:  # noqa: PT012
        assert not stop.wanted
        os.kill(os.getpid(), first)
        assert stop.wanted
        os.kill(os.getpid(), second)
        pytest.fail("a second signal must interrupt")
    assert handlers() == before


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_signals_are_left_to_those_who_had_them(error):
    before = [signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)]
    try:
        try:
            with StopRequest():
                assert signal.SIG_IGN not in handlers()
                if error:
                    raise error
        except (RuntimeError, KeyboardInterrupt) as caught:
            assert type(caught) is error  # noqa: PT017
        assert handlers() == [signal.SIG_IGN, before[1]]
    finally:
        signal.signal(signal.SIGINT, before[0])


def test_one_inside_another_takes_the_signal_and_gives_it_back():
    before = handlers()
    with StopRequest() as outer:
        with StopRequest() as inner:
            os.kill(os.getpid(), signal.SIGINT)
        assert (inner.wanted, outer.wanted) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.wanted
    assert handlers() == before


def test_in_a_thread_it_listens_to_nothing_and_disturbs_nobody():
    before, seen = handlers(), []

    def work():
        with StopRequest() as stop:
            seen.append((stop.wanted, handlers() == before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]
    assert handlers() == before
