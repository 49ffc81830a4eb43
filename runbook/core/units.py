"""Parses numbers with units as people write them (4TiB, 300B tokens, 00:30:00), and formats them."""

import itertools
import math
import re

from runbook.core.messages import CoreMessage
from runbook.plan_file.errors import CodedError

GIB = 2**30
"""Bytes per GiB."""
DAY_SECONDS = 86_400.0
GIGABYTE = 10**9
_BINARY = {
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": GIB,
    "TiB": 2**40,
    "PiB": 2**50,
}
_DECIMAL = {
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "B": 1,
}
_COUNT = {
    "": 1,
    "K": 10**3,
    "k": 10**3,
    "M": 10**6,
    "B": 10**9,
    "G": 10**9,
    "T": 10**12,
}
_SECONDS = {
    "": 1,
    "s": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,4}):(\d{2})(?::(\d{2}))?")
_MOST = 10**30


class UnitError(CodedError, ValueError):
    """Raised if a string is not a number with a unit, or if the number is too large."""


def parse_bytes(text: str | int) -> int:
    """Return the bytes that `4TiB`, `900 GB` or a plain number stands for.

    >>> parse_bytes("4TiB"), parse_bytes("1.5 GB"), parse_bytes(512)
    (4398046511104, 1500000000, 512)
    """
    return _scaled(text, _BINARY | _DECIMAL | {"": 1}, "a size such as 4TiB, 900GB or 1048576")


def parse_count(text: str | int) -> int:
    """Return a count such as `300B` (tokens, samples, parameters: powers of a thousand).

    >>> parse_count("300B"), parse_count("1.5M"), parse_count("12")
    (300000000000, 1500000, 12)
    """
    return _scaled(text, _COUNT, "a count such as 300B, 1.5M or 12000")


def parse_duration(text: str | int | float) -> int:
    """Return the seconds that `00:30:00`, `1-12:00:00` (days), `90m`, `2h` or a number stands for.

    >>> parse_duration("00:30:00"), parse_duration("1-12:00:00"), parse_duration("90m")
    (1800, 129600, 5400)
    >>> parse_duration("02:00")
    7200
    """
    if isinstance(text, float) and math.isfinite(text):
        return int(text)
    if isinstance(text, str):
        clock = _CLOCK.fullmatch(text.strip())
    else:
        clock = None

    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        if minutes > 59 or seconds > 59:
            raise UnitError(CoreMessage.MINUTES_OVER_59, text=text)
        return days * 86400 + hours * 3600 + minutes * 60 + seconds

    return _scaled(text, _SECONDS, "a duration such as 00:30:00, 1-12:00:00, 2h or 90m")


def clock_seconds(text: str) -> int:
    """Convert a scheduler's time limit to seconds; 0 if there is none or the text is not a time.

    >>> [clock_seconds(text) for text in ("00:05:00", "2-00:00:00", "30", "5:00", "1-2")]
    [300, 172800, 1800, 300, 93600]
    >>> clock_seconds("UNLIMITED"), clock_seconds("")
    (0, 0)
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return 0
    days, first, second, third = (int(part or 0) for part in match.groups())
    # days-hours[:minutes[:seconds]], hours:minutes:seconds
    if match[1] or match[4]:
        return days * 86400 + first * 3600 + second * 60 + third
    return first * 60 + second  # minutes[:seconds]


def _scaled(text: str | int | float, units: dict[str, int], expected: str) -> int:
    """Return a number times its unit.

    Raise `UnitError` if the text is not the `expected` quantity.
    """
    if isinstance(text, str):
        return _scaled_text(text, units, expected)
    # YAML also allows .inf, .nan and integers too long for a float.
    if isinstance(text, int) and abs(text) > _MOST:
        raise UnitError(CoreMessage.INTEGER_TOO_LARGE, bits=text.bit_length(), expected=expected)

    if isinstance(text, float) and math.isfinite(text) and not text.is_integer():
        raise UnitError(CoreMessage.NOT_A_WHOLE_NUMBER, text=text, expected=expected)
    is_number = isinstance(text, int | float) and not isinstance(text, bool)
    if not is_number or not math.isfinite(text):
        raise UnitError(CoreMessage.NOT_A_QUANTITY, text=text, expected=expected)
    return int(text)


def _scaled_text(text: str, units: dict[str, int], expected: str) -> int:
    match = _NUMBER.fullmatch(text)
    if not match or match[2] not in units:
        raise UnitError(CoreMessage.NOT_A_QUANTITY, text=text, expected=expected)
    unit = units[match[2]]
    digits = match[1].replace(",", "").replace("_", "")
    if float(digits) > _MOST:
        raise UnitError(CoreMessage.QUANTITY_TOO_LARGE, text=text[:40], expected=expected)
    if digits.isdigit():
        return int(digits) * unit
    return round(float(digits) * unit)


def show_bytes(count: float) -> str:
    """Return bytes in the binary unit that is easiest to read.

    >>> show_bytes(2_444_621_856_768), show_bytes(512), show_bytes(68_719_476_736)
    ('2.22 TiB', '512 B', '64.0 GiB')
    """
    return _in_unit(count, _BINARY) or f"{count:.0f} B"


def show_count(count: float) -> str:
    """Return a count with K, M, B or T.

    >>> show_count(64_633_856), show_count(174_615_846_912), show_count(999)
    ('64.6 M', '175 B', '999')
    """
    return _in_unit(count, {name: _COUNT[name] for name in "KMBT"}) or f"{count:.0f}"


_NO_TIME = 1e-9
"""Times that differ by less than this many seconds differ only by floating-point rounding."""


def show_duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> show_duration(-5.551e-17), show_duration(0.0004)
    ('0 s', '0.0004 s')
    >>> show_duration(0.25), show_duration(75), show_duration(5400), show_duration(180000)
    ('0.25 s', '1 min 15 s', '1 h 30 min', '2 d 2 h')
    """
    if abs(seconds) < _NO_TIME:
        return "0 s"
    if abs(seconds) < 0.01:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{_three_digits(seconds)} s"
    units = [(86400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    pairs = itertools.pairwise(units)
    (big, big_name), (small, small_name) = next(pair for pair in pairs if seconds >= pair[0][0])
    whole, remainder = divmod(seconds, big)
    text = f"{whole:.0f} {big_name}"
    if remainder >= small:
        text += f" {remainder // small:.0f} {small_name}"
    return text


def show_clock(seconds: int) -> str:
    """Format a duration as queues expect it.

    >>> show_clock(5400), show_clock(360000)
    ('01:30:00', '100:00:00')
    """
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


def four_digits(value: float) -> float:
    """Return a value rounded to four significant digits."""
    return float(f"{value:.4g}")


def show_quantity(name: str, value: float) -> str:
    """Return a number in the unit that its name states.

    Bytes and seconds are shown in the most readable unit, counts with grouped digits, and other
    numbers with four digits.

    >>> show_quantity("memory of a node (B)", 3718430392), show_quantity("seconds_per_iteration", 24.71584)
    ('3.46 GiB', '24.7 s')
    >>> show_quantity("parameters", 64633856), show_quantity("first_loss", 10.825839875788878)
    ('64,633,856', '10.83')
    >>> show_quantity("tokens_per_second", 123456.7), show_quantity("bus_bytes_per_second", 302392634.457)
    ('123,500', '288 MiB/s')
    """
    if isinstance(value, bool) or not math.isfinite(value):
        return str(value)
    if "bytes" in name or name.endswith("(B)"):
        return show_bytes(value) + ("/s" if name.endswith("per_second") else "")
    if name.startswith("seconds") or name.endswith(
        (" seconds", "_seconds", "(s)", "(s/iteration)")
    ):
        return show_duration(value)

    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if abs(value) >= 1000:
        return f"{four_digits(value):,.0f}"
    return f"{value:.4g}"


def show_device_hours(hours: float) -> str:
    """Return device time in the unit that is easiest to read.

    >>> show_device_hours(0.0091), show_device_hours(4321.5)
    ('0.55 device-minutes', '4,322 device-hours')
    """
    if hours < 1:
        return f"{_three_digits(hours * 60)} device-minutes"
    return f"{show_quantity('', hours + 0.0)} device-hours"


def show_change(ratio: float) -> str:
    """Describe how a value has changed: in percent, or as a factor if it at least doubled.

    >>> show_change(1.125), show_change(28.4), show_change(0.435)
    ('+12.5%', '28.4 x', '-56.5%')
    """
    return f"{ratio:.3g} x" if ratio >= 2 else f"{ratio - 1:+.1%}"


def in_words(name: str) -> str:
    """Return the name to show for a result.

    The unit is left out if the value already shows it.

    >>> in_words("tflops_per_device"), in_words("checkpoint (B)"), in_words("seconds_per_iteration")
    ('TFLOP/s per device', 'checkpoint', 'time per iteration')
    """
    text = re.sub(r" \((?:B|s|s/iteration)\)$", "", name.replace("_", " "))
    for plain, better in (("tflops", "TFLOP/s"), ("mfu", "MFU"), ("seconds", "time")):
        text = re.sub(rf"\b{plain}\b", better, text)
    return text


def unit_of(name: str) -> str:
    """Return the unit in a name if its value does not show it, or else an empty string.

    >>> unit_of("throughput (tokens/s)"), unit_of("memory (B)"), unit_of("iterations")
    ('tokens/s', '', '')
    """
    return in_words(name).partition(" (")[2].removesuffix(")")


def _in_unit(count: float, units: dict[str, int]) -> str:
    """Return the rounded number in the largest unit that fits, or an empty string if none does.

    >>> units = {"B": 10**9, "T": 10**12}
    >>> _in_unit(999_700_000_000, units), _in_unit(999_400_000_000, units)
    ('1.00 T', '999 B')
    """
    reached = []
    for name, size in units.items():
        if abs(count) >= size * _REACHED:
            reached.append(f"{_three_digits(count / size)} {name}")

    return reached[-1] if reached else ""


_REACHED = 0.9995
"""A number is shown in a unit if it is at least this share of the unit.

With three digits, 999.7 B would be shown as 1000 B, which is 1.00 T.
"""


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
