"""What was tuned on data, or chosen after measurements, in one table: each constant with what it was tuned on.

The published runs are three collections of language models (``mpl``, ``schaipp``, ``xlstm_llama``), the small families
seven kinds of small networks (``benchmarks/small_families.py``), the odd families those of
``benchmarks/forecast_odd_runs.py``. Where no source is named, a value was set once, by looking at runs of its kind.
"""

import numpy as np

# Laws of one run: docs/forecasters.md
LATE_SHARE = 0.7  # late share of what was seen that a law is fitted to; published runs
MAX_SPIKE = 5.0  # times the median of the window; a larger loss counts as this
PRIOR, PRIOR_SPREAD = 0.19, 0.06  # nats, of the gain c of a whole cool-down; published runs
PRIOR_SHARE = PRIOR / 3.1  # of the loss, where it is not in nats: the prior over the usual loss of a language model
MIN_PRIOR_SHARE, MAX_PRIOR_SHARE = 0.015, 0.1  # of the loss: outside, a loss in nats is not that of a language model
MAX_PRIOR_SLOPES = 4.0  # slopes of the run: a larger prior is not of a run that falls as language models do
SLOPE_SHARE, SLOPE_SHARE_SPREAD = 0.5, 0.25  # of the slope: c of any other run; small families
SIBLING_SHARE = 0.9  # late share of a complete sibling that its own coefficients are fitted to
MIN_DECAY = 0.5  # share of the peak: a sibling whose rate falls by less holds no information on c
MIN_SEEN, MIN_DECAY_SEEN = 0.5, 0.5  # shares of the run and of the decay of its rate from which c is fitted
COOLDOWN_DELAY, COOLDOWN_EXPONENT = 0.03, 1.0  # d and b; best of five pairs at 20 and 30% of published runs
MAX_SHAPE_DIFFERENCE = 0.05  # mean difference, over the peak, of two schedules that count as the same
MIN_LEVEL_SPREAD = 0.02  # of the siblings' ln L(f); with less the slope of the template is 1

# The stack: docs/forecasters.md; all on published runs with sizes held out
MAX_DEVIATIONS = 3.0  # standard deviations; features further out are clipped
LEVERAGE_FACTOR = 5.0  # sqrt(1 + 5 leverage) widens intervals; chance alone would ask for 1
MIN_STRENGTH = 3.0  # of the ridge in the leverage
MAX_COUNTED_ERROR = 0.05  # in choosing the strength, an error that is larger counts as this
STACK_SLOPE_SHARE = 0.5  # late share of what was seen over which slopes of features are taken

# Intervals without siblings: docs/methods/forecasting.md
CUTS = (0.3, 0.55, 0.75)  # shares of what was seen from which the run is forecast to the last step seen
UNSEEN = 0.25
"""Half width over ln(T / t) for what nothing before shows: the 90% quantile of what errors were beyond all else, at the
worst fraction, over seven synthetic families and six kinds of small trainings, each counting the same."""
MIN_LANGUAGE_SIZE, MIN_FIRST_LOSS, MAX_FIRST_STEP = 1e7, 6.0, 100
"""Parameters of the language models of the table; the least first loss, in nats per token, of one that learns from
scratch, where its log begins by this step."""
MAX_RANGE = 1000.0  # ends of an interval over each other; a wider one is a refusal; odd families
MAX_RISE, NOISE_RANGE = 1.1, 4.0  # the last level over the lowest, and its noise, beyond which a loss has risen
MAX_SPEED_UP = 2  # of a validation loss that rises
FEW_ROWS_NOISE = 0.1  # share of the loss that the noise of fewer than five rows is taken to be

# Stages and courses that no law describes: docs/methods/forecasting.md; all on odd families
STAGE_WINDOW = 0.08  # share of the rows on either side of a jump to which lines are fitted
MIN_JUMP, JUMP_NOISE = 0.04, 8.0  # of ln(loss), and standard errors of its noise: a new stage
MIN_SUDDEN = 0.5  # share of a jump that three rows on either side show; of a slope less
MIN_JUMP_LEFT = 0.3  # share of a jump that is left at the end; of a spike less
MAX_RATE_JUMP = 0.05  # share of the peak; a larger change of the learning rate explains a jump
MAX_EPOCH_DIFFERENCE = 0.15  # relative, of the distances between the beginnings of epochs
MIN_RISE, RISE_NOISE, MIN_RISES = 0.1, 8.0, 2  # of ln(loss), its noise, and their number: losses that go up and down
MIN_SHARE_ABOVE = 0.3  # share of the blocks in which such a loss lies above its first value
PLATEAU_SHARE, MAX_PLATEAU_CHANGE = 0.3, 0.15  # blocks of a plateau, and its change over the fall after it
MIN_SUDDEN_FALL, MAX_FALL_SHARE = 0.5, 0.3  # that fall in ln(loss), and the share of blocks that it takes

# Logs of one run: docs/forecast.md; 50 published runs and 6,000 pairs of different ones
MAX_CHANCE = 1e-6  # probability that two runs agree by chance in as many rows as two logs of one do
MIN_AGREEING = 0.95  # share of the rows in which logs of one run agree; a row may have been written twice, or damaged
MIN_SEED_DIFFERENCE, MAX_SEED_DIFFERENCE = 2e-4, 2e-3  # share of the loss by which a seed alone changes it
SHARED_NOISE = 0.5  # share of its noise by which a run differs from one of the same batches in the same order

# Scaling laws and decisions: docs/methods/scaling.md, docs/decision.md
EXPONENT_PRIOR = (float(np.log(0.3)), 1.0)  # of ln of an exponent, mean and deviation: 0.1 to 0.8, as published
ASSUMED_SCATTER, ASSUMED_RUNS = 0.005, 2.0  # nats, of runs about their law; degrees of freedom that it counts for
MIN_BOOTSTRAP_RUNS, MIN_CURVES = 10, 30
"""Below the first, laws are drawn from a posterior in place of a bootstrap; below the second, intervals of training
curves cover less than they say: with 22 curves, of those of 95% about 89% held the loss."""
MAX_EXTRAPOLATION = 10.0  # times the compute of the points; beyond, the form of the law itself is in doubt
MAX_SIZE_SPAN = 30.0  # ends of the interval of the best size over each other; beyond, the points do not determine it
MAX_SIZE_RATIO = 1.5  # of the best sizes by two approaches, beyond which they part
CONTINUE_BELOW, SCALE_ABOVE = 0.2, 0.8  # probabilities that scaling wins; undecided between them

# Cool-downs from checkpoints: docs/methods/cool-down.md; on real cool-downs of small GPTs (benchmarks/cooldowns.py)
MAX_COOL_DOWN = 0.2  # share of the steps so far; longer ones were not measured
MAX_RATE_CHANGE = 0.05  # of the learning rate over the window that is merged
TEXT_NOISE = 0.5  # nats times the root of the tokens: of the difference of two models on one text
RISE_ERRORS = 2.0  # standard errors by which a line through losses on the text rises where the run overfits
MAX_WINDOW_LOSS = 0.002  # nats; a window that gains less than its half by more has drifted
COOL_DOWN_LATE_SHARE = 0.5  # of the training losses that the law is fitted to
GAIN_GROWTH = {"linear": 1.0, "1-sqrt": 1.25, "cosine": 1.0}
"""Of the gain over that of merging, times the length over the steps so far; that of a cosine was not measured."""
GAIN_OF_FEW = 0.6  # over the effective checkpoints less one: what merging few of them misses of the gain
COOL_DOWN_ERROR, COOL_DOWN_ERROR_SHARE = 0.008, 0.16  # nats, and share of the merged gain: the half width
AT_LEAST_SHARE = 0.4  # of the merged gain, by which the loss may end lower still where the gain is "at least" this
MAX_STEPS_TO_DECAY = 0.1  # of the steps seen, to a decay that is forecast by its measured gain: near, not at 50%
MIN_KEPT, MAX_KEPT_BY_SQRT = 0.25, 0.42  # mean rate of a decay over its peak: 1/2 if linear, 1/3 if 1 - sqrt
