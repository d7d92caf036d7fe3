"""JSON files of losses as people dump them beside a console log, with the truth of what they say."""

import json

from console_runs import Console, ConsoleLog, Run, writers


def bare_list(run: Run) -> ConsoleLog:
    log = Console("JSON, a list")
    log.line(json.dumps([float(log.loss(i, repr(loss))) for i, loss in enumerate(run.losses, 1)]))
    return log.log(counted=True)


def pairs(run: Run) -> ConsoleLog:
    log = Console("JSON, pairs of step and loss")
    log.line(json.dumps([[row.step, float(log.loss(row.step, repr(row.loss)))] for row in run.rows()]))
    return log.log()


def train_and_val(run: Run) -> ConsoleLog:
    log = Console("JSON, lists by split")
    train = [float(log.loss(i, repr(loss))) for i, loss in enumerate(run.losses, 1)]
    val = [float(log.validation(i, repr(loss + 0.1))) for i, loss in enumerate(run.losses, 1)]
    log.line(json.dumps({"train": train, "val": val}))
    return log.log(counted=True)


def keras_history(run: Run) -> ConsoleLog:
    log = Console("JSON, Keras's history")
    train = [float(log.loss(i, repr(loss))) for i, loss in enumerate(run.losses, 1)]
    val = [float(log.validation(i, repr(loss + 0.1))) for i, loss in enumerate(run.losses, 1)]
    rates = [float(log.rate(i, repr(rate))) for i, rate in enumerate(run.rates, 1)]
    log.line(json.dumps({"loss": train, "accuracy": [0.5] * len(train), "val_loss": val, "lr": rates}, indent=2))
    return log.log(counted=True)


def columns(run: Run) -> ConsoleLog:
    log = Console("JSON, lists by column")
    losses = [float(log.loss(row.step, repr(row.loss))) for row in run.rows()]
    log.line(json.dumps({"steps": list(run.steps), "train_loss": losses}))
    return log.log()


def tensorboard_download(run: Run) -> ConsoleLog:
    """TensorBoard's download: wall time, step, value."""
    log = Console("JSON, TensorBoard's download")
    log.line(
        json.dumps([[row.time.timestamp(), row.step, float(log.loss(row.step, repr(row.loss)))] for row in run.rows()])
    )
    return log.log()


WRITERS = writers(globals())
