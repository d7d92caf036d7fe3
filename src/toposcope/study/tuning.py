"""What was chosen by measuring how long studies take: none of it changes a number that a study stores.

The times are those of one core of a desktop machine, to a factor of two; `docs/scale-out.md` says how work is divided.
"""

# how work is divided: starting, sending and writing a task costs about a millisecond
BATCH_SECONDS = 1.0  # expected seconds of the layers in one task; a layer that takes longer is a task by itself
MANY_LAYERS = 20_000  # more are in longer tasks, as each task rewrites the diagrams of those before
LONG_TASK_MS = 10_000  # a task that takes longer starts before all others, so that it does not run alone at the end
MAX_GROUPED = 64  # tasks that a process gets at once, and whose results are written in one transaction
MAX_GROUP_MS = 1000  # their expected milliseconds; a task that takes longer is handed out by itself
GROUPS_PER_WORKER = 8  # groups of tasks for each process, at least, so that the processes finish together

# what work is expected to take
BYTES_READ_PER_MS = 100_000  # read, hashed and summarised for the doctor
LAYER_MS = 0.3  # of a layer, for each probe, whatever its size: calls, statistics, rows of the store
OPENING_MS = 2  # to open a checkpoint, and for each probe on it, whatever its size
START_SECONDS = 2.0  # to start processes, each with its imports
COMPILE_MS = 8000  # to compile the kernels, once on a machine
OPENING_THREADS = 8  # remote checkpoints whose headers are fetched side by side: servers refuse many more
MANY_CHECKPOINTS = 500  # from so many on, the doctor is worth the start of further processes
MAX_OPEN_CHECKPOINTS = 64  # checkpoints whose headers a process keeps

# the store
MAX_ROW_BYTES = 1 << 16  # a diagram file up to this size is a row, which SQLite writes sooner than the system a file
ROWS_READ = 1 << 16  # rows that are Python objects at a time, as SQLite hands them out
MAX_MEASUREMENTS = 1 << 13  # measurements of a part of a frame, each with about ten statistics
