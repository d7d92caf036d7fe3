"""Console logs of tools that train on images and speech."""

import json

from console_runs import Console, ConsoleLog, Row, Run, writers

FLAT = "(epoch) times batches, plus the batch"
PARTS = ("loss_cls", "loss_box_reg", "loss_mask", "loss_rpn_cls", "loss_rpn_loc")
SHARES = (0.3, 0.25, 0.25, 0.1, 0.1)


def imagenet(run: Run) -> ConsoleLog:
    """The current loss, which stands before the mean of the epoch; rows of the test are another series."""
    log = Console("PyTorch ImageNet")
    log.line("=> creating model 'resnet18'")
    batches = 10 * run.every
    for row in log.rows(run, lambda row: row.step + 1):
        epoch, batch = divmod(row.step, batches)
        log.line(
            f"Epoch: [{epoch}][{batch + 1:4d}/{batches}]\tTime  0.331 ( 0.412)\tData  0.001 ( 0.081)\t"
            f"Loss {row.loss:.4e} ({row.loss + 0.1:.4e})\tAcc@1  31.25 ( 28.12)\tAcc@5  56.25 ( 53.02)"
        )
        if batch + run.every == batches:
            for i in (1, 11):
                log.line(f"Test: [{i:3d}/196]\tTime  0.912 ( 1.231)\tLoss {row.loss - 0.2:.4e} ({row.loss - 0.1:.4e})")
            log.line(" *   Acc@1 35.128 Acc@5 60.220")
    return log.log(step_name=FLAT)


def mnist(run: Run) -> ConsoleLog:
    log = Console("PyTorch MNIST")
    samples, batches = 640 * run.every, 10 * run.every  # 64 images a batch
    for row in run.rows():
        epoch, batch = divmod(row.step, batches)
        at = 64 * row.step
        log.line(
            f"Train Epoch: {epoch + 1} [{64 * batch}/{samples} ({100 * batch / batches:.0f}%)]\t"
            f"Loss: {log.loss(at, f'{row.loss:.6f}')}"
        )
        if batch + run.every == batches:
            value = log.validation((epoch + 1) * samples, f"{row.loss + 0.1:.4f}")
            log.line(f"\nTest set: Average loss: {value}, Accuracy: 9832/10000 (98%)\n")
    return log.log(step_name="images: (epoch - 1) times images, plus the image")


def timm(run: Run) -> ConsoleLog:
    log = Console("timm")
    log.line("Training with a single process on 1 device (cuda:0).\nModel resnet50 created, param count:25557032")
    log.line(
        f"Learning rate ({max(run.rates)}) calculated from base learning rate (0.1) and effective global batch size"
    )
    batches = 10 * run.every
    for row in log.rows(run):
        epoch, batch = divmod(row.step, batches)
        log.line(
            f"Train: {epoch} [{batch:>4d}/{batches} ({100 * batch / (batches - 1):>3.0f}%)]  Loss: {row.loss:#.3g}"
            f" ({row.loss + 0.1:#.3g})  Time: 0.412s,  621.31/s  (0.433s,  591.04/s)  LR: {row.rate:.3e}  Data:"
            " 0.011 (0.021)"
        )
        if batch + run.every == batches:
            log.line(
                f"Test: [  48/48]  Time: 0.231 (0.312)  Loss:   {row.loss - 0.2:.3f} ({row.loss - 0.1:.3f})"
                "  Acc@1:  35.128 ( 33.012)  Acc@5:  60.220 ( 58.213)"
            )
            log.line("Current checkpoints:\n ('./output/train/checkpoint-0.pth.tar', 33.012)\n")
    return log.log(step_name=FLAT)


def metric_logger(run: Run) -> ConsoleLog:
    """Median and mean, as DeiT, DINO, MAE and torchvision's references print them."""
    log = Console("MetricLogger")
    log.line("| distributed init (rank 0): env://\nStart training for 300 epochs")
    batches = 10 * run.every
    for row in log.rows(run):
        epoch, batch = divmod(row.step, batches)
        log.line(
            f"Epoch: [{epoch}]  [{batch:4d}/{batches}]  eta: 0:12:31  lr: {row.rate:.6f}  loss: {row.loss:.4f}"
            f" ({row.loss + 0.1:.4f})"
            "  time: 0.4123  data: 0.0003  max mem: 5421"
        )
        if batch + run.every == batches:
            log.line(f"Epoch: [{epoch}] Total time: 0:08:31 (0.4088 s / it)")
            log.line(f"Averaged stats: lr: {row.rate:.6f}  loss: {row.loss:.4f} ({row.loss + 0.1:.4f})")
    return log.log(step_name=FLAT)


def detectron2(run: Run) -> ConsoleLog:
    log = Console("detectron2")
    stamp = "\x1b[32m[{:%m/%d %H:%M:%S} d2.utils.events]: \x1b[0m"
    for row in log.trained(run, lambda row: row.step - 1):
        step = row.step - 1
        parts = "  ".join(f"{name}: {share * row.loss:.4g}" for name, share in zip(PARTS, SHARES, strict=True))
        log.line(
            f"{stamp.format(row.time)} eta: 0:31:02  iter: {step}  total_loss: {row.loss:.4g}"
            f"  {parts}    time: 0.6797  last_time: 0.6301  data_time: 0.1221  last_data_time: 0.0101"
            f"   lr: {row.rate:.5g}  max_mem: 4988M"
        )
    log.line("[05/01 10:12:00 d2.engine.hooks]: Overall training speed: 997 iterations in 0:11:18 (0.6804 s / it)")
    return log.log()


def detr(run: Run) -> ConsoleLog:
    log = Console("DETR log.txt")
    for row in run.rows():
        parts = {
            "class_error": 61.2,
            "loss_ce": 0.3 * row.loss,
            "loss_bbox": 0.3 * row.loss,
            "loss_giou": 0.4 * row.loss,
        }
        train = {"lr": float(log.rate(row.index, str(row.rate))), **parts}
        train["loss"] = float(log.loss(row.index, str(row.loss)))
        test = {**parts, "loss": float(log.validation(row.index, str(row.loss + 0.1))), "loss_ce_unscaled": 1.1}
        values = {f"train_{name}": value for name, value in train.items()}
        values |= {f"test_{name}": value for name, value in test.items()}
        coco = [0.01 * row.index, 0.03, 0.01, 0.0, 0.01, 0.02, 0.05, 0.08, 0.09, 0.01, 0.08, 0.15]
        log.line(json.dumps({**values, "test_coco_eval_bbox": coco, "epoch": row.index, "n_parameters": 41302368}))
    return log.log(step_name="epochs from 0")


def yolo(run: Run) -> ConsoleLog:
    """No single loss: which of the three is meant has to be asked for."""
    log = Console("Ultralytics YOLO")
    last = run.planned_rows
    log.line(f"Image sizes 640 train, 640 val\nUsing 8 dataloader workers\nStarting training for {last} epochs...")
    names = ("Epoch", "GPU_mem", "box_loss", "cls_loss", "dfl_loss", "Instances", "Size")
    for row in run.rows():
        losses = (f"{share * row.loss:.4g}" for share in (0.3, 0.5, 0.2))
        values = "".join(f"{v:>11}" for v in (f"{row.index + 1}/{last}", "10.1G", *losses, 79, 640))
        log.line("\n" + "".join(f"{name:>11}" for name in names))
        log.raw(f"\r{values}:  40%|████      | 119/298 [00:35<00:51,  3.47it/s]")
        log.line(f"\r{values}: 100%|██████████| 298/298 [01:25<00:00,  3.47it/s]")
        log.line(
            "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████|"
            " 38/38 [00:14<00:00,  2.61it/s]"
        )
        log.line("                   all       1189       4779       0.34     0.0303     0.0157    0.00773")
    return log.log(last, step_name="epochs; box_loss, cls_loss and dfl_loss, and no total")


def _mm_parts(row: Row, mark: str = ": ") -> str:
    names = ("loss_rpn_cls", "loss_rpn_bbox", "loss_cls", "loss_bbox")
    return "  ".join(f"{n}{mark}{s * row.loss:.4f}" for n, s in zip(names, (0.2, 0.2, 0.4, 0.2), strict=True))


def mmengine(run: Run) -> ConsoleLog:
    log = Console("mmengine")
    batches = 10 * run.every
    for row in log.trained(run):
        epoch, batch = divmod(row.step - 1, batches)
        stamp = f"{row.time:%Y/%m/%d %H:%M:%S} - mmengine - INFO -"
        log.line(
            f"{stamp} Epoch(train)  [{epoch + 1}][{batch + 1:4d}/{batches}]  lr: {row.rate:.4e}  eta: 2 days, 7:32:05"
            f"  time: 1.0788  data_time: 0.0849  memory: 15079  grad_norm: {row.norm:.4f}"
            f"  loss: {row.loss:.4f}  {_mm_parts(row)}  acc: 92.1875"
        )
        if batch + 1 == batches:
            log.line(f"{stamp} Exp name: faster-rcnn_r50_fpn_1x_coco_20240501_091158")
            log.line(f"{stamp} Saving checkpoint at {epoch + 1} epochs")
            log.line(f"{stamp} Epoch(val)  [{epoch + 1}][ 50/625]    eta: 0:00:31  time: 0.0541  memory: 1203")
            log.line(f"{stamp} Epoch(val) [{epoch + 1}][625/625]    coco/bbox_mAP: 0.2210  data_time: 0.0012")
    return log.log(step_name="(epoch - 1) times batches, plus the batch")


def mmengine_iterations(run: Run) -> ConsoleLog:
    log = Console("mmengine, by iterations")
    for row in log.trained(run):
        log.line(
            f"{row.time:%m/%d %H:%M:%S} - mmengine - INFO - Iter(train) [{row.step:5d}/{run.last_step}]"
            f"  base_lr: {row.rate:.4e}  lr: {row.rate:.4e}  eta: 9:12:31  time: 0.4123  data_time: 0.0061  memory:"
            f" 7123  loss: {row.loss:.4f}"
            f"  decode.loss_ce: {0.7 * row.loss:.4f}  decode.acc_seg: 61.2131  aux.loss_ce: {0.3 * row.loss:.4f}"
        )
    return log.log(run.last_step)


def mmdetection2(run: Run) -> ConsoleLog:
    log = Console("mmdetection 2")
    batches = 10 * run.every
    for row in log.trained(run):
        epoch, batch = divmod(row.step - 1, batches)
        log.line(
            f"{row.time:%Y-%m-%d %H:%M:%S},123 - mmdet - INFO - Epoch [{epoch + 1}][{batch + 1}/{batches}]\tlr:"
            f" {row.rate:.3e},"
            f" eta: 13:21:22, time: 0.547, data_time: 0.061, memory: 3312, {_mm_parts(row).replace('  ', ', ')},"
            f" acc: 92.1875, loss: {row.loss:.4f}"
        )
    return log.log(step_name="(epoch - 1) times batches, plus the batch")


def espnet(run: Run) -> ConsoleLog:
    log = Console("ESPnet")

    def number(value: float) -> str:
        return f"{value:.3f}" if 1e-3 < abs(value) <= 1e3 else f"{value:.3e}"

    for row in run.rows():
        epoch, stamp = row.index + 1, f"[node-17] {row.time:%Y-%m-%d %H:%M:%S},123"
        train = f"loss_ctc={number(1.2 * row.loss)}, loss_att={number(0.9 * row.loss)}, acc=0.610"
        valid = f"loss_ctc={number(1.3 * row.loss)}, loss_att={number(row.loss)}, acc=0.598, cer=0.312, wer=0.701"
        loss, value = log.loss(epoch, number(row.loss)), log.validation(epoch, number(row.loss + 0.1))
        rate = log.rate(epoch, number(row.rate))
        log.line(
            f"{stamp} (trainer:338) INFO: {epoch}epoch results: [train] iter_time=0.164, forward_time=0.952, {train},"
            f" loss={loss}, backward_time=0.973, optim_step_time=0.007, optim0_lr0={rate}, train_time=2.105,"
            f" time=1 minute and 43.19 seconds, total_count={49 * epoch}, gpu_max_cached_mem_GB=10.316,"
            f" [valid] {valid}, loss={value}, time=50.5 seconds, total_count={7 * epoch}"
        )
        log.line(f"{stamp} (trainer:386) INFO: The best model has been updated: valid.acc")
    return log.log(step_name="epochs")


def speechbrain(run: Run) -> ConsoleLog:
    log = Console("SpeechBrain train_log.txt")

    def number(value: float) -> str:
        return f"{value:.2f}" if 1 < value < 100 else f"{value:.2e}"

    for row in run.rows():
        epoch = row.index + 1
        loss, value = log.loss(epoch, number(row.loss)), log.validation(epoch, number(row.loss + 0.1))
        log.line(
            f"epoch: {epoch}, lr: {log.rate(epoch, number(row.rate))}, steps: {100 * epoch}, optimizer: Adam"
            f" - train loss: {loss} - valid loss: {value}, valid CER: 12.31, valid WER: 45.21"
        )
    return log.log(step_name="epochs; steps are stated too, 100 an epoch")


WRITERS = writers(globals())
