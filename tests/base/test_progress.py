"""The bar appears after its delay, on a terminal only."""

import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from weiss._base.progress import Bar, Remaining, track


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_shown_for_what_is_quick_or_without_a_terminal(monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    delay = 60 if terminal else -1
    items = list(track(((1, item) for item in "abc"), 3, "counting", delay=delay))
    assert items == ["a", "b", "c"]
    with Bar(10, "counting", unit="images", delay=delay) as bar:
        bar.advance(4)
        bar.say("epoch 1 [bold]0.5[/bold]")
        bar.advance(6, "still")
        assert bar.what == "still"
    captured = capsys.readouterr()
    assert captured.out == "epoch 1 [bold]0.5[/bold]\n"
    assert captured.err == ""


def test_a_bar_hides_no_error(capsys):
    with pytest.raises(RuntimeError), Bar(10, "counting", delay=-1) as bar:  # noqa: PT012
        bar.advance(1)
        raise RuntimeError
    assert capsys.readouterr() == ("", "")


BEGIN = """
import sys, time
from weiss._base.progress import Bar
"""


def on_a_terminal(program, *, both):
    """Run a program with standard error (and output, if both) on a pseudo terminal.

    Returns what the terminal was sent, and what standard output got if it was no terminal.
    """
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + program],
        stdin=subprocess.DEVNULL,
        stdout=end if both else subprocess.PIPE,
        stderr=end,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "24"},
    )
    os.close(end)
    sent = bytearray()

    def listen():
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # Linux: the other end is closed
                return
            if not part:
                return
            sent.extend(part)

    thread = threading.Thread(target=listen)
    thread.start()
    out, _ = process.communicate(timeout=60)
    thread.join()
    os.close(terminal)
    assert process.returncode == 0, sent
    return sent.decode(), (out or b"").decode()


def screen(sent):
    """What stands on the terminal in the end: the few control sequences that rich sends, obeyed."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.", sent, re.DOTALL):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d+A", part):
            row -= int(part[2:-1])
        elif part[0] != "\x1b":
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


STEPS = """
with Bar(1000, "training", unit="images", done={done}, delay=-1) as bar:
    for step in range(8):
        time.sleep(0.02)
        bar.advance(50, f"epoch {{step // 4 + 1}}/2")
        if step % 4 == 3:
            bar.say(f"said after epoch {{step // 4 + 1}} [x]" + {more})
{end}
"""
STAY = (
    "bar._bar.stop = lambda: None; bar._bar.refresh(); sys.stderr.flush(); import os; os._exit(0)"
)


def plain(text):
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)


def test_the_bar_shows_speed_and_remaining_time():
    program = STEPS.format(done=500, more="''", end="")
    sent, _ = on_a_terminal(program, both=True)
    said = plain(sent)
    assert "epoch 1/2" in said
    assert "epoch 2/2" in said
    assert "90%" in said
    # 50 in a fiftieth of a second: what was done before the restart is not counted.
    speeds = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) images/s", said)]
    assert speeds
    assert all(0 < speed <= 2510 for speed in speeds)
    assert re.search(r"images/s \d s left", said)


def test_the_bar_counts_down_from_what_is_expected():
    program = "with Bar(10, 'training', delay=-1) as bar:\n"
    program += "    bar.expect(7200)\n    for _ in range(4): time.sleep(0.2); bar.advance(1)\n"
    sent, _ = on_a_terminal(program, both=True)
    assert "1 h 59 min left" in plain(sent)


def test_the_rest_of_many_pieces_takes_as_long_each_as_those_since_the_beginning(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    remaining = Remaining(total=12, done=2)
    assert remaining.in_words(2) == ""  # nothing is known yet
    now[0] += 240
    assert remaining.in_words(4) == ", about 16 min left"  # two minutes each, eight to go
    assert remaining.in_words(12) == ""


def test_the_bar_leaves_the_terminal_and_the_lines_stay():
    program = STEPS.format(done=0, more="'y' * 150", end="print('after')")
    sent, _ = on_a_terminal(program, both=True)
    assert "images/s" in sent
    long = "y" * 150
    lines = [f"said after epoch 1 [x]{long}", f"said after epoch 2 [x]{long}", "after"]
    assert screen(sent) == lines


def test_lines_go_to_standard_output_while_the_bar_is_on_the_terminal():
    program = STEPS.format(done=0, more="''", end="    print('printed')")
    sent, out = on_a_terminal(program, both=False)
    assert out == "said after epoch 1 [x]\nsaid after epoch 2 [x]\nprinted\n"
    assert "images/s" in sent
    assert "said" not in sent


def test_lines_and_warnings_stand_above_the_bar():
    end = "    import warnings; warnings.warn('beware'); " + STAY
    sent, _ = on_a_terminal(STEPS.format(done=0, more="''", end=end), both=True)
    *above, last = screen(sent)
    assert above[:2] == ["said after epoch 1 [x]", "said after epoch 2 [x]"]
    assert any("UserWarning: beware" in line for line in above)
    assert last.startswith("epoch 2/2")
    assert "40%" in last


def test_without_a_unit_there_is_no_speed():
    program = "for _ in track(((1, i) for i in range(3)), 3, 'counting', delay=-1): pass"
    sent, _ = on_a_terminal("from weiss._base.progress import track\n" + program, both=True)
    assert "counting" in sent
    assert "/s" not in plain(sent)
    assert screen(sent) == []
