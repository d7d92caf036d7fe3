"""How many examples a property is tried on: a third of them, or all where PROPERTY_EXAMPLES=all (`make properties`).

Hypothesis draws other examples every time, so the quick runs add up to the thorough ones.
"""

import os
from typing import Any

from hypothesis import settings

MIN_EXAMPLES = 10
SHARE = 1 if os.environ.get("PROPERTY_EXAMPLES") == "all" else 3


def examples(count: int, **options: Any) -> settings:
    """Return the settings of a property that is tried on so many examples, or on a third of them."""
    return settings(max_examples=max(min(count, MIN_EXAMPLES), count // SHARE), **options)
