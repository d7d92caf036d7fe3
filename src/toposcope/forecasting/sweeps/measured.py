"""What each risk lost and saved on sweeps that it was not made on."""

from typing import NamedTuple

from toposcope.forecasting.sweeps.rule import Risk


class Measured(NamedTuple):
    """What was measured of a risk that is asked again and again, with eight workers: docs/findings/sweeps.md."""

    lost: float  # share of sweeps whose best run was stopped, and whose best one left is worse by more than 1%
    low: float  # 95% interval over sweeps
    high: float
    saved: float  # share of all steps
    n_sweeps: int

    def sentence(self, risk: str) -> str:
        """Say what was measured."""
        return (
            f"On {self.n_sweeps} small sweeps {risk} risk lost the best run by more than 1% in {self.lost:.1%} of cases"
            f" (95%: {self.low:.1%} to {self.high:.1%}) and saved {self.saved:.0%} of the steps."
        )


MEASURED: dict[Risk, Measured] = {
    "low": Measured(0.029, 0.007, 0.057, 0.37, 81),
    "medium": Measured(0.132, 0.079, 0.194, 0.49, 81),
    "high": Measured(0.135, 0.076, 0.203, 0.45, 81),
}
