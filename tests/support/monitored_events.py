"""Events as a monitor passes them on."""

from toposcope.monitor.events import Alert, Forecasted, Measured


def measured(step: int, value: float = 1.5) -> Measured:
    """A measurement of the network and of one layer."""
    return Measured(
        step,
        {
            ("network", "rips"): {"total persistence": value},
            ("network", "training"): {"gradient_norm": 2 * value, "weight_norm": 3 * value},
            ("layers.0.attn.weight", "rips"): {"total persistence": value},
        },
        ["distances: over budget"],
    )


def alert(step: int, kind: str = "loss spike") -> Alert:
    """An alert about the loss."""
    return Alert(kind, step, step - 1, "loss", f"The loss rose to nan at step {step}.", {"value": float("nan")})


def forecasted(step: int) -> Forecasted:
    """A forecast."""
    return Forecasted(step, 1000, 2.5, 2.4, 2.7, "Go on.")


NETWORK_NAMES = {
    "toposcope/network/rips/total_persistence",
    "toposcope/network/training/gradient_norm",
    "toposcope/network/training/weight_norm",
}


def ignored(seconds: float) -> None:
    """Do nothing with what a sink took."""
