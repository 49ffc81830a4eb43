"""`StrEnum` for programs in a job, which may run with Python 3.10 in a vendor's container."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):  # noqa: UP036 # on some sites, jobs run with an older Python
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):  # noqa: UP042
        """An enumeration with strings as members, as in Python 3.11."""

        __str__ = str.__str__
        __format__ = str.__format__
