"""What is known of the health of a run: a word, a reason, and the checks that it rests on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

GOOD, BAD, OPEN = "good", "bad", "open"
DIVERGED, FAILED, SILENT = "Diverged", "Failed", "Silent"
RESTARTED, STEPPED_UP, SPIKED, RISING = "Back at its start", "Loss stepped up", "Loss spiked", "Loss rises"
OFF_SCHEDULE, NOT_LEARNING, ALERTED = "Rate off its schedule", "Part not learning", "Look at this"
STALLED, PAST_BEST = "Stalled", "Past its best"
FINISHED, HEALTHY, EARLY, UNJUDGED = "Finished", "Healthy", "Too early to say", "Not judged"
WORDS = (
    *(DIVERGED, FAILED, SILENT, RESTARTED, STEPPED_UP, SPIKED, RISING, OFF_SCHEDULE, NOT_LEARNING, ALERTED),
    *(STALLED, PAST_BEST, FINISHED, UNJUDGED, EARLY, HEALTHY),
)
"""The words on a run, the most urgent first."""
TONES = {DIVERGED: "bad", FAILED: "bad", FINISHED: "plain", UNJUDGED: "plain", EARLY: "plain", HEALTHY: "good"}
"""Colours of words; all others are warnings."""
SOUND = (FINISHED, HEALTHY, EARLY, UNJUDGED)
"""Words of runs that need no person; a finished one does not, whatever stood against it."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked for.

    Attributes
    ----------
    mark : str
        `GOOD`, `BAD`, or `OPEN`: neither.
    text : str
        What was seen, in words without a full stop; of a good one what would have been seen.
    word : str
        The word of a run of which this is bad; of one that is not, a name by which it is found.
    detail : str
        A further sentence on what is bad.
    power : float
        The smallest change that would have been named with 90% probability, in the unit of what was looked at; NaN
        where it is a yes or no.
    first, last : int, optional
        Steps of the first and the last look.
    looks : int
        Values that were looked at.
    """

    mark: str
    text: str
    word: str = ""
    detail: str = ""
    power: float = float("nan")
    first: int | None = None
    last: int | None = None
    looks: int = 0


@dataclass(frozen=True)
class Health:
    """The answer on a run.

    Attributes
    ----------
    word : str
        One of `WORDS`.
    reason, detail : str
        Sentences; empty where the word says all.
    checks : sequence of Check
        All that were made.
    kept : str
        Of a finished run, the word that stood against it; else empty.
    """

    word: str
    reason: str = ""
    detail: str = ""
    checks: Sequence[Check] = ()
    kept: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether something was checked, and nothing stands against the run."""
        return self.word == HEALTHY

    @property
    def needs_person(self) -> bool:
        """Whether somebody should look at the run."""
        return self.word not in SOUND

    @property
    def tone(self) -> str:
        """One of good, warn, bad and plain."""
        return "warn" if self.kept else TONES.get(self.word, "warn")

    @property
    def rank(self) -> int:
        """Place among other runs: the lower, the more urgent."""
        return WORDS.index(self.word)

    @property
    def words(self) -> str:
        """The word, of a finished run with what stood against it: ``Finished, past its best``."""
        return f"{self.word}, {self.kept[0].lower()}{self.kept[1:]}" if self.kept else self.word

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, numbers, lists and dictionaries."""
        return asdict(self) | {"words": self.words, "tone": self.tone, "checks": [asdict(c) for c in self.checks]}
