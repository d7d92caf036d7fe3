"""What the analyses were tuned on simulated runs with a known truth, and chosen by taste where nothing decides."""

import numpy as np

from toposcope.typing import Vector

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

# Runs compared with each other
MIN_LOGGED_SHARE = 0.98  # share of a run's steps up to which a loss is known to count as final
MIN_COMMON_SHARE = 0.5  # common steps, as a share of a run's checkpoints, below which the oddest run is excluded
MAX_CONTROL_DEGREE, RUNS_PER_TERM = 3, 3  # powers of controls are taken out while there are so many runs per term
MAX_BANDS = 4  # peak learning rates are divided into so many bands

# Nested models: chosen on made-up populations (docs/methods/between-runs.md)
MIN_NEARNESS = 0.8  # a run takes part if its latest checkpoint is at this share of the fraction, or later
MIN_KNOWN_SHARE = 0.9  # share of the runs in which a column is known; elsewhere the mean takes its place
MIN_SLOPE_ROWS = 3  # logged losses that a slope takes
MIN_MEAN_ROWS, MEAN_SHARE = 10, 0.1  # rows of the training loss whose mean is its level: the last tenth
NEXT_SHARE = 0.1  # of all steps, in which divergence is looked for
SPIKE_RISE, SPIKE_ROWS = 0.1, 10  # relative rise of the mean of so many logged losses
MIN_PROBABILITY = 0.02  # probabilities are clipped, so that no single run decides the log loss
MAX_SPREADS = 5.0  # robust standard deviations from the median beyond which targets are clipped in fitting
MAX_DEVIATIONS = 3.0  # standard deviations beyond which columns are clipped
STRENGTHS: Vector = 10.0 ** np.arange(-4, 2.25, 0.5)  # of ridges on blocks of rows of length 1, weakest first
INTERCEPT_STRENGTH, SWEEPS = 1e-3, 2  # each strength is chosen so many times given the others
BOOSTED_FRACTIONS, MIN_BOOSTED_RUNS = (0.1, 0.3, 0.7), 50  # boosting takes a hundred times as long as a ridge
BOOSTING_FOLDS = 5
MAX_ROUNDS, LEARNING_RATE, MAX_LEAVES, MIN_LEAF_RUNS = 200, 0.1, 6, 8
STOPPING_SHARE, STOPPING_ROUNDS = 0.2, 10  # rounds end when this share of the runs has not improved for so many
NOISE_LEVELS: Vector = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # of planted features, in residual deviations
MIN_RUNS_OF_SIZE = 5  # sizes of fewer runs count as one where topology is shuffled
