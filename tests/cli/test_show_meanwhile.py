"""Pages that are served while a command works: `study run --show` and `demo --live`."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from small_runs import SIZE, small_corpus
from small_studies import NEURAL_PERSISTENCE, series_study, write_series

from toposcope.family import TrainingOptions
from toposcope.monitor import demonstration
from toposcope.study import Declaration, Study
from toposcope.study.declared_runs import DeclaredRun

COMMAND = (sys.executable, "-c", "from toposcope.cli import main; main()")


@pytest.mark.slow
def test_study_run_serves_the_page_and_ends_with_it(tmp_path: Path) -> None:
    declared = series_study(write_series(tmp_path / "series", [0, 1, 2]), [NEURAL_PERSISTENCE])
    (tmp_path / "study.toml").write_text(declared.to_toml())
    command = [*COMMAND, "study", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out"), "--show"]
    environment = {**os.environ, "TOPOSCOPE_CACHE": str(tmp_path / "cache"), "CI": "1"}
    done = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"live page: (http://\S+)", done.stdout)
    if found:  # a study this small may be finished before the page is there
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(found[1], timeout=10)
    assert (tmp_path / "out" / "report" / "index.html").is_file()


@pytest.mark.slow
def test_the_page_goes_when_the_process_that_fills_it_is_killed(tmp_path: Path) -> None:
    program = "import sys; from toposcope.cli.show import serve_until_stdin_ends; serve_until_stdin_ends(sys.argv[1])"
    environment = {**os.environ, "TOPOSCOPE_CACHE": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    assert server.stdin is not None
    assert server.stdout.readline().startswith(b"live page: http://127.0.0.1:")
    server.stdin.close()
    assert server.wait(timeout=60) == 0
    server.stdout.close()


def test_the_demos_family_is_trained_with_the_monitor_on(tmp_path: Path) -> None:
    training = TrainingOptions(steps=60, batch_size=4, learning_rate=1e-2, warmup_steps=4, checkpoint_every=10)
    runs = [DeclaredRun(size=SIZE, name=name) for name in ("first", "second")]
    declared = Declaration(name="demo", corpus=small_corpus(tmp_path), training=training, runs=runs)
    demonstration.train_monitored(declared, tmp_path / "out")
    for name in ("first", "second"):
        study = Study.load(tmp_path / "out" / name)
        assert study.log().get_column("step").to_list() == list(range(1, 61))
        assert study.log().get_column("validation_loss").is_not_null().sum() == 1
        assert study.runs().row(0, named=True)["kind"] == "live"
        assert study.runs().row(0, named=True)["status"] == "complete"
    before = (tmp_path / "out" / "first" / "study.db").stat().st_mtime_ns
    demonstration.train_monitored(declared, tmp_path / "out")
    assert (tmp_path / "out" / "first" / "study.db").stat().st_mtime_ns == before
