"""What was tuned on data: laws of scores, and how evaluations are read."""

import numpy as np

# Scores of tasks: docs/downstream.md; made ladders, and the OLMo ladder without its two targets
SCORE_ERROR, LOSS_ERROR = 0.01, 0.01  # what a law misses a score, and ln of a loss, by: the unit of its residuals
CEILING = (3.0, 1.0)  # prior of the log-odds of the highest score: 95%, one deviation 87 to 98%
MOVEMENT_ERROR = 0.2  # what a law may miss of the change that it predicts from the nearest runs, as a deviation
MIN_DISTANCE = float(np.log(2))  # of held-out runs: nearer errors are noise, and show no drift of the law
CORRECTION_RIDGE = 1e-3  # residuals that together are no larger are no reason to correct others
MIN_GAIN, MIN_FOLD_SHARE = 0.1, 0.75  # by which, and in how many folds, a method must err less to replace the first
MIN_OWN_GAIN = 0.5  # by which it must err less on one task, and in each of its folds, to replace it there
LEAST_ERROR = 0.003  # standard error of a score if nothing is known of its noise
MIN_STANDARD_ERRORS, MIN_ABOVE_CHANCE = 3.0, 3  # by which a score must leave chance, and runs that must
MAX_RESIDUAL, MAX_RESIDUAL_SHARE = 3.0, 0.1  # of a law, in noise and in the range of scores: the runs disagree
MAX_REACH = 2.0  # how far beyond the ladder's compute: so many times what sizes and tokens span, in logarithms
MAX_WIDTH = 0.5  # of an interval, in what is left above chance
MIN_PLATEAU_RISE = 10.0  # deviations of a plateau by which the best score shows that it is chance
MAX_LOSS_REACH = 0.5  # how far a loss may lie outside the losses of the ladder, in units of their range
MAX_MISMATCH, MAX_NAMED_MISMATCH = 0.05, 0.2  # of the ladder's losses from the law of the points; if the user names it

# Evaluations
MIN_CHOICE = 0.05  # chance of a task that is a choice between answers: beyond 1% by far
MIN_KNOWN = 0.5  # of the cells in a column of tasks without a name of one: names of standard tasks or averages
MIN_GROUP_PARTS = 3  # names that begin with a task's, from which on they are its parts: one is another way to ask
MAX_ROUNDING = 1e-3  # of an average and the mean of its parts, relative to the average: both may be rounded
LATER_STAGES = 1.1  # steps until the end of training for each of its first stage: OLMo 2 and 3 have 1.01 to 1.06
MIN_WRITTEN_OUT = 1e5  # numbers from here on are in no unit, whatever their column's name says
