"""The valid names that are most similar to a misspelled one."""

import difflib
from collections.abc import Sequence


def nearest_names(
    word: str,
    names: Sequence[str],
    count: int = 3,
    likeness: float = 0.6,
) -> list[str]:
    """Return the names most similar to `word`, best first.

    >>> nearest_names("tenser", ["tensor", "pipeline"])
    ['tensor']
    """
    by_lower = {name.lower(): name for name in names}
    return [
        by_lower[name]
        for name in difflib.get_close_matches(word.lower(), list(by_lower), count, likeness)
    ]
