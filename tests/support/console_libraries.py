"""Console logs of general training libraries: the Trainer and what is built on it, Keras, Lightning, AllenNLP."""

import math

from console_runs import Console, ConsoleLog, Row, Run, bar, writers

COUNTED = "rows with a loss; an evaluation belongs to the row before it"


def _epoch(row: Row, run: Run) -> float:
    return 3 * row.step / run.last_step


def hf_trainer(run: Run) -> ConsoleLog:
    """Rows of numbers, without a bar: nothing states a step."""
    log = Console("HF Trainer")
    for count, row in enumerate(run.trained(), 1):
        values = {
            "loss": float(log.loss(count, str(round(row.loss, 4)))),
            "grad_norm": float(log.norm(count, str(row.norm))),
            "learning_rate": float(log.rate(count, str(row.rate))),
            "epoch": round(_epoch(row, run), 2),
        }
        log.line(str(values))
        if row.validation is not None:
            speeds = {"eval_runtime": 12.1622, "eval_samples_per_second": 82.222, "eval_steps_per_second": 10.278}
            value = float(log.validation(count, str(row.validation)))
            log.line(str({"eval_loss": value, **speeds, "epoch": round(_epoch(row, run), 2)}))
    log.line(_hf_summary(run, row, as_text=False))
    return log.log(counted=True, step_name=COUNTED)


def _hf_summary(run: Run, row: Row, *, as_text: bool) -> str:
    values = {
        "train_runtime": 7767.1,
        "train_samples_per_second": 4.12,
        "train_steps_per_second": 0.257,
        "train_loss": sum(run.losses) / len(run.losses),
        "epoch": round(_epoch(row, run), 2),
    }
    return str({name: f"{value:.4g}" for name, value in values.items()} if as_text else values)


def hf_trainer_bars_on_lines(run: Run) -> ConsoleLog:
    """Numbers below drawings of the bar that each end their line, as they are pasted."""
    log = Console("HF Trainer, bars on lines")
    for row in run.trained():
        values = {
            "loss": float(log.loss(row.step, str(round(row.loss, 4)))),
            "grad_norm": float(log.norm(row.step, str(row.norm))),
            "learning_rate": float(log.rate(row.step, str(row.rate))),
            "epoch": round(_epoch(row, run), 2),
        }
        log.line(f"\n {bar(row.step, run.last_step)}\n{values}")
        if row.validation is not None:
            value = float(log.validation(row.step, str(row.validation)))
            log.line(str({"eval_loss": value, "eval_runtime": 12.1622, "epoch": values["epoch"]}))
    log.line(_hf_summary(run, row, as_text=False))
    return log.log(run.last_step)


def hf_trainer_text(run: Run) -> ConsoleLog:
    """Strings, as newer versions print them, between the redrawings of a bar: the bar states the step."""
    return _hf_with_bar(run, "HF Trainer, strings", {}, {})


def trl_sft(run: Run) -> ConsoleLog:
    more = {"entropy": 1.029, "num_tokens": 14900.0, "mean_token_accuracy": 0.77}
    return _hf_with_bar(run, "TRL SFT", more, {"eval_num_tokens": 5298.0, "eval_mean_token_accuracy": 0.7698})


def trl_dpo(run: Run) -> ConsoleLog:
    rewards = {"chosen": 0.4, "rejected": -0.7, "accuracies": 0.81, "margins": 1.1}
    more = {f"rewards/{name}": value for name, value in rewards.items()}
    more |= {"logps/chosen": -241.3, "logps/rejected": -260.2, "logits/chosen": -1.92, "logits/rejected": -1.9}
    return _hf_with_bar(run, "TRL DPO", more, {f"eval_{name}": value for name, value in more.items()})


def axolotl(run: Run) -> ConsoleLog:
    memory = {"memory/max_active (GiB)": 2.98, "memory/max_allocated (GiB)": 2.98, "memory/device_reserved (GiB)": 4.12}
    more = {"ppl": 2.046, **memory, "tokens/trainable": 93.0, "tokens/total": 512.0}
    head = "[2024-05-01 09:11:58,123] [INFO] [axolotl.train.train:70] [PID:4242] [RANK:0] loading tokenizer... gpt2\n"
    return _hf_with_bar(run, "axolotl", more, memory, head)


def whisper(run: Run) -> ConsoleLog:
    return _hf_with_bar(run, "Whisper fine-tuning", {}, {"eval_wer": 32.42})


def _hf_with_bar(
    run: Run, tool: str, more: dict[str, float], more_eval: dict[str, float], head: str = ""
) -> ConsoleLog:
    log = Console(tool)
    blank = "\r" + " " * 80 + "\r"
    log.raw(head + f"\r  0%|          | 0/{run.last_step} [00:00<?, ?it/s]")
    for row in run.trained():
        drawn, epoch = f"\r{bar(row.step, run.last_step)}", f"{_epoch(row, run):.4g}"
        values = {
            "loss": log.loss(row.step, f"{row.loss:.4g}"),
            "grad_norm": log.norm(row.step, f"{row.norm:.4g}"),
            "learning_rate": log.rate(row.step, f"{row.rate:.4g}"),
            **{name: f"{value:.4g}" for name, value in more.items()},
            "epoch": epoch,
        }
        log.raw(f"{drawn}{blank}{values}\n{drawn}")
        if row.validation is not None:
            log.raw("\n\n  0%|          | 0/25 [00:00<?, ?it/s]\x1b[A")
            log.raw("\n\n 40%|████      | 10/25 [00:01<00:02,  6.72it/s]\x1b[A")
            evaluation = {
                "eval_loss": log.validation(row.step, f"{row.validation:.4g}"),
                "eval_runtime": "12.16",
                "eval_samples_per_second": "82.22",
                "eval_steps_per_second": "10.28",
                **{name: f"{value:.4g}" for name, value in more_eval.items()},
                "epoch": epoch,
            }
            log.raw(f"\n{' ' * 80}\x1b[A{blank}{evaluation}\n{drawn}")
    log.raw(f"{blank}{_hf_summary(run, row, as_text=True)}\n{drawn}\n")
    return log.log(run.last_step)


def hf_notebook_table(run: Run) -> ConsoleLog:
    """The table below a notebook's bar, as it is copied: a row an evaluation."""
    log = Console("HF notebook table")
    log.line(f" [{run.steps[-1]}/{run.last_step} 10:23:51, Epoch {3 * run.steps[-1] // run.last_step}/3]")
    log.line("Step\tTraining Loss\tValidation Loss\tAccuracy")
    for row in log.trained(run):
        if row.validation is not None:
            log.line(f"{row.step}\t{row.loss:f}\t{row.validation:f}\t0.{8000 + row.index}00")
    return log.log(run.last_step, table=True)


def model_card(run: Run) -> ConsoleLog:
    """The table of a model card; losses not yet logged are words."""
    log = Console("HF model card")
    log.line("### Training hyperparameters\n\nThe following hyperparameters were used during training:")
    log.line(f"- learning_rate: {max(run.rates):.4g}\n- train_batch_size: 16\n- seed: 42")
    log.line("- lr_scheduler_type: linear\n- num_epochs: 3\n\n### Training results\n")
    log.line("| Training Loss | Epoch | Step | Validation Loss | Wer     |")
    log.line("|:-------------:|:-----:|:----:|:---------------:|:-------:|")
    rows = [row for row in run.trained() if row.validation is not None]
    for row in rows:
        train = "No log" if row is rows[0] and not run.skipped else log.loss(row.step, f"{row.loss:.4f}")
        value = log.validation(row.step, f"{row.validation:.4f}")
        epoch = f"{_epoch(row, run):.4f}".rstrip("0")
        log.line(f"| {train:<13} | {epoch:<5} | {row.step:<4} | {value:<15} | 32.4{row.index:<3} |")
    log.line("\n\n### Framework versions\n\n- Transformers 4.44.2\n- Pytorch 2.4.0+cu121")
    return log.log(table=True)


def unsloth(run: Run) -> ConsoleLog:
    log = Console("unsloth")
    log.line("==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1")
    log.line(f"   \\\\   /|    Num examples = 210,289 | Num Epochs = 1 | Total steps = {run.last_step:,}")
    log.line("O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4")
    log.line("\\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8")
    log.line(' "-____-"     Trainable parameters = 24,313,856 of 3,237,063,680 (0.75% trained)')
    log.line(f" [{run.steps[-1]}/{run.last_step} 01:33, Epoch 0/1]\nStep\tTraining Loss")
    for row in log.trained(run):
        log.line(f"{row.step}\t{row.loss:f}")
    return log.log(run.last_step, table=True)


def hf_no_trainer(run: Run) -> ConsoleLog:
    """The examples without the Trainer: a bar, and a line an epoch."""
    log = Console("HF no_trainer")
    log.line("05/01/2024 09:12:01 - INFO - __main__ - ***** Running training *****")
    log.line(f"05/01/2024 09:12:01 - INFO - __main__ -   Num Epochs = {run.planned_rows}")
    for row in run.rows():
        value = log.validation(row.index, str(row.loss))
        log.raw(f"\r{bar(10 * (row.index + 1), 10 * run.planned_rows)}")
        log.line(
            f"{row.time:%m/%d/%Y %H:%M:%S} - INFO - __main__ - epoch {row.index}:"
            f" perplexity: {math.exp(row.loss)} eval_loss: {value}"
        )
    return log.log(step_name="epochs from 0")


def diffusers(run: Run) -> ConsoleLog:
    log = Console("diffusers")
    log.line("***** Running training *****\n  Num examples = 833\n  Gradient Accumulation steps = 4")
    log.line(f"  Total optimization steps = {run.last_step}")
    for row in log.trained(run):
        drawn = bar(row.step, run.last_step, 1.43)
        log.raw(f"\rSteps: {drawn[:-1]}, lr={row.rate:.3g}, step_loss={row.loss:.3g}]")
    log.line()
    return log.log(run.last_step, table=True)


def tqdm_postfix(run: Run) -> ConsoleLog:
    """A script's own bar an epoch, with what ``set_postfix`` puts behind it."""
    log = Console("tqdm postfix")
    batches = 10 * run.every
    for row in log.trained(run):
        epoch, batch = divmod(row.step - 1, batches)
        log.raw(
            f"\rEpoch {epoch + 1}/10: {bar(batch + 1, batches)[:-1]}, loss={row.loss:.4f}, lr={row.rate:.2e},"
            " mem=10.2GB]"
        )
        if batch + 1 == batches:
            log.line()
    log.line()
    return log.log(step_name="(epoch - 1) times batches, plus the batch", table=True)


def tqdm_description(run: Run) -> ConsoleLog:
    """A bar of the whole run whose description is the loss, each drawing on a line of its own."""
    log = Console("tqdm description")
    for row in log.trained(run):
        log.line(f"loss: {row.loss:.4f}: {bar(row.step, run.last_step)}")
    return log.log(run.last_step)


def kohya(run: Run) -> ConsoleLog:
    """The loss is a running mean."""
    log = Console("kohya sd-scripts")
    log.line("running training / 学習開始\n  num train images * repeats / 学習画像の数×繰り返し回数: 800")
    log.line(f"  total optimization steps / 学習ステップ数: {run.last_step}\n\nepoch 1/1")
    for row in log.trained(run):
        drawn = bar(row.step, run.last_step, 1.43)
        log.raw(f"\rsteps: {drawn[:-1]}, avr_loss={row.loss:.3g}]")
    log.line("\nsaving checkpoint: ./output/last.safetensors\nmodel saved.")
    return log.log(run.last_step, table=True)


def keras2(run: Run) -> ConsoleLog:
    """Progress within an epoch is drawn over with backspaces; the last drawing counts."""
    return _keras2(run, "\b")


def keras2_carriage_return(run: Run) -> ConsoleLog:
    return _keras2(run, "\r")


def _keras2(run: Run, erase: str) -> ConsoleLog:
    log = Console(f"Keras 2, {erase!r}")
    log.line('Model: "sequential"\n_________________________________________________________________')
    log.line("Total params: 101,770\nTrainable params: 101,770\n")
    last = run.planned_rows
    for row in run.rows():
        epoch = row.index + 1
        log.line(f"Epoch {epoch}/{last}")
        for done, mark in ((1, "[.............................."), (400, "[============>.................")):
            text = f"{done:3d}/938 {mark}] - ETA: 1s - loss: {row.loss + 0.3:.4f} - accuracy: 0.8123"
            log.raw(text + (erase * len(text) if erase == "\b" else erase))
        validation = f" - val_loss: {log.validation(epoch, f'{row.loss + 0.1:.4f}')} - val_accuracy: 0.9541"
        rate = log.rate(epoch, f"{row.rate:.4e}") if row.rate < 1e-3 else log.rate(epoch, f"{row.rate:.4f}")
        loss = log.loss(epoch, f"{row.loss:.4f}")
        log.line(
            f"938/938 [==============================] - 3s 3ms/step - loss: {loss} - accuracy: 0.9150"
            f"{validation} - lr: {rate}"
        )
        if row.index % 6 == 5:
            log.line(
                f"\nEpoch {epoch}: val_loss improved from {row.loss + 0.3:.5f} to {row.loss + 0.1:.5f}, saving model"
            )
    return log.log(last, step_name="epochs")


def keras3(run: Run) -> ConsoleLog:
    log = Console("Keras 3")
    last = run.planned_rows
    bold, green, white, off = "\x1b[1m", "\x1b[32m", "\x1b[37m", "\x1b[0m"
    for row in run.rows():
        epoch = row.index + 1
        log.line(f"Epoch {epoch}/{last}")
        for done in (1, 313):
            log.raw(
                f"\r{bold}{done:3d}/938{off} {green}{'━' * (done // 47)}{off}{white}{'━' * (20 - done // 47)}{off}"
                f" {bold}1s{off} 3ms/step - accuracy: 0.8123 - loss: {row.loss + 0.3:.4f}"
            )
        loss, value = log.loss(epoch, f"{row.loss:.4f}"), log.validation(epoch, f"{row.loss + 0.1:.4f}")
        log.line(
            f"\r{bold}938/938{off} {green}{'━' * 20}{off}{white}{off} {bold}3s{off} 3ms/step - accuracy: 0.9150"
            f" - loss: {loss} - val_accuracy: 0.9541 - val_loss: {value} - learning_rate: "
            + log.rate(epoch, f"{row.rate:.4e}" if row.rate < 1e-3 else f"{row.rate:.4f}")
        )
    return log.log(last, step_name="epochs")


def keras_line_per_epoch(run: Run) -> ConsoleLog:
    log = Console("Keras, verbose=2")
    last = run.planned_rows
    for row in run.rows():
        epoch = row.index + 1
        loss, value = log.loss(epoch, f"{row.loss:.4f}"), log.validation(epoch, f"{row.loss + 0.1:.4f}")
        log.line(f"Epoch {epoch}/{last}\n938/938 - 3s - 3ms/step - accuracy: 0.9150 - loss: {loss} - val_loss: {value}")
    return log.log(last, step_name="epochs")


def lightning(run: Run) -> ConsoleLog:
    """The bar goes on showing the last validation loss; the end of an epoch shows it first."""
    log = Console("Lightning")
    batches, stale = 10 * run.every, ""
    log.line("GPU available: True (cuda), used: True\n\n  | Name  | Type       | Params\n" + "-" * 36)
    log.line("0 | model | Sequential | 55.1 K\n" + "-" * 36 + "\n0.220     Total estimated model params size (MB)")
    for row in run.trained():
        epoch, done = divmod(row.step - 1, batches)
        if done + 1 == batches:
            log.raw("\n\rValidation DataLoader 0:  40%|████      | 4/10 [00:00<00:00, 210.31it/s]\x1b[A\r")
            stale = f", val_loss={log.validation(row.step, f'{row.loss + 0.1:#.3g}')}"
        loss = log.loss(row.step, f"{row.loss:#.3g}")
        log.raw(f"\rEpoch {epoch}: {bar(done + 1, batches, 0.011)[:-1]}, v_num=3, train_loss={loss}{stale}]")
    log.line("\n`Trainer.fit` stopped: `max_epochs=10` reached.")
    return log.log(step_name="epoch times batches, plus the batch", table=True)


def allennlp(run: Run) -> ConsoleLog:
    log = Console("AllenNLP")
    last = run.planned_rows

    def info(row: Row, name: str, text: str) -> None:
        log.line(f"{row.time:%Y-%m-%d %H:%M:%S},123 - INFO - allennlp.training.{name} - {text}")

    for row in run.rows():
        info(row, "gradient_descent_trainer", f"Epoch {row.index}/{last - 1}")
        for done in (210, 450):
            shown = bar(done, 450, 0.02, ascii_only=True)
            log.raw(f"\raccuracy: 0.8123, batch_loss: {row.loss + 0.3:.4f}, loss: {row.loss + 0.2:.4f} ||: {shown}")
        log.line()
        loss, value = log.loss(row.index, f"{row.loss:8.3f}"), log.validation(row.index, f"{row.loss + 0.1:8.3f}")
        info(row, "callbacks.console_logger", f"{'Training'.rjust(18 + 13)} |  {'Validation':<10}")
        info(row, "callbacks.console_logger", f"{'accuracy'.ljust(18)} |     0.915  |     0.902")
        info(row, "callbacks.console_logger", f"{'gpu_0_memory_MB'.ljust(18)} |  1021.331  |       N/A")
        info(row, "callbacks.console_logger", f"{'loss'.ljust(18)} |  {loss}  |  {value}")
        info(row, "gradient_descent_trainer", "Epoch duration: 0:00:09.123456")
    return log.log(last - 1, step_name="epochs from 0")


WRITERS = writers(globals())
