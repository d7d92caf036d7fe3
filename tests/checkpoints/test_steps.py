"""The step and the tokens a name tells."""

import re
from datetime import date, datetime
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toposcope.checkpoints import series
from toposcope.checkpoints.steps import has_odd_step, step_of, step_pattern, tokens_of
from toposcope.errors import ToposcopeError

FORMS = (
    # a word that can only mean a step; the numbers beside it are not
    *("step_{:06d}", "step{}", "step-{}", "step={}", "STEP_{}", "step-{:08d}", "steps_{}", "train_step_{}"),
    *("pythia-160m-step{}", "checkpoint-step-{}", "checkpoint-2-step-{}", "run7_step_{}", "2024-05-01_step_{}"),
    *("epoch=3-step={}", "step={}-epoch=3", "epoch=0-step={}-val_loss=2.31", "epoch=3-step={}-v1"),
    *("stage1-step{}-tokens4B", "stage2-ingredient1-step{}-tokens50B", "step{}-unsharded", "global_step{}"),
    # other words
    *("checkpoint-{}", "ckpt-{}", "ckpt_{:04d}", "ckpt{}", "gpt2-checkpoint-{}", "model_{:06d}", "model-{}"),
    *("iter_{:07d}", "iter-{:06d}-ckpt", "lit_model-iter-{:06d}", "iteration-{}", "checkpoint_3_iter_{}"),
    *("ep0-ba{}-rank0", "ep0-ba{}", "epoch_{}", "epoch={}", "epoch{}", "ep{}", "model-epoch={:02d}-val_loss=0.1"),
    *("{}", "{:04d}"),
)
"""Every form of a name that is known, by trainers of many kinds."""


@pytest.mark.slow
@given(st.sampled_from(FORMS), st.integers(0, 10**7))
def test_every_form_gives_its_step_back(form: str, step: int) -> None:
    assert step_of(form.format(step)) == step


@pytest.mark.parametrize("word", ["step", "checkpoint", "ckpt", "iter", "model", "epoch", "ba", ""])
@given(number=st.integers(0, 10**6), unit=st.sampled_from("kKmMbBtTe"), separator=st.sampled_from(["", "-", "_", "="]))
def test_a_unit_is_not_guessed_at(word: str, number: int, unit: str, separator: str) -> None:
    assert step_of(f"{word}{separator}{number}{unit}") is None
    assert step_of(f"{word}{separator}{number}.5{unit}") is None


ODD_NUMBERS = st.one_of(
    st.builds("{}e{}".format, st.integers(0, 99), st.integers(0, 12)),
    st.builds("{:.1f}e+{}".format, st.floats(0, 9), st.integers(0, 12)),
    st.integers(0, 10**6).map(hex),
    st.integers(1000, 10**9).map("{:_}".format),
    st.builds("{}k".format, st.integers(0, 10**4)),
    st.integers(-(10**6), -1).map(str),
    st.integers(0, 10**4).map(lambda n: "".join(chr(0x660 + int(c)) for c in str(n))),
)
"""Numbers of steps in a form that could be read in two ways, or whose beginning is a plain number."""


@given(
    word=st.sampled_from(["step", "steps", "global_step", "iter", "checkpoint", "ckpt"]),
    separator=st.sampled_from("_= "),
    number=ODD_NUMBERS,
    before=st.sampled_from(["", "run_", "epoch=1-"]),
    after=st.sampled_from(["", "_final", "-rank3"]),
)
def test_a_number_of_another_form_is_refused(word: str, separator: str, number: str, before: str, after: str) -> None:
    stem = f"{before}{word}{separator}{number}{after}"
    assert (step_of(stem), has_odd_step(stem)) == (None, True)


@given(
    word=st.sampled_from(["step", "steps", "global_step", "iter", "checkpoint", "ckpt", "model"]),
    separator=st.sampled_from("_-= "),
    step=st.integers(0, 10**6),
    width=st.integers(0, 9),
    before=st.sampled_from(["", "run_", "epoch=1-"]),
    after=st.sampled_from(["", "_final", "-rank3", "_rank3", "-v1", "_0.25", " copy"]),
)
def test_a_plain_number_is_read(word: str, separator: str, step: int, width: int, before: str, after: str) -> None:
    if len(str(step)) == 8 or width == 8:  # may be a date
        word = "step"
    stem = f"{before}{word}{separator}{step:0{width}d}{after}"
    assert (step_of(stem), has_odd_step(stem)) == (step, False)


@pytest.mark.parametrize("stem", ["step_1e9", "step_0x10", "step_1_000", "step-1.5M", "step_٣", "step_-5", "1_000"])
def test_a_checkpoint_with_a_number_of_another_form(stem: str, tmp_path: Path) -> None:
    """Alone it is not step 0 or 1; next to others it is left out, and a line says so."""
    file = tmp_path / f"{stem}.pt"
    torch.save({"weight": torch.ones(3, 3)}, file)
    with pytest.raises(ToposcopeError, match="no plain number of steps") as caught:
        series(file)
    assert file.name in str(caught.value)
    assert "\n" not in str(caught.value)
    torch.save({"weight": torch.ones(3, 3)}, tmp_path / "step_7.pt")
    opened = series(tmp_path)
    assert (opened.steps, opened.ignored) == ([7], (file.name,))
    assert any(file.name in note for note in opened.notes)
    # What is saved inside is plain.
    torch.save({"step": 1000, "model": {"weight": torch.ones(3, 3)}}, file)
    assert series(file).steps == [1000]


@given(st.dates(date(1900, 1, 1), date(2099, 12, 31)), st.sampled_from(["checkpoint-", "model_", "ckpt", "iter-", ""]))
def test_a_date_is_no_step(day: date, word: str) -> None:
    noon = datetime(day.year, day.month, day.day, 12, 34, 56)
    for form in ("%Y%m%d", "%Y-%m-%d", "%Y_%m_%d", "%Y%m%d-%H%M%S", "%Y-%m-%dT%H%M", "%Y%m%d%H%M%S"):
        assert step_of(word + noon.strftime(form)) is None
        assert step_of(f"{word}{noon.strftime(form)}-step5") == 5


@pytest.mark.parametrize(
    "stem",
    [
        *("config", "main", "best", "last", "model", "step", "step_final", "latest-rank0", ""),
        # sizes and versions
        *("pythia-14m", "pythia-160m-deduped", "gpt2", "model_v2", "model2", "model-2.0.1", "model-1.3B", "42b"),
        *("tiny-3k", "run7", "checkpoint_12ab", "checkpoint-v2", "step_10k", "step1e4", "step_1,000", "step-50K-105b"),
        # parts of a checkpoint
        *(
            "model-00001-of-00002",
            "step-3-of-4",
            "mp_rank_00_model_states",
            "layer_00-model_00-model_states",
            "rng_state_0",
            "__0_0",
            "batch_size=32",
        ),
        # words that end like one that counts
        *("deep5", "sleep7", "supermodel-3"),
        # a commit, whose letters say nothing
        "b13c706a90ba1dfc2d96e26b79c1fe1bd864529d",
        # digits of other scripts; more than the database holds
        *("step٣", "step²", "step_" + "9" * 19, "step_" + "9" * 5000),
    ],
)
def test_no_step(stem: str) -> None:
    assert step_of(stem) is None


# A pattern of one's own


def test_a_pattern_needs_one_group_of_digits() -> None:
    for text in (r"step\d+", r"(step)(\d+)", r"step(\d+", "", r"(?:\d+)"):
        with pytest.raises(ToposcopeError, match=re.escape(repr(text))):
            step_pattern(text)
    for text, stem in (
        (r"step(.*)", "step10k"),
        (r"(.)$", "a²"),
        (r"s(.*)", "s"),
        (r"(.+)", "9" * 19),
        (r"(.+)", "1_0"),
    ):
        with pytest.raises(ToposcopeError, match="digits alone"):
            step_of(stem, step_pattern(text))


# Tokens


def test_tokens() -> None:
    found = {
        "stage1-step1000-tokens4B": 4 * 10**9,
        "step0-tokens0B": 0,
        "step5-tokens1.5T": 1_500_000_000_000,
        "tokens_300M": 300 * 10**6,
        "tokens=2097152": 2097152,
        "tok-12k-step3": 12_000,
    }
    assert {stem: tokens_of(stem) for stem in found} == found
    none = ("step1000", "tokens", "tokens4Bx", "tokens1.5", "tokens1.2.3B", "4B", "tokenizer2", "mytokens4B")
    assert {tokens_of(stem) for stem in (*none, "tokens999999999999999999T")} == {None}
