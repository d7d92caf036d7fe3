"""The doctor's thresholds, chosen on real trainings and on made-up ones that were damaged (docs/doctor.md).

``benchmarks/doctor.py`` repeats the measurement on thirty kinds of small trainings; those of even number chose them.
"""

# The grid of steps
MAX_END = 3  # spacings from the first step, or to the last, past which a single step is on no grid
MIN_POINTS = 5  # of a piece: four equal distances, or four doublings, are no coincidence
MIN_COVERAGE = 0.85  # share of the steps on pieces, for a series to be judged by its grid
MAX_ROUNDED_SPACING = 2  # largest spacing that the rounding of a logarithmic grid can produce
MAX_SPACING_CHANGES = 200  # a series whose spacing changes more often has no grid

# Counters saved in checkpoints
MIN_COUNTED = 3  # checkpoints that hold a counter
COUNTER_TOLERANCE, MIN_COUNTER_TOLERANCE = 0.1, 2.0  # off its pace, relative and in all: steps that a scaler skips
RESTART_COST, JUMP_COST = 0.5, 3.0  # of a counter that begins again, or falls otherwise, in wrong checkpoints
UNEVEN_COST = 0.9  # of an interval off the pace: two of them are dearer than one wrong checkpoint
MIN_EVEN_SHARE = 0.6  # of the intervals that keep the pace, for it to be a rule

# The log next to the series
MIN_LOGGED = 4  # checkpoints that can be compared with the log
MIN_TIMES = 2.9  # how many times longer than its log a run is whose steps count something else
LOG_TOLERANCE = 1e-3  # relative, of what was logged: its last digit
MAX_OFF_TIMES = 0.02  # relative, of the ends of series and log from a multiple: one may count the other's parts
MIN_UNIT = 3  # power of ten of a unit of rates, such as thousandths; ten times a rate is another rate
MIN_RELATED = 0.5  # correlation of losses that are surely of one run
MAX_CHANCE_FALL = 2.0  # of their correlation times the root of their number; 1 in 40 of a part of the same batches
MAX_NOISE_RATIO = 3.0  # of variances; of two runs of one kind it is 1, and of 10 losses below 3 in 19 of 20
MAX_OTHER_LEVEL = 0.25  # relative difference of the median losses of two runs of one kind

# Tensors that are the same at two steps
MIN_VECTOR_SHARE = 0.9  # share of a float32 vector's values that change in every interval between its equals
MIN_VECTOR_VALUES = 4  # of such a vector
MIN_VECTOR_CHANGES = 20.0  # values that change in lower precision, where one may stay by rounding: exp(-20) by chance
MIN_FROZEN = 3  # checkpoints over which a frozen layer is the same
MIN_EXPECTED_CHANGES = 50.0  # values of an unchanged matrix that should have changed: exp(-50) by chance
MIN_STAY = 2  # checkpoints for which a layout lasts on either side of a change of plan

# Values: zeros, constants, rounding
MIN_ROUNDED_VALUES = 16  # different values of a sketch; of full precision, one in 4,096 each looks rounded to float16
MIN_ZERO_SHARE, MIN_ZEROS = 0.1, 4  # of a sketch that become zero where no row or column does
MIN_SIZE = 64.0  # root mean square of a matrix not rounded to zero, in units of its dtype's smallest number

# One value that stands alone; in real trainings the ratio reaches 1.5 and the movement 2
MIN_OUTLIER_RATIO = 2.0  # to the second largest of its tensor, and to the largest before and after
MIN_OUTLIER_MOVEMENT = 6.0  # beyond those, in units of the furthest movement of any other value of the sketch
MIN_OUTLIER_RATIO_ONE_SIDED = 5.0  # at the last checkpoint, and where the value stays
MIN_OUTLIER_MOVEMENT_ONE_SIDED = 20.0
MIN_OUTLIER_RATIO_OF_FEW = 20.0  # to all other checkpoints, of a tensor of few values; its square at the last
REACHED_QUANTILE = 0.9  # of the second largest magnitudes over the series: what training reaches is no outlier

# Step 0
MAX_NORM_SPREAD = 0.01  # relative range of a norm's weight, which begins constant and moves little in a warm-up
MIN_ODD_SHARE = 0.5  # share of the tensors that do not look initialised: a few may come from elsewhere
MIN_DISTANCE_RATIO = 0.8  # distance to the last checkpoint over that to the next; 1 for noise about a fixed point
MIN_ALIKE = 0.5  # cosine of the median matrix with the next checkpoint's where training goes on from it; 0 for others

# Histories of tensors
MIN_HISTORY, MIN_SKETCH = 5, 16  # checkpoints, and values of a sketch; of fewer, a walk often comes back
NEARBY = 4  # checkpoints on either side that something is compared with
MAX_STRETCH = 64  # largest lag, in checkpoints, at which distances are compared
MAX_CHANCE = 1e-3  # series in which chance alone makes a tensor seem off its path, or checkpoints swapped
MAX_DIRECTIONS = 5  # main directions of a tensor's moves that are looked beyond
MIN_AGREEING = 3  # tensors that agree where each of them shows less
MIN_MATRICES = 6  # needed for a median over the matrices
MIN_WALKING = 0.8  # squared distance over two intervals over the sum of both: 1 for a walk, 1/2 for noise

# Off the path: distance from the neighbours over that between them; 1/2 straight on, 1/sqrt 2 for a walk, 1 for noise
MIN_DETOUR = 2.0
MIN_DETOUR_OF_MOST = 1.25  # of the median over the matrices, which scatters less
CORRELATION_LOSS = 0.5  # share of the neighbours' correlation lost too, where a matrix does not walk
MIN_LOUDNESS = 2.0  # or a detour relative to all but one nearby; a learning rate that is high stays so for a while

# Swapped checkpoints: how many times shorter the path past them is in the other order
MIN_GAIN = 1.2  # 5/3 for neighbours of a random walk, 3 for straight movement, at most 1 in the right order
MIN_GAIN_OF_EACH = 1.1  # at each of the two checkpoints
MAX_LAG = 160  # checkpoints between two that are swapped; those further apart are each off the path

# Checkpoints made of others
MIN_OF_LINE = 4  # checkpoints among which a line is judged
MIN_SHARE = 0.01  # of the way between two checkpoints, that another on their line is from either
MAX_COPY = 1e-3  # distance of a copy with noise, in units of the smallest move nearby; schedules reach a tenth
MAX_OFF_LINE = 1e-4  # squared distance from the line through both neighbours, relative to that nearby

# The weights of another run from some step on
MAX_UNRELATED = 0.15  # correlation that counts as none: 256 independent values give 0.06
MIN_SPEED_UP = 6.0  # how many times faster than nearby, per step, a correlation falls; restarts do not do that
MAX_DIVERGED = 3.0  # factor beyond which weights have diverged rather than been replaced
MIN_BROKEN_SHARE = 0.2  # share of the matrices, and `MIN_AGREEING` at least, that lose their correlation
MIN_LEAP = 4.0  # how much further than in any other interval as long most matrices move in a leap

# One matrix replaced; real trainings lose 0.2, made-up ones of much noise 0.9, fresh values more than 2
MIN_LOSS = 1.0  # fall of the logarithm of the correlation, beyond that of the norms' ratio
MIN_ALONE = 4.0  # over the loss of the median matrix in the same interval
MAX_SHARED_MOVE = 2.0  # movement of the median matrix then, over its largest nearby: a kick moves all
MIN_OWN_LEAP = 3.0  # or its movement over any nearby, and over the median matrix's; a thawed layer reaches 1.8
MIN_LEAP_SHARE = 0.25  # of its norm, that it moves; step sizes of their own (Rprop) reach 0.12
MAX_SHARED_LEAP = 1.5  # what the median matrix moves then
MIN_KEPT = 0.5  # share of its variance that a matrix keeps in every interval nearby; small fast ones do not
MIN_CORRELATION = 0.05  # below it, correlations are all alike
MIN_IN_PLACE = 4  # of the largest values, in the places that a permutation or a transposition puts them
MAX_SAME_CHANGE = 0.1  # of norm and largest values of a matrix whose values are the same in other places

# A multiple, at one checkpoint or from some step on
MIN_STRETCH = 4.0  # growth beyond the median nearby, over the furthest nearby; real trainings reach 3
MIN_PURITY = 5.0  # a lasting scaling that most tensors do not share, over the rest of the movement
MAX_SCALED_REST = 1.8  # or what else the matrix moves, in units of the median nearby, where it grows by
MIN_GROWTH = 0.035  # of the logarithm of the norm, beyond the median nearby, and the others go on
MIN_FACTOR = 1e-3  # below it, factors are all alike
