"""Output as people read it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from apps.jobs.logtext import is_error_line, plain, render


def test_a_progress_bar_shows_its_last_state():
    assert plain(b"\r 10%\r 50%\r100%\ndone\n") == "100%\ndone"


def test_colours_become_classes_and_go_on_over_lines():
    first, second, third = render(b"\x1b[31mred\nstill\x1b[0m plain\n\x1b[1;32mbold green")
    assert first.spans == (("ansi-red", "red"),)
    assert second.spans == (("ansi-red", "still"), ("", " plain"))
    assert third.spans == (("ansi-bold ansi-green", "bold green"),)


def test_extended_colours_do_not_leak_their_numbers():
    assert render(b"\x1b[38;5;31mtext\x1b[0m")[0].spans == (("", "text"),)


def test_other_escapes_and_control_characters_do_no_harm():
    assert plain(b"\x1b]0;title\x07a\x1b[2Jb\x00c\x07") == "ab·c·"
    assert plain(b"\xff\xfe") == "\ufffd\ufffd"


def test_a_very_long_line_is_cut_and_says_so():
    text = plain(b"x" * 5000)
    assert text.endswith("(1,000 characters more)")


def test_lines_worth_jumping_to():
    assert is_error_line("RuntimeError: CUDA out of memory")
    assert is_error_line("Traceback (most recent call last):")
    assert not is_error_line("step 10 loss 2.0")


@given(st.binary(max_size=300))
def test_any_bytes_are_harmless(data):
    assert "\x1b" not in plain(data)
