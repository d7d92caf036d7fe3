"""Console logs of frameworks that train language models from scratch."""

import json
import math

from console_runs import Console, ConsoleLog, Row, Run, bar, writers


def _megatron_arguments(log: Console, run: Run) -> None:
    log.line("------------------------ arguments ------------------------")
    arguments = {
        "adam_beta1": 0.9,
        "eval_interval": 1000,
        "log_interval": run.every,
        "loss_scale": None,
        "lr": max(run.rates),
        "min_lr": 1e-05,
        "train_iters": run.last_step,
    }
    for name, value in arguments.items():
        log.line(f"  {name} {'.' * (48 - len(name))} {value}")
    log.line("-------------------- end of arguments ---------------------")


def megatron(run: Run) -> ConsoleLog:
    log = Console("Megatron-LM")
    _megatron_arguments(log, run)
    log.line("[before the start of training step] datetime: 2024-05-01 09:12:01 ")
    for row in log.trained(run):
        place = f" [{row.time:%Y-%m-%d %H:%M:%S}] iteration {row.step:8d}/{run.last_step:8d} |"
        log.line(
            f"{place} consumed samples: {256 * row.step:12d} | elapsed time per iteration (ms): 5123.4 |"
            f" throughput per GPU (TFLOP/s/GPU): 181.2 | learning rate: {row.rate:.6E} |"
            f" global batch size: {256:5d} | lm loss: {row.loss:.6E} | loss scale: 1.0 |"
            f" grad norm: {row.norm:.3f} | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |"
        )
        if row.index == 1:
            log.line("Number of parameters in transformer layers in billions:  0.30")
            log.line("[Rank 0] (after 10 iterations) memory (MB) | allocated: 7261.4 | max allocated: 18301.2")
        if row.validation is not None:
            _megatron_validation(log, row, "lm loss")
    return log.log(run.last_step)


def _megatron_validation(log: Console, row: Row, name: str) -> None:
    assert row.validation is not None
    value, perplexity = log.validation(row.step, f"{row.validation:.6E}"), math.exp(min(20, row.validation))
    text = f" validation loss at iteration {row.step} | {name} value: {value} | {name} PPL: {perplexity:.6E} | "
    log.line("(min, max) time across ranks (ms):\n    evaluate .......................: (12345.67, 12345.99)")
    log.line("\n".join(("-" * (len(text) + 1), text, "-" * (len(text) + 1))))


def gpt_neox(run: Run) -> ConsoleLog:
    """One row is printed three times: by DeepSpeed's engine, by its pipeline and by Megatron."""
    log = Console("GPT-NeoX")
    _megatron_arguments(log, run)
    for row in run.trained():
        rate, loss = f"{row.rate:.3E}", f"{row.loss:.6E}"
        log.line(
            f"[{row.time:%Y-%m-%d %H:%M:%S},123] [INFO] [logging.py:60:log_dist] [Rank 0] step={row.step}, skipped=0,"
            f" lr=[{rate}, {rate}], mom=[[0.9, 0.95], [0.9, 0.95]]"
        )
        log.line(f"steps: {row.step} loss: {float(loss):0.4f} iter time (s): 1.234 samples/sec: 25.932")
        log.line(
            f" samples/sec: 25.932 | iteration {row.step:8d}/{run.last_step:8d} |"
            f" elapsed time per iteration (ms): 1234.0 | learning rate: {log.rate(row.step, rate)} |"
            f" approx flops per GPU: 45.6TFLOPS | lm_loss: {log.loss(row.step, loss)} | loss scale: 65536.0 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if row.validation is not None:
            _megatron_validation(log, row, "lm_loss")
    return log.log(run.last_step, step_name="the loss of each step is printed with four and with seven digits")


def deepspeed_pipeline(run: Run) -> ConsoleLog:
    log = Console("DeepSpeed")
    log.line("[2024-05-01 09:12:00,001] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.0")
    log.line("[2024-05-01 09:12:00,002] [INFO] [config.py:1000:print]   gradient_clipping ............ 1.0")
    log.line("[2024-05-01 09:12:00,002] [INFO] [config.py:1000:print]   loss_scale ................... 0")
    for row in log.trained(run):
        stamp = f"[{row.time:%Y-%m-%d %H:%M:%S},123] [INFO]"
        log.line(
            f"{stamp} [logging.py:96:log_dist] [Rank 0] step={row.step}, skipped=0, lr=[{row.rate}], mom=[(0.9, 0.95)]"
        )
        log.line(
            f"{stamp} [timer.py:260:stop] epoch=0/micro_step={4 * row.step}/global_step={row.step},"
            " RunningAvgSamplesPerSec=19.43, CurrSamplesPerSec=19.51, MemAllocated=2.08GB, MaxMemAllocated=8.93GB"
        )
        log.line(f"steps: {row.step} loss: {row.loss:0.4f} iter time (s): 0.823 samples/sec: 19.441")
    return log.log()


RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = (f"\033[{code}m" for code in range(31, 37))
RESET, ORANGE, TURQUOISE = "\033[39m", "\033[38;2;180;60;0m", "\033[38;2;54;234;195m"


def torchtitan(run: Run) -> ConsoleLog:
    log = Console("torchtitan")

    def info(row: Row, text: str) -> None:
        log.line(f"[rank0]:[titan] {row.time:%Y-%m-%d %H:%M:%S},123 - root - INFO - {text}")

    start = next(log.rows(run))
    info(start, "Starting job: Llama 3 8B training")
    info(start, f"{BLUE}Model llama3 8B {RED}size: 8,030,261,248 total parameters{RESET}")
    info(start, f"Trainer is initialized with local batch size 1, global batch size 8, total steps {run.last_step}")
    for row in log.trained(run):
        info(
            row,
            f"{RED}step: {row.step:2}  {GREEN}loss: {row.loss:7.4f}  {ORANGE}grad_norm: {row.norm:7.4f} "
            f" {TURQUOISE}memory: 47.46GiB"
            f"(49.96%)  {BLUE}tps: 7,123  {CYAN}tflops: 412.53  {MAGENTA}mfu: 41.71%{RESET}",
        )
        if row.validation is not None:
            info(
                row,
                f"{YELLOW}validate step: {row.step:2}  {GREEN}loss: {row.validation:7.4f}  {TURQUOISE}memory:"
                " 31.20GiB(32.84%)"
                f"  {BLUE}tps: 21,456{RESET}",
            )
    info(row, "Training completed")
    return log.log(run.last_step)


def fairseq(run: Run) -> ConsoleLog:
    """Training loss of ``train_inner``; the means of whole epochs are left aside."""
    return _fairseq(run, as_json=False)


def fairseq_json(run: Run) -> ConsoleLog:
    return _fairseq(run, as_json=True)


def _fairseq(run: Run, *, as_json: bool) -> ConsoleLog:
    log = Console("fairseq JSON" if as_json else "fairseq")
    batches = 10 * run.every + 3  # epochs do not end where a row is printed

    def info(row: Row, name: str, text: str) -> None:
        log.line(f"{row.time:%Y-%m-%d %H:%M:%S} | INFO | {name} | {text}")

    epochs = 1
    for row in run.trained():
        while row.step > epochs * batches:
            info(row, "fairseq_cli.train", f"end of epoch {epochs} (average epoch stats below)")
            stats = {"loss": f"{row.loss + 0.1:.3f}", "num_updates": str(epochs * batches), "lr": f"{row.rate:g}"}
            if as_json:
                info(row, "train", json.dumps({"epoch": epochs, **{f"train_{k}": v for k, v in stats.items()}}))
            else:
                info(row, "train", f"epoch {epochs:03d} | {' | '.join(f'{k} {v}' for k, v in stats.items())}")
            epochs += 1
        stats = {
            "loss": log.loss(row.step, f"{round(row.loss, 3):g}"),
            "ppl": f"{round(2**row.loss, 2):g}",
            "wps": "14185.4",
            "ups": "0.5",
            "wpb": "28201.6",
            "bsz": "1117.8",
            "num_updates": str(row.step),
            "lr": log.rate(row.step, f"{row.rate:g}"),
            "gnorm": log.norm(row.step, f"{round(row.norm, 3):g}"),
            "loss_scale": "16",
            "train_wall": "93",
            "wall": str(37 * row.index),
        }
        if as_json:
            info(row, "train_inner", json.dumps({"epoch": epochs, "update": round(row.step / batches, 3), **stats}))
        else:
            done = row.step - (epochs - 1) * batches
            line = f"epoch {epochs:03d}:  {done:5d} / {batches:d} {', '.join(f'{k}={v}' for k, v in stats.items())}"
            info(row, "train_inner", line)
        if row.validation is not None:
            _fairseq_validation(log, row, epochs, as_json=as_json)
        if row.index % 7 == 3:
            info(
                row, "fairseq.trainer", "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 8"
            )
    return log.log()


def _fairseq_validation(log: Console, row: Row, epoch: int, *, as_json: bool) -> None:
    assert row.validation is not None
    stats = {
        "loss": log.validation(row.step, f"{round(row.validation, 3):g}"),
        "nll_loss": f"{round(row.validation - 0.6, 3):g}",
        "ppl": f"{round(2 ** (row.validation - 0.6), 2):g}",
        "wps": "202259",
        "num_updates": str(row.step),
        "best_loss": f"{round(row.validation, 3):g}",
    }
    if as_json:
        text = json.dumps({"epoch": epoch, **{f"valid_{name}": value for name, value in stats.items()}})
    else:
        text = f"epoch {epoch:03d} | valid on 'valid' subset | {' | '.join(f'{k} {v}' for k, v in stats.items())}"
    log.line(f"{row.time:%Y-%m-%d %H:%M:%S} | INFO | valid | {text}")


def _olmo_float(value: float) -> str:
    if value < 0.0001:
        return str(value)
    if value > 1000:
        return f"{int(value):,d}"
    return next(
        (f"{value:.{digits}f}" for digits, bound in enumerate((100, 10, 1), 1) if value > bound), f"{value:.4f}"
    )


def olmo(run: Run) -> ConsoleLog:
    return _olmo(run, "OLMo", "{:%Y-%m-%d %H:%M:%S}.123\tnode-17:0\tolmo.train:967\tINFO\t")


def olmo_rich(run: Run) -> ConsoleLog:
    return _olmo(run, "OLMo, rich", "[{:%Y-%m-%d %H:%M:%S}] INFO     [olmo.train:816, rank=0] ")


def _olmo(run: Run, tool: str, stamp: str) -> ConsoleLog:
    log = Console(tool)

    def info(row: Row, text: str, **metrics: str) -> None:
        lines = [text, *(f"    {name}={value}" for name, value in metrics.items())]
        log.line(stamp.format(row.time) + "\n".join(lines))

    for row in run.trained():
        metrics = {
            "train/CrossEntropyLoss": log.loss(row.step, _olmo_float(row.loss)),
            "train/Perplexity": _olmo_float(math.exp(row.loss)),
            "throughput/total_tokens": f"{4194304 * row.step:,d}",
            "throughput/device/tokens_per_second": "9,731",
            "throughput/device/batches_per_second": "0.1485",
            "System/Peak GPU Memory (MB)": "42,731",
            "optim/total_grad_norm": log.norm(row.step, _olmo_float(row.norm)),
        }
        info(row, f"[step={row.step}/{run.last_step}]", **metrics)
        if row.validation is not None:
            info(row, "Running evaluation for 'v3-small-ppl-validation'...")
            info(row, "[eval_step=50/100]")
            value = log.validation(row.step, _olmo_float(row.validation))
            info(row, "v3-small-ppl-validation", **{"eval/v3-small-ppl-validation/c4_en/CrossEntropyLoss": value})
    return log.log(run.last_step, step_name="an evaluation states no step; that of the block before it")


def composer(run: Run) -> ConsoleLog:
    """The same loss under two names, as LLM Foundry prints it."""
    log = Console("Composer")
    log.line("******************************\nConfig:\nenabled_algorithms/GradientClipping: true")
    log.line("rank_zero_seed: 17\n******************************")
    for row in log.trained(run):
        log.line(f"[batch={row.step}/{run.last_step}]:\n\t Train time/epoch: 0\n\t Train time/batch: {row.step - 1}")
        log.line(f"\t Train time/token: {(row.step - 1) * 524288}\n\t Train memory/peak_reserved_mem: 3.2317")
        log.line(
            f"\t Train loss/train/total: {row.loss:.4f}\n\t Train metrics/train/LanguageCrossEntropy: {row.loss:.4f}"
        )
        log.line(f"\t Train metrics/train/LanguagePerplexity: {math.exp(row.loss):.4f}")
        log.line(f"\t Train lr-DecoupledAdamW/group0: {row.rate:.4f}")
        if row.validation is not None:
            log.line("[Eval batch=1/6] Eval on eval data\n[Eval batch=3/6] Eval on eval data")
            log.line(
                f"[Eval batch=6/6] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy: {row.validation:.4f}"
            )
    return log.log(run.last_step, step_name="an evaluation states no step; that of the block before it")


def maxtext(run: Run) -> ConsoleLog:
    log = Console("MaxText")
    log.line(f"Config param learning_rate: {max(run.rates)}\nConfig param steps: {run.last_step}")
    log.line("number parameters: 1.104 billion\nPer train step:\n Total TFLOPs: 88.11 ")
    for row in log.rows(run):
        log.line(
            f"completed step: {row.step}, seconds: 1.150, TFLOP/s/device: 76.617, Tokens/s/device: 10683.123,"
            f" total_weights: 98304, loss: {row.loss:.3f}"
        )
        if row.validation is not None:
            log.line(f"eval metrics after step: {row.step}, loss={row.validation:.3f}, total_weights=491520.0")
    return log.log(run.last_step)


def si(value: float) -> str:
    """A number as tqdm shortens it: 4.00, 19.0, 500, 1.20k."""
    for unit in ("", "k", "M"):
        if value < 999.5:
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{unit}"
        value /= 1000
    return f"{value:.1f}G"


def levanter(run: Run) -> ConsoleLog:
    """tqdm_loggable: steps are rounded to three digits."""
    log = Console("levanter")
    for row in run.trained():
        printed = round(float(f"{row.step:.3g}"))
        loss = log.loss(printed, str(round(row.loss, 6)))
        log.line(
            f"{row.time:%Y-%m-%dT%H:%M:%S} - 0 - tqdm_loggable.tqdm_logging - tqdm_logging.py:145 - INFO ::"
            f" Progress on:train {si(row.step)}it/{si(run.last_step)}it rate:1.2it/s remaining:13:12"
            f" elapsed:{row.index:02d}:40 postfix:loss={loss}"
        )
    return log.log(round(float(f"{run.last_step:.3g}")), step_name="rounded to three digits")


def picotron(run: Run) -> ConsoleLog:
    log = Console("picotron")
    log.line("init dataloader time: 3.14s\nTokens per step: 524.29K\nNumber of parameters: 1.71B")
    for row in log.trained(run):
        log.line(
            f"[rank 0] Step: {row.step:<5d} | Loss: {row.loss:6.4f} | Global batch size: 524.29K | Tokens/s: 310.32K |"
            f" Tokens/s/GPU:  38.79K | Tokens: {row.step * 0.524:6.2f}M | MFU: 41.40% | Memory usage:  36.02GB"
        )
    return log.log()


def nanotron(run: Run) -> ConsoleLog:
    log = Console("nanotron")

    def human(value: float) -> str:
        if value < 1:
            return f"{value:.3g}"
        value, size = float(f"{value:.3g}"), 0
        while value >= 1000:
            value, size = value / 1000, size + 1
        return f"{value:f}".rstrip("0").rstrip(".") + ["", "K", "M", "B", "T"][size]

    for row in run.trained():
        items = {
            "consumed_tokens": human(row.step * 1048576),
            "elapsed_time_per_iteration_ms": human(2512.3),
            "tokens_per_sec": human(417384.0),
            "tokens_per_sec_per_gpu": human(52173.0),
            "global_batch_size": human(512),
            "lm_loss": log.loss(row.step, human(row.loss)),
            "lr": log.rate(row.step, human(row.rate)),
            "model_tflops_per_gpu": human(412.7),
            "hardware_tflops_per_gpu": human(412.7),
            "grad_norm": log.norm(row.step, human(row.norm)),
            "cuda_max_memory_reserved": human(43.1e9),
        }
        line = " | ".join(f"{name}: {value}" for name, value in items.items())
        stamp = f"{row.time:%m/%d %H:%M:%S} [INFO|DP=0|PP=0|TP=0|ip-26-0-1]"
        log.line(f"\033[2;3m{stamp}\033[0m: iteration: {row.step} / {run.last_step} | {line}")
    return log.log(run.last_step)


def litgpt(run: Run) -> ConsoleLog:
    """A row repeats the last validation loss; only lines of their own count."""
    log = Console("LitGPT")
    log.line("Seed set to 42\nTime to instantiate model: 0.12 seconds.\nTotal parameters: 1,100,048,384")
    log.line("Verifying settings ...\nMeasured TFLOPs: 239.68")
    last = "n/a"
    for row in log.trained(run):
        log.line(
            f"Epoch 1 | iter {row.step} step {row.step} | loss train: {row.loss:.3f},"
            f" val: {last} | iter time: 321.12 ms (step) remaining time: 1 day, 2:03:04"
        )
        if row.validation is not None:
            log.line("Validating ...")
            log.line(f"iter {row.step}: val loss {row.validation:.4f}, val time: 12345.67 ms")
            last = f"{row.validation + 0:.3f}"
    return log.log()


def torchtune(run: Run) -> ConsoleLog:
    """One animated line; its text is the bar's description."""
    log = Console("torchtune")
    log.line("INFO:torchtune.utils._logging:Running LoRAFinetuneRecipeSingleDevice with resolved config:\n")
    log.line(
        "epochs: 1\nloss:\n  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss\nmax_steps_per_epoch: null"
    )
    log.line("optimizer:\n  _component_: torch.optim.AdamW\n  lr: 0.0003\n")
    log.raw("\r" + bar(0, run.last_step).replace(", 2.33it/s", ", ?it/s"))
    for row in run.trained():
        loss = log.loss(row.step, str(round(row.loss, 15)))
        log.raw(f"\r1|{row.step}|Loss: {loss}: {bar(row.step, run.last_step)}")
    return log.log(run.last_step, table=True)


def torchtune_file(run: Run) -> ConsoleLog:
    log = Console("torchtune log file")
    for row in log.trained(run):
        log.line(
            f"Step {row.step} | loss:{row.loss} lr:{row.rate} tokens_per_second_per_gpu:2315.3120134"
            f" peak_memory_active:17.23 peak_memory_alloc:17.23 grad_norm:{row.norm} "
        )
    return log.log()


WRITERS = writers(globals())
