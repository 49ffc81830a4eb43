"""Sizes and counts that no machine has are refused, before anything is computed with them."""

from __future__ import annotations

import pytest

from runbook.core.units import parse_bytes, parse_count, parse_duration


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_duration])
@pytest.mark.parametrize("text", ["801e400", "1e31", "9" * 400, "9" * 5000])
def test_a_number_beyond_all_machines_is_refused(parse, text):
    with pytest.raises(ValueError, match=r"is not a|Exceeds the limit"):
        parse(text)


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_duration])
@pytest.mark.parametrize("number", [10**400, -(10**400), 10**31])
def test_an_integer_beyond_all_machines_is_refused(parse, number):
    """YAML reads `0o777...` as an integer of any length."""
    with pytest.raises(ValueError, match="more than there is anywhere"):
        parse(number)


def test_separators_keep_every_digit():
    assert parse_count("123,456,789_012,345,679") == 123456789012345679
