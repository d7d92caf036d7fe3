"""Bounds that were tuned on data, or chosen after measurements; conventions stand next to their use.

The ends of runs were tuned on 350 published loss curves, whole and cut, none of which diverged, and on made-up runs
that do (``tests/logs/test_ends_of_runs.py``); the rest on the logs and tables that the tests of this room write.
"""

# Ends of runs and single bad rows (anomalies)
WINDOW_SHARE, MIN_WINDOW_ROWS = 0.05, 3  # rows of a window, as a share and at least; medians of windows are compared
MIN_ROWS = 20  # with fewer, noise alone may end above where it began; also those from which on a line has a noise
MIN_RISE = 1.1  # last over lowest median of a run that diverged; less may be noise
MIN_FEW_ROWS, FEW_HIGH, FEW_RISE = 5, 3, 3.0  # of a short log: rows, last ones that are high, times the first loss
MIN_FALL = 0.05  # share of the first loss by which a run has learned
MIN_RISE_WITHOUT_FALL, AT_PEAK = 1.4, 0.95  # how far one that has not must rise, and that it must be there
N_BEFORE_ZEROS, MAX_ROUNDED = 5, 5  # losses before zeros, and last places of them from which on 0 is a rounded loss
MIN_ZEROS = 2  # exact zeros that make an end; a tool may write one where nothing was logged
MIN_LEVEL_ROWS = 10  # rows of a log that may have exploded, and of its ends that are compared; of a short log half
SPIKED_SHARE = 0.25  # of the last rows; as many may be low in a run that exploded
NOISE_WIDTH = 4  # standard deviations that rows scatter by
MIN_REGULAR_SHARE = 0.8  # share of equal intervals in a log that is regular
MIN_GAP, MIN_LATE_START = 3, 10  # usual intervals in one that make a gap, and before the first row of a late start

# Losses (cleaning, log)
MAX_ROUND_OFF = 1e-6  # share of the peak by which a learning rate may be negative and count as 0
MAX_NEGATIVE, MIN_MISSING = 0.2, 3  # share of losses that may be slips below 0; last rows of one logged no more
MAX_BARE_COLUMNS = 3  # of a table of steps and losses alone
# 79 published runs of fewer than 60 rows: docs/logs.md
MIN_MEAN_ROWS, LINE_ROWS = 3, 5  # rows with a mean of their own; with fewer, those of a line through the last ones

# The loss to forecast (target)
MIN_VALIDATIONS, MAX_ROWS_EACH = 20, 10
"""Validations in the steps of the plan that make a curve, where each comes with this many training losses at most."""
MANY_VALIDATIONS = 100  # that do next to any number of them: early in a run, two rows do not displace 150
AS_OFTEN = 1.2  # steps between validations, over those between training losses, where both are logged as often
MAX_SINCE = 5  # steps since the last validation, over those between two, in a run that is still validated
AS_DENSE = 0.9  # share of the rows of the loss that is logged most often, by which another is logged as often
MIN_STEP_SHARE, MIN_WHOLE_SHARE = 0.9, 0.5  # share of the rows with a loss that have a step, and of these a whole one

# Steps and restarts (steps)
MAX_TIME_SPAN = 0.25  # share of its first number by which a column of times goes on
MAX_RESTARTS_SHARE = 0.1  # of the rows: where steps go back more often, rows are out of order
N_RESTART_ROWS, MIN_RESTART_ROWS = 5, 3  # rows around a restart whose losses are compared, at most and at least
MIN_RESTART_FALL = 3.0  # median changes from row to row by which a loss falls, where another run may begin
RANK_SHARE, MIN_RANK_STEPS = 0.9, 5  # share of steps with equally many rows, of several processes; steps to judge by

# Runs of a table (run_labels, splitting)
MAX_PARTS, MAX_LABELS, MAX_CANDIDATES = 20, 3, 8  # words for parts of a run; columns that separate runs, and are tried
MAX_REPEATED_SHARE = 0.1  # of the rows that repeat a step: so many resumed runs may leave
MAX_LATE_SHARE = 0.2  # of the shortest run: how much later than the first another run may begin
MIN_BLANK_SHARE, MAX_SHARE_DIFFERENCE = 0.5, 0.1  # rows without a label that are a run: as many, repeating as others do
MIN_RUNS = 3  # rows by whose names, all different, a table of runs is recognised without a column of their states
MAX_DESCENDING_SHARE = 0.2  # of the rows of a log, also of several runs: where steps go back more often, rows are runs
MIN_ASCENDING_SHARE = 0.9  # of JSON's pairs without names: steps nearly all ascend

# Console logs
MAX_UNDER = 3  # lines with numbers below a heading that may be its own
MIN_REPEATS = 3  # lines of a kind that make it a part of the log, where nothing else says so
MAX_BEFORE_END, MIN_ALIKE = 200, 2  # lines before the last by which it is found to be cut, and how many are like it
MAX_UNLABELLED = 0.1  # share of lines without the number of a process, where the others have one
MANY_ALIKE, MAX_SHAPES = 50, 4  # lines of a kind before others are matched as a whole; kinds for which it is worth it
MANY_TEMPLATES, MAX_TEMPLATES = 1000, 20_000  # kinds of lines that are looked at; a log has a few
MIN_MOVES = 0.3  # share of the rows with a loss at which the bar of the training has moved; several may be of one step
BARS_PER_ROW = 1.5  # progress bars for each row with a loss, from which on a bar is drawn anew below the row
MIN_UNREAD, MAX_UNREAD_SHARE = 5, 0.1  # lines with the word loss that are not read, from which on that is said
MIN_DOUBLED = 0.4  # share of lines that say what the one before said, where a tool prints every line twice
MIN_STALE = 0.5  # share of the rows of a validation loss that only repeat the one before, where it is shown again
MIN_NUMBERS = 0.5  # share of the cells of a row of a table that are numbers
MIN_LOSSES = 5  # rows with a loss; with fewer in sentences, there may be more in a table
MAX_STRANGE = 0.1  # share of characters that cannot be printed, in a text; those of another encoding are among them

# Texts
MIN_ZERO_SHARE = 0.4  # of every other byte: where more are zero, two bytes make a character
MAX_CONTROL_SHARE = 0.01  # of control characters in a text, besides zero bytes and those of terminals

# Sizes
MIN_LARGEST = 1e5  # parameters or tokens; all of a table in millions and billions stay below

# Alerts of a run in training, which its monitor raises and the live page explains
MIN_SPIKE_VALUES = 50  # logged values before any is judged
MIN_RATES = 10  # learning rates before any is judged
MIN_LAYER_VALUES = 8  # measurements of a layer before it is judged
FALSE_ALARM_RATE = 1e-5
"""False alarms per step of all checks together, on runs in which only noise changes: one in 100,000 steps."""
