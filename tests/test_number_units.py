"""Impossible sizes and counts are refused before anything is computed with them."""

from __future__ import annotations

import pytest
from suite.messages import refuses

from runbook.core.messages import CoreMessage
from runbook.core.units import UnitError, parse_bytes, parse_count, parse_duration


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_duration])
@pytest.mark.parametrize("text", ["801e400", "1e31", "9" * 400, "9" * 5000])
def test_a_number_beyond_all_machines_is_refused(parse, text):
    with refuses(UnitError, CoreMessage.QUANTITY_TOO_LARGE, text=text[:40]) as refused:
        parse(text)
    assert isinstance(refused.value, ValueError), "pydantic reports no other errors of a value"


@pytest.mark.parametrize("parse", [parse_bytes, parse_count, parse_duration])
@pytest.mark.parametrize("number", [10**400, -(10**400), 10**31])
def test_an_integer_beyond_all_machines_is_refused(parse, number):
    """YAML reads `0o777...` as an integer, however long it is."""
    with refuses(UnitError, CoreMessage.INTEGER_TOO_LARGE, bits=number.bit_length()):
        parse(number)


def test_separators_keep_every_digit():
    assert parse_count("123,456,789_012,345,679") == 123456789012345679
