"""Console logs of scripts that train one language model, written as their print statements write them."""

import math

from console_runs import Console, ConsoleLog, Run, writers


def nanogpt(run: Run) -> ConsoleLog:
    """Training loss of the ``iter`` lines; the other estimate of it, at evaluations, is left aside."""
    log = Console("nanoGPT")
    rng = run.random()
    log.line("Overriding config with config/train_shakespeare_char.py:")
    log.line("# train a miniature character-level shakespeare model\n\nout_dir = 'out-shakespeare-char'")
    log.line("eval_interval = 250 # keep frequent because we'll overfit\neval_iters = 200\nlog_interval = 10\n")
    log.line("learning_rate = 1e-3 # with baby networks can afford to go a bit higher")
    log.line(f"max_iters = {run.last_step}\nlr_decay_iters = {run.last_step} # make equal to max_iters usually")
    log.line("min_lr = 1e-4 # learning_rate / 10 usually\nbeta2 = 0.99 # make a bit bigger\n")
    log.line("tokens per iteration will be: 16,384")
    log.line("found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)")
    log.line("Initializing a new model from scratch\nnumber of parameters: 10.65M")
    log.line("num decayed parameter tensors: 26, with 10,740,096 parameters")
    log.line("num non-decayed parameter tensors: 13, with 4,992 parameters")
    log.line("using fused AdamW: True\ncompiling the model... (takes a ~minute)")
    mfu = -100.0
    for row in log.rows(run):
        if row.validation is not None:
            log.line(f"step {row.step}: train loss {row.loss + rng.gauss(0, 0.01):.4f}, val loss {row.validation:.4f}")
            if row.step:
                log.line("saving checkpoint to out-shakespeare-char")
        log.line(f"iter {row.step}: loss {row.loss:.4f}, time {rng.gauss(22, 2):.2f}ms, mfu {mfu:.2f}%")
        mfu = rng.gauss(17, 0.3)
    return log.log(run.last_step)


def gpt_lecture(run: Run) -> ConsoleLog:
    """The script of a lecture: nothing but ``step 0: train loss 4.2, val loss 4.3``."""
    log = Console("lecture GPT")
    log.line("10.788929 M parameters")
    for row in log.rows(run):
        if row.validation is not None:
            log.line(f"step {row.step}: train loss {row.loss:.4f}, val loss {row.validation:.4f}")
    log.line("\nAnd they bridle to save the mooN'd it fooder in my like,\nI'll not love in 3: loss 2 of kinds.")
    return log.log()


def mingpt(run: Run) -> ConsoleLog:
    log = Console("minGPT")
    log.line("number of parameters: 85.00M\nrunning on device cuda")
    for row in log.rows(run):
        log.line(f"iter_dt {run.random().gauss(91, 5):.2f}ms; iter {row.step}: train loss {row.loss:.5f}")
    return log.log()


def build_nanogpt(run: Run) -> ConsoleLog:
    log = Console("build-nanogpt")
    log.line("using device: cuda:0\ntotal desired batch size: 524288\n=> calculated gradient accumulation steps: 4")
    for row in log.rows(run):
        if row.validation is not None:
            log.line(f"validation loss: {row.validation:.4f}")
            log.line(f"HellaSwag accuracy: {2500 + row.index}/10042={(2500 + row.index) / 10042:.4f}")
        log.line(
            f"step {row.step:5d} | loss: {row.loss:.6f} | lr {row.rate:.4e} | norm: {row.norm:.4f} | dt: 339.12ms |"
            " tok/sec: 1546012.04"
        )
    return log.log(step_name="a validation line states no step; that of the row after it")


def build_nanogpt_file(run: Run) -> ConsoleLog:
    log = Console("build-nanogpt log.txt")
    for row in log.rows(run):
        if row.validation is not None:
            log.line(f"{row.step} val {row.validation:.4f}")
            log.line(f"{row.step} hella {(2500 + row.index) / 10042:.4f}")
        log.line(f"{row.step} train {row.loss:.6f}")
    return log.log()


def llmc_file(run: Run) -> ConsoleLog:
    log = Console("llm.c main.log")
    for row in log.rows(run):
        if row.validation is not None:
            log.line(f"s:{row.step} tel:{row.validation:.4f}")
            log.line(f"s:{row.step} eval:{(2500 + row.index) / 10042:.4f}")
        log.line(f"s:{row.step} trl:{row.loss:.4f} lr:{row.rate:.6f} norm:{row.norm:.2f}")
    return log.log()


def llmc_stdout(run: Run) -> ConsoleLog:
    log = Console("llm.c stdout")
    rng = run.random()
    edge = "+-----------------------+----------------------------------------------------+"
    settings = {
        "train data pattern": "dev/data/fineweb10B/fineweb_train_*.bin",
        "output log dir": "log124M",
        "micro batch size B": 64,
        "learning rate (LR)": f"{max(run.rates):e}",
        "warmup iterations": 700,
        "final LR fraction": f"{0.0:e}",
        "max_steps": -1,
        "val_loss_every": 250,
        "train_num_batches": run.last_step,
    }
    log.line(edge + "\n| Parameter             | Value                                              |\n" + edge)
    for name, value in settings.items():
        log.line(f"| {name:<21} | {value!s:<50} |")
    log.line(edge + "\nallocating 237 MiB for parameter gradients\ndevice memory usage: 22345 MiB / 81037 MiB")
    for row in log.rows(run):
        if row.step:
            log.line(
                f"step {row.step:4d}/{run.last_step} | loss {row.loss:7.6f} ({rng.gauss(0, 1):+.2f}z)| norm"
                f" {row.norm:6.4f}"
                f" ({rng.gauss(0, 1):+.2f}z)| lr {row.rate:.2e} | {rng.gauss(410, 2):.2f} ms | 44.1% bf16 MFU |"
                " 1277123 tok/s"
            )
        if row.validation is not None:
            log.line(f"val loss {row.validation:f}")
            log.line(f"HellaSwag: {2500 + row.index}/10042 = {(2500 + row.index) / 10042:f}")
    return log.log(run.last_step, step_name="a validation line states no step; that of the row before it")


def llmc_python(run: Run) -> ConsoleLog:
    log = Console("llm.c train_gpt2.py")
    log.line("Running pytorch 2.4.0+cu124\nusing device: cuda\ntotal desired batch size: 524288")
    for row in log.rows(run):
        if row.step:
            log.line(
                f"step {row.step:4d}/{run.last_step} | train loss {row.loss:.6f} | norm {row.norm:.4f} | lr"
                f" {row.rate:.2e}"
                " | (180.42 ms | 181623 tok/s)"
            )
        if row.validation is not None:
            log.line(f"val loss {row.validation}")
    return log.log(run.last_step, step_name="a validation line states no step; that of the row before it")


SCRIPT = """import os
import sys
with open(sys.argv[0]) as f:
    code = f.read() # read the code of this file ASAP, for logging

@dataclass
class Hyperparameters:
    batch_size : int = 8 # batch size, in sequences, across all devices
    num_iterations : int = {last} # number of iterations to run
    warmup_iters : int = 0
    learning_rate : float = 0.0036
    val_loss_every : int = 125 # every how many steps to evaluate val loss? 0 for only at the end
args = Hyperparameters()

def get_lr(it):
    assert it <= args.num_iterations
    # 1) linear warmup for warmup_iters steps
    if it < args.warmup_iters:
        return (it+1) / args.warmup_iters
    loss = 0.0; step: int = 1  # step:0/10 val_loss:9.99 is what a line looks like

for step in range(train_steps + 1):
    print0(f"step:{{step}}/{{train_steps}} val_loss:{{val_loss:.4f}} train_time:{{time_ms:.0f}}ms", console=True)
    loss = model(x, y) ; train_loss = loss.detach()
    print0(f"step:{{step+1}}/{{train_steps}} train_loss:{{train_loss.item():.4f}}")
"""
NVIDIA_SMI = """Running python 3.12.7 (main, Nov  6 2024, 17:03:13) [GCC 11.4.0]
Running pytorch 2.6.0.dev20241203+cu124 compiled for CUDA 12.4
nvidia-smi:
Fri Dec  6 09:31:48 2024
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.183.06             Driver Version: 535.183.06   CUDA Version: 12.4     |
|-----------------------------------------+----------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:19:00.0 Off |                    0 |
| N/A   37C    P0             119W / 700W |   3451MiB / 81559MiB |      0%      Default |
+-----------------------------------------+----------------------+----------------------+
"""


def modded_nanogpt(run: Run) -> ConsoleLog:
    """No training loss at all: rows between validations state times only."""
    log = Console("modded-nanogpt")
    rule = "=" * 100
    log.line(f"{SCRIPT.format(last=run.last_step)}\n{rule}\n{NVIDIA_SMI}\n{rule}")
    log.line("Training DataLoader: total number of tokens: 1000000000 across 10 files")
    log.line("Validation DataLoader: total number of tokens: 100000000 across 1 files\n" + rule)
    for row in log.rows(run):
        place, average = f"step:{row.step}/{run.last_step}", "nanms" if row.index < 2 else "151.08ms"
        if row.step:
            log.line(f"{place} train_time:{151 * row.step}ms step_avg:{average}")
        if row.validation is not None:
            log.line(f"{place} val_loss:{row.validation:.4f} train_time:{151 * row.step}ms step_avg:{average}")
    log.line("peak memory allocated: 39491 MiB reserved: 49988 MiB")
    return log.log(run.last_step)


def modded_nanogpt_with_training_loss(run: Run) -> ConsoleLog:
    log = Console("modded-nanogpt, train_loss")
    log.line(SCRIPT.format(last=run.last_step) + "\n" + "=" * 100)
    for row in log.rows(run):
        place = f"step:{row.step}/{run.last_step}"
        if row.validation is not None:
            log.line(f"{place} val_loss:{row.validation:.4f} train_time:{236 * row.step:.0f}ms step_avg:236.22ms")
        if row.step:
            log.line(f"{place} train_loss:{row.loss:.4f} train_time:{236 * row.step:.0f}ms step_avg:236.22ms")
    log.line("peak memory consumption: 30042 MiB")
    return log.log(run.last_step)


def parameter_golf(run: Run) -> ConsoleLog:
    """Stops before its planned steps, and ends with the losses of the compressed model, which are no rows."""
    log = Console("parameter-golf")
    log.line("W0318 14:37:59.159000 871689 site-packages/torch/distributed/run.py:852] *************************")
    log.line("logs/hf_verify_sp1024_8gpu.txt\nval_bpb:enabled tokenizer_kind=sentencepiece")
    log.line("train_loader:dataset:fineweb10B_sp1024 train_shards:25\nmodel_params:17059912")
    log.line("tie_embeddings:True embed_lr:0.05 head_lr:0.0 matrix_lr:0.04 scalar_lr:0.04")
    log.line(f"train_batch_tokens:524288 train_seq_len:1024 iterations:{run.last_step} warmup_steps:20\nseed:1337")
    for i in range(1, 21):
        log.line(f"warmup_step:{i}/20")
    value = math.nan
    for row in log.rows(run):
        place, time = f"step:{row.step}/{run.last_step}", f"train_time:{43 * row.step}ms step_avg:43.54ms"
        if row.step:
            log.line(f"{place} train_loss:{row.loss:.4f} {time}")
        if row.validation is not None:
            value = row.validation
            log.line(f"{place} val_loss:{value:.4f} val_bpb:{value / 1.693:.4f} {time}")
    log.line(f"stopping_early: wallclock_cap train_time:600038ms step:{run.steps[-1]}/{run.last_step}")
    log.line("peak memory allocated: 10184 MiB reserved: 10200 MiB\nSerialized model: 67224983 bytes")
    log.line(f"final_int8_zlib_roundtrip val_loss:{value + 0.0121:.4f} val_bpb:1.2244 eval_time:1401ms")
    log.line(f"final_int8_zlib_roundtrip_exact val_loss:{value + 0.01213:.8f} val_bpb:1.22436570")
    return log.log(run.last_step)


def nanochat(run: Run) -> ConsoleLog:
    """``lrm`` is a factor of learning rates, not one; the validation is in bits per byte."""
    log = Console("nanochat")
    log.line("Vocab size: 65,536\nnum_layers: 20\nmodel_dim: 1280\nTokens / micro-batch / rank: 32 x 2048 = 65,536")
    log.line(f"Calculated number of iterations from target data:param ratio: {run.last_step:,}")
    for row in log.rows(run):
        if row.validation is not None:
            log.line(f"Step {row.step:05d} | Validation bpb: {log.validation(row.step, f'{row.validation / 3:.4f}')}")
        share = 100 * row.step / run.last_step
        log.line(
            f"step {row.step:05d}/{run.last_step:05d} ({share:.2f}%) | loss: {row.loss:.6f}"
            f" | grad norm: {row.norm:.4f} | lrm: {row.rate / max(run.rates):.2f}"
            f" | dt: 482.13ms | tok/sec: 1,087,434 | mfu: 48.12 | total time: {row.step * 0.008:.2f}m"
        )
    return log.log(run.last_step)


WRITERS = writers(globals())
