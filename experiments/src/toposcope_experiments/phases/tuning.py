"""What smooth trends and breaks in them were tuned on: 13 kinds of smooth curves (experiments/docs/phases.md)."""

SEED = 42  # from which every random choice derives its own
MAX_NOISE_CORRELATION = 0.95  # of neighbouring checkpoints; more cannot be distinguished from a trend
MAX_TREND_DEGREE, TIME_SCALES = 6, 7  # of polynomials in log(1 + t / scale), from the first interval to the whole run
MAX_WIDTHS_PER_RUN = 17  # of a sigmoid, which rises from 10% to 90% in 4.4 widths: a quarter of the checkpoints
BREAK_MARGIN, MAX_BREAKS = 3, 6  # checkpoints on either side of a break, and breaks in a trajectory
MIN_NOISE = 0.005  # as a share of the range: smooth curves are not known to fit better than that
NOISE_ROUNDS = 2  # of estimating the noise about the breaks, and the breaks in that noise
