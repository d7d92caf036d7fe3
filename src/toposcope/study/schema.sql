-- The store of a study. Open it with any SQLite tool, read-only while a runner is at work.
-- seq, and the id of a measurement, count up as rows are written and are never used twice: what is new since a reader
-- looked has a larger one, and a row that is written again gets a new one. Rows that are deleted and not written again
-- raise PRAGMA user_version: what was read before does not count.

CREATE TABLE IF NOT EXISTS meta (
    key   TEXT PRIMARY KEY,                -- schema_version, toposcope, corpus_sha256, text, text_sha256; of a run:
                                           -- ignored, examined, unreachable, monitor, with its name behind
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS runs (
    run          TEXT PRIMARY KEY,
    position     INTEGER NOT NULL,         -- order of declaration
    kind         TEXT NOT NULL,            -- family (trained here), series (found), published (only numbers),
                                           -- live (measured while it trained)
    n_parameters INTEGER,                  -- trainable, tied head once; NULL if unknown
    status       TEXT NOT NULL,            -- running, complete, stopped, diverged, failed, unreachable
    last_step    INTEGER,
    source       TEXT NOT NULL             -- folder, file, hf:owner/name@revisions, or URL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS log (           -- the training log, one row per step
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    run             TEXT NOT NULL,
    step            INTEGER NOT NULL,      -- updates made; the loss is that of the batch of this update
    loss            REAL,                  -- nats per token
    learning_rate   REAL,
    grad_norm       REAL,                  -- L2, before clipping
    tokens          REAL,                  -- seen so far
    flops           REAL,                  -- 6 N D so far
    validation_loss REAL,                  -- on the fixed set; at checkpoints only
    weight_norm     REAL,                  -- L2, of all weights; where a log has it
    UNIQUE (run, step)
);

CREATE INDEX IF NOT EXISTS log_validated ON log (run, step, validation_loss) WHERE validation_loss IS NOT NULL;

CREATE TABLE IF NOT EXISTS log_targets (   -- further losses and accuracies in the log, one row per value
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    run    TEXT NOT NULL,
    step   INTEGER NOT NULL,
    target TEXT NOT NULL,                  -- name of its column in the log
    unit   TEXT NOT NULL,                  -- of a loss: nats, bits, nats per byte, bits per byte, perplexity; accuracy
    value  REAL NOT NULL,
    UNIQUE (run, step, target)
);

CREATE TABLE IF NOT EXISTS log_nan (       -- NaN in the log: there log has NULL, as where nothing was logged
    run  TEXT NOT NULL,
    step INTEGER NOT NULL,
    name TEXT NOT NULL,                    -- a column of log, or a target
    PRIMARY KEY (run, step, name)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS times (         -- when a monitor stored the log up to some steps
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    run     TEXT NOT NULL,
    step    INTEGER NOT NULL,
    seconds REAL NOT NULL,                 -- since 1970
    UNIQUE (run, step)
);

CREATE TABLE IF NOT EXISTS checkpoints (
    run          TEXT NOT NULL,
    step         INTEGER NOT NULL,
    path         TEXT NOT NULL,            -- or hf:owner/name@revision, or a URL; empty if measured in memory
    fingerprint  TEXT NOT NULL,            -- digest of names, sizes and versions of its files
    weights_hash TEXT NOT NULL,            -- of every tensor
    PRIMARY KEY (run, step)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS layers (        -- analysed layers
    run          TEXT NOT NULL,
    step         INTEGER NOT NULL,
    layer        TEXT NOT NULL,
    position     INTEGER NOT NULL,
    role         TEXT NOT NULL,
    n_rows       INTEGER NOT NULL,         -- as stored
    n_columns    INTEGER NOT NULL,
    dtype        TEXT NOT NULL,
    content_hash TEXT NOT NULL,            -- SHA-256 of dtype, shape and bytes
    PRIMARY KEY (run, step, layer)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS evidence (      -- the summary a doctor judges a checkpoint by, made while it was read
    run     TEXT NOT NULL,
    step    INTEGER NOT NULL,
    content BLOB NOT NULL,                 -- MessagePack: see toposcope.integrity.CheckpointSummary
    PRIMARY KEY (run, step)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS findings (      -- what the doctor found when the study was last run
    run        TEXT NOT NULL,
    position   INTEGER NOT NULL,
    check_name TEXT NOT NULL,
    severity   TEXT NOT NULL,              -- fault or note
    steps      TEXT NOT NULL,              -- JSON list
    layer      TEXT NOT NULL,              -- empty: the checkpoint as a whole
    message    TEXT NOT NULL,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS measurements (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice
    run      TEXT NOT NULL,
    step     INTEGER NOT NULL,
    layer    TEXT NOT NULL,                -- or network, pooled
    role     TEXT NOT NULL,
    probe    TEXT NOT NULL,                -- or published: numbers that were published, not measured
    options  TEXT NOT NULL,                -- JSON
    key      TEXT NOT NULL,                -- of the tensors measured, the probe, its version and its options
    flag     TEXT NOT NULL,                -- degenerate, landmarks, or empty
    diagrams TEXT NOT NULL,                -- file of the table diagrams, else under the study's folder; or empty
    UNIQUE (run, step, layer, probe, options)
);

CREATE TABLE IF NOT EXISTS features (
    measurement INTEGER NOT NULL REFERENCES measurements (id) ON DELETE CASCADE,
    statistic   TEXT NOT NULL,
    value       REAL NOT NULL,
    PRIMARY KEY (measurement, statistic)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS diagrams (      -- diagram files of up to 64 KiB; larger ones are under the study's folder
    file    TEXT PRIMARY KEY,              -- as in measurements.diagrams
    content BLOB NOT NULL                  -- safetensors, with a checksum of its own
);

CREATE TABLE IF NOT EXISTS kinds (         -- what each statistic is counted as, as its probe declares it
    probe     TEXT NOT NULL,
    statistic TEXT NOT NULL,
    kind      TEXT NOT NULL,               -- topology, spectrum, norm, loss or control
    PRIMARY KEY (probe, statistic)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS alerts (         -- what a monitor noticed while a run trained
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    run        TEXT NOT NULL,
    check_name TEXT NOT NULL,              -- such as loss spike
    step       INTEGER NOT NULL,           -- at which it was noticed
    since      INTEGER NOT NULL,           -- first step it concerns
    place      TEXT NOT NULL,              -- layer, quantity or rank; empty: the run as a whole
    message    TEXT NOT NULL,
    evidence   TEXT NOT NULL,              -- JSON object of numbers
    UNIQUE (run, check_name, step, since, place)
);

CREATE TABLE IF NOT EXISTS forecasts (      -- of the final loss, made while a run trained
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    run       TEXT NOT NULL,
    step      INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    loss      REAL NOT NULL,               -- nats per token
    low       REAL NOT NULL,               -- the interval is of 90%
    high      REAL NOT NULL,
    advice    TEXT NOT NULL,               -- whether to go on, in a sentence, or empty
    target    TEXT NOT NULL,               -- the loss that it is of: training loss, validation loss
    UNIQUE (run, step)
);

CREATE TABLE IF NOT EXISTS errors (        -- what failed when the study was last run
    run     TEXT NOT NULL,
    step    INTEGER NOT NULL,              -- -1: the run as a whole
    layer   TEXT NOT NULL,
    probe   TEXT NOT NULL,                 -- or train, read, log, published
    options TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (run, step, layer, probe, options)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS checksums (     -- of groups of rows: see toposcope.study.damage
    kind     TEXT NOT NULL,                -- the table of the rows, or that which they belong to
    place    TEXT NOT NULL,                -- run, run and step, or id of a measurement; empty where the kind is one group
    checksum INTEGER NOT NULL,             -- sum of the CRC-32 of the rows
    PRIMARY KEY (kind, place)
) WITHOUT ROWID;
