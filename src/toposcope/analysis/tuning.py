"""What the analyses were tuned on simulated runs with a known truth, and chosen by taste where nothing decides."""

SEED = 42  # from which every random choice of the analyses derives its own

# Smooth trends and breaks in them: chosen on 13 kinds of smooth curves (docs/methods/phases.md)
MAX_NOISE_CORRELATION = 0.95  # of neighbouring checkpoints; more cannot be distinguished from a trend
MAX_TREND_DEGREE, TIME_SCALES = 6, 7  # of polynomials in log(1 + t / scale), from the first interval to the whole run
MAX_WIDTHS_PER_RUN = 17  # of a sigmoid, which rises from 10% to 90% in 4.4 widths: a quarter of the checkpoints
BREAK_MARGIN, MAX_BREAKS = 3, 6  # checkpoints on either side of a break, and breaks in a trajectory
MIN_NOISE = 0.005  # as a share of the range: smooth curves are not known to fit better than that
NOISE_ROUNDS = 2  # of estimating the noise about the breaks, and the breaks in that noise

# Moves and turns: of 200 series of white noise, fewer than 1 in 10 turn (docs/methods/association.md)
MIN_TURN_SHARE, MIN_TURN_NOISE = 0.2, 4.0  # distance of an extreme from both ends, in ranges and noise deviations
MIN_MOVE_SHARE = 0.1  # a layer that moves less than this share of the most has no first move

# Associations
MIN_VALIDATED_SHARE = 0.9  # share of the checkpoints with a loss that have a validation loss, for it to be the target
POWER_DEGREE, CHECKPOINTS_PER_DEGREE = 6, 8  # of the polynomial in the log of the step that the loss follows
