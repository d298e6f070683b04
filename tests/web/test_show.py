"""How values are shown."""

from __future__ import annotations

from decimal import Decimal

import pytest

from apps.web.templatetags.show import hours, number, percent, state


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "—"),
        (0, "0"),
        (999.9806, "1,000"),
        (111937.0295, "112,000"),
        (1.6145, "1.61"),
        (0.00178, "0.00178"),
        (0.0003, "0.0003"),
        (-12.5, "-12.5"),
        (99.96, "100"),
        (1e-9, "1e-09"),
        (3.2e15, "3.2e+15"),
    ],
)
def test_numbers_have_three_significant_digits(value, shown):
    assert number(value) == shown


def test_hours_and_shares():
    assert hours(Decimal("999.980600")) == "1,000"
    assert hours(None) == "—"
    assert (percent(0.034), percent(0.5), percent(None), percent(0)) == ("3.4%", "50%", "—", "0%")


def test_a_state_has_a_colour_a_glyph_and_a_word():
    assert state("failed") == '<span class="chip chip-bad"><span aria-hidden="true">✗</span> failed</span>'
    assert "cancelling …" in state("running", "cancel")
    assert "pending, held" in state("pending", "", True)
    assert "&lt;b&gt;" in state("<b>")
