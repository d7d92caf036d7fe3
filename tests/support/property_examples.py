"""How many examples a property is tried on, and how often a slow test is repeated: a part, or all of them.

All where PROPERTY_EXAMPLES=all, as in `make properties` and every night. Hypothesis draws other examples every time, so
the quick runs add up to the thorough ones.
"""

import os
from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import settings

Case = TypeVar("Case")
MIN_EXAMPLES = 10
THOROUGH = os.environ.get("PROPERTY_EXAMPLES") == "all"
SHARE = 1 if THOROUGH else 3


def examples(count: int, **options: Any) -> settings:
    """Return the settings of a property that is tried on so many examples, or on a third of them."""
    return settings(max_examples=max(min(count, MIN_EXAMPLES), count // SHARE), **options)


def repeated(cases: Iterable[Case], few: int = 1) -> list[Case]:
    """Return the first few cases of a slow test, or all of them."""
    return [*cases] if THOROUGH else [*cases][:few]
