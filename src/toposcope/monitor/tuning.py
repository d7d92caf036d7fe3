"""Constants of the monitor that were tuned on data, or chosen after measurements, with what they were chosen on."""

# Alerts: chosen on 21 families of synthetic noise and checked on 15 others, by ``benchmarks/false_alarms.py``; the
# rates of false alarms and the faults found are in ``docs/methods/monitor.md``.

MAX_TAIL_COUNT = 4096  # values after which all weights of a tail are halved, so that it follows slow changes
MIN_TAIL_WEIGHT = 0.3  # least weight of a bin; halved below it, the bin is emptied
TAIL_SHARES = {0.4: 12, 0.15: 25}  # shares of the values to which a tail is fitted -> least number of values for each
N_STANDARD_ERRORS = 1.0  # standard errors added to the fitted shape of a tail
MIN_OVER_LARGEST = 1.3  # least limit relative to the largest value so far

MIN_SPIKE_UNITS = 8.0  # least height of a spike in units of noise, however regular the stream
N_SPIKE_LEVEL = 7  # values whose median is the level; few, so that trends and slow waves do not count as noise
N_SPIKE_NOISE = 64  # differences between consecutive values whose median absolute value is the unit of noise
MIN_CHANGES = 10  # nonzero differences from which the rounding of a stream is estimated
MIN_TYPICAL = 0.05  # least unit of noise as a share of the mean difference, for streams that rarely change
MAX_EXCURSION = 16  # values above the level after which an excursion counts as another, so that a trend has a tail
SPIKE_RECOVERY = 8  # normal values after the first alert before another
RECOVERED = 0.5  # share of a spike's height below which a value has recovered
MAX_RAISED = 100  # raised values after which they become the new level
MAX_EXCLUDED_SPIKES = 2  # spikes that are excluded from the noise; further ones count as noise of the stream
N_BLOCK = 16  # values per block, whose median is stored as a past level
PAST_FRACTION = 4  # a spike exceeds all levels since this fraction of the steps: a return to them is no spike

# Early warnings: windows as chosen by ``toposcope early-warnings`` on half of its kinds of trouble, at the pace of the
# monitor; their rates, in ``checks.py``, are of 1, 3 and 10 in 100,000 the largest that raised no alarm in its 1.1
# million quiet steps, and at most two where the log has every second to tenth step.
RISE_STEPS = (16, 256)  # over which the mean of gradient norms is taken, and the median that it is compared with
GROWTH_STEPS = (1, 64)  # the same of weight norms
MIN_RISE_MEAN, MIN_RISE_LEVEL = 2, 16  # values of these windows, unless one of a step
MAX_GAP_GROWTH = 1.5  # factor on the interval between measurements above which the noise is another

MIN_RATE_RISE = 3.2  # factor over the highest earlier rate; constant warm-ups end with a factor of 3
MIN_RATE_FALL = 20.0  # factor below the previous rate; step schedules divide by 10 at most
MIN_SPEED_RATIO = 10.0  # change per step relative to the fastest earlier change in the same direction
MIN_RATE_SHARE = 0.1  # least fall as a share of the highest rate, so that the end of a decay is not a jump
MAX_RATE_INTERVAL = 0.05  # longest interval between two rates as a share of the steps; longer ones hide any schedule
RATE_RECOVERY = 8  # normal values after the first alert before another
FINITE_RECOVERY = 8  # finite values before another alert, doubled each time: mixed precision overflows at times
MIN_HALF_WIDTHS = 3.0  # least rise of a forecast, in upper half-widths of the earlier intervals

N_LEVEL = 3  # measurements whose median is the level of a layer; few, so that a trend does not count as noise
N_LONG = 15  # measurements of the long median, so that the return from an excursion is not a deviation
N_NOISE = 64  # differences between consecutive measurements whose median absolute value is the noise of a layer
POOLED_WEIGHT = 8  # weight of the median noise of all layers, in differences, if it exceeds the layer's own
MIN_UNITS = 8.0  # least deviation of a layer, in units of noise
MIN_MEASUREMENTS = 4  # measurements whose largest deviation is known before any layer is judged
MAX_FAULTY = 10  # consecutive faulty measurements of a layer after which they become its new level
MAX_EXCLUDED_ALERTS = 2  # alerts whose deviations are excluded from the noise; those of further ones count as noise

RISE_TAIL_INDEX = 2.0  # index of the heaviest tail of rises: that of Student's t with 2 degrees of freedom
FALL_TAIL_INDEX = 1.0  # index of the tail of falls, for values with a density near 0
DEAD_TAIL_INDEX = 3.0  # index of the tail of rises of the share of dead units, which is bounded
MIN_LEVEL_NOISE = 0.005  # floor of the noise estimate of norms and ranks, relative to the level
MIN_STOP_NOISE = 0.02  # the same for gradients and updates
MIN_DEAD_NOISE = 0.005  # floor of the noise estimate of the share of dead units
MIN_GRADIENT_SPIKE = 3.0  # least factor by which a layer's gradient norm must rise to be a spike
MIN_RANK_COLLAPSE = 1.4  # least factor by which a layer's stable rank must fall to be a collapse
MIN_NORM_RISE = 1.25  # least factor by which a layer's weight norm must rise for an alert
MIN_STOP_FALL = 30.0  # factor by which a gradient or an update must fall, relative to other layers
MIN_DEAD_RISE = 0.1  # least rise of the share of dead units
MAX_TRANSIENTS = 2  # transient zeros after which zeros must last twice as long to raise an alert, and so on
MAX_NORMAL_FALL = 6.0  # deepest transient fall, in units of noise, with which a single 0 is an alert
MIN_NOISE_VALUES = 16  # values from which the noise of a layer is known well enough for that

# Looks at the parameters: exact zeros and signs, which have no noise; chosen so that what passes by itself is learnt
# first, of blocks dropped at random and experts without tokens (``tests/monitor/test_looks.py``).
MIN_FAULTY_LOOKS, MIN_UPHILL_LOOKS = 2, 4  # looks in a row that show a fault
MIN_LOOKS = 6  # looks from which on that many suffice, and of what was zero from the beginning
PASSED_LOOKS = 3  # times as many looks as a fault lasted that passed by itself, and one more
MIN_DEAD_JUMP, MIN_DEAD_RANGES = 0.25, 2.0  # rise of the share of dead units over its highest; in ranges of it so far
MIN_MOVED = 0.5  # share of the weights of the median matrix that a step changes, where one that changes none is frozen
MIN_UPHILL = 0.2  # least cosine between step and gradient of a step uphill: three deviations of random directions
LOOK_SHARE = 0.2  # share of the budget that looks may take

# Steps of the loss that last: chosen on ``benchmarks/false_alarms.py``, where nearly all that is left are losses that
# jump at each epoch. Rows of a block, and the least rise in units of the scatter of blocks.
LOSS_STEPS = ((16, 6.0), (32, 5.0))
N_NEW, N_PAST, MIN_PAST = 4, 12, 8  # blocks after the step, blocks before it at most, and at least
PAST_STEP_FRACTION = 2  # a step exceeds all levels since this fraction of the rows
MIN_LOSS_STEP, MIN_NEW_SHARE = 0.02, 0.25  # least relative step, and the share of it above all levels before
MIN_DRIFT_ROWS, MAX_DRIFT_ROWS, MIN_DRIFT_AFTER = 30, 512, 4  # rates before any is judged, in memory, after its rise
DRIFT_CHECKS = 25  # times that a log is looked at while its rows double, about

MIN_GROWTH = 5.0  # growth over the highest level of the first half; updates add up to 4 under a linear warm-up
MIN_ACCELERATION = 1.5  # that growth relative to the range over the second quarter of the run, in logarithms
MIN_GROWTH_NOISE = 0.001  # floor of the noise estimate of slowly growing norms, relative to the level
MIN_GROWTH_UNITS = 8.0  # that growth in units of the noise
MIN_GROWTH_MEASUREMENTS = 32  # measurements before growth is judged
LEVEL_EVERY = 4  # measurements from one stored level to the next

LOOK_BACK = 500  # steps after a spike in which no early warning is raised

# The budget: chosen on ``benchmarks/monitor.py`` and on simulated runs; ``docs/methods/monitor.md``.

MAX_REGULAR = 500  # measurements after which the interval doubles, and again each time the run has doubled in length
STEPS_PER_DECADE = 20  # log-spaced steps per decade
SAFETY_FACTOR = 2.0  # a measurement starts if this many times its expected cost is affordable, since times vary
FIRST_SAFETY_FACTOR = 5.0  # the same for the first measurement of a layer, whose expected cost is an estimate
MAX_STEP_FACTOR = 20  # a step longer than this many median steps counts as one: it contains an evaluation or the like
N_MEDIAN_STEPS = 64  # the median step time is taken of this many steps, and updated as often
MIN_COST_RATIO = 0.7  # an expected cost falls to no less than this share of itself from one measurement to the next
MAX_WAIT = 10  # due steps that a probe waits to afford all layers; beyond that, it measures a few at a time, in turn
LOG_SHARE = 0.25  # share of the budget that log rows may take
FIRST_ROW_SECONDS = 50e-6  # expected cost of a row before any was written
SMOOTHING = 0.2  # weight of the last write in the moving average of the cost of a row

# Forecasts: how often they are made, and from how much.

FORECAST_SHARE = 0.6  # share of the budget that is set aside for forecasts, as far as the next one needs it
FORECAST_SECONDS, SIBLING_SECONDS = 0.02, 0.006  # expected CPU time of a forecast, and of each sibling in one
MIN_FORECAST_ROWS = 8  # losses that a forecast needs
FORECAST_SPACING = 0.05  # share of the planned steps from one forecast to the next; the first is made at it or twice it
RETRIES = 5  # attempts in that time while a forecast is refused, of a run whose end is planned
MAX_FORECAST_ROWS = 128  # rows of the log that are used; a longer log is averaged over blocks of rows
MAX_READING_SECONDS = 2.0  # time to read siblings' logs before each forecast
MAX_SIBLINGS = 32  # most recent sibling folders that are read
MAX_SIBLING_ROWS = 1500  # rows of a sibling's log
MIN_POINTS = 6  # complete runs that advice on whether to continue needs
RESAMPLES = 40  # bootstrap resamples of their scaling law
