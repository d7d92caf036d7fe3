"""Public models are known by their names, in any spelling, and private ones never are."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from score_files import read_files, read_scores

from toposcope_downstream.evaluations import Evaluations, read_evaluations
from toposcope_downstream.evaluations.runs import PublicModel, public_families, public_model, read_name


def words(text: str) -> list[str]:
    return text.split()


# As their publishers call them.
BASE_MODELS = words("""
EleutherAI/pythia-14m EleutherAI/pythia-160m EleutherAI/pythia-1.4b-deduped EleutherAI/pythia-12b
EleutherAI/pythia-31m-seed7 EleutherAI/pythia-160m-data-seed2 openai-community/gpt2 openai-community/gpt2-xl
EleutherAI/gpt-neo-125m EleutherAI/gpt-neo-2.7B EleutherAI/gpt-j-6b EleutherAI/gpt-neox-20b
cerebras/Cerebras-GPT-111M cerebras/Cerebras-GPT-6.7B facebook/opt-125m facebook/opt-30b bigscience/bloom-560m
bigscience/bloom-7b1 huggyllama/llama-7b huggyllama/llama-65b meta-llama/Llama-2-7b-hf meta-llama/Llama-2-70b-hf
meta-llama/Meta-Llama-3-8B meta-llama/Meta-Llama-3.1-70B meta-llama/Llama-3.1-405B meta-llama/Llama-3.2-1B
openlm-research/open_llama_7b_v2 mistralai/Mistral-7B-v0.1 mistralai/Mistral-Nemo-Base-2407 Qwen/Qwen-1_8B
Qwen/Qwen-72B Qwen/Qwen1.5-0.5B Qwen/Qwen1.5-110B Qwen/Qwen2-0.5B Qwen/Qwen2.5-0.5B Qwen/Qwen2.5-72B
Qwen/Qwen3-0.6B-Base Qwen/Qwen3-14B-Base google/gemma-2b google/gemma-2-27b google/gemma-3-1b-pt
google/gemma-3-270m microsoft/phi-1_5 microsoft/phi-2 tiiuae/falcon-7b tiiuae/falcon-180B tiiuae/falcon-rw-1b
mosaicml/mpt-7b stabilityai/stablelm-base-alpha-3b stabilityai/stablelm-3b-4e1t stabilityai/stablelm-2-1_6b
deepseek-ai/deepseek-llm-7b-base 01-ai/Yi-6B 01-ai/Yi-1.5-34B allenai/OLMo-1B-hf allenai/OLMo-7B
allenai/OLMo-1.7-7B-hf allenai/OLMo-7B-0424-hf allenai/OLMo-1B-0724-hf allenai/OLMo-2-0425-1B
allenai/OLMo-2-1124-13B allenai/OLMo-2-0325-32B allenai/Olmo-3-1025-7B allenai/DataDecide-c4-4M
allenai/DataDecide-dolma1_7-no-math-code-750M allenai/DataDecide-dclm-baseline-qc-7p-fw2-1B m-a-p/neo_7b
HuggingFaceTB/SmolLM-135M HuggingFaceTB/SmolLM2-1.7B HuggingFaceTB/SmolLM3-3B-Base
togethercomputer/RedPajama-INCITE-Base-3B-v1 togethercomputer/RedPajama-INCITE-7B-Base
TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T TinyLlama/TinyLlama_v1.1 apple/DCLM-7B TRI-ML/DCLM-1B
state-spaces/mamba-130m-hf state-spaces/mamba-2.8b-slimpj state-spaces/mamba2-2.7b RWKV/rwkv-4-169m-pile
BlinkDL/rwkv-4-pile-1b5 LLM360/Amber LLM360/K2 bigscience/bloom
""")
ONLY_WITH_PUBLISHER = ("LLM360/Amber", "LLM360/K2", "bigscience/bloom", "m-a-p/neo_7b")
TUNED = words("""
meta-llama/Llama-2-7b-chat-hf meta-llama/Meta-Llama-3-8B-Instruct meta-llama/Llama-3.2-1B-Instruct Qwen/Qwen3-0.6B
Qwen/Qwen2.5-7B-Instruct Qwen/Qwen-7B-Chat google/gemma-2-2b-it google/gemma-3-1b-it HuggingFaceTB/SmolLM3-3B
mistralai/Mistral-7B-Instruct-v0.1 TinyLlama/TinyLlama-1.1B-Chat-v1.0 allenai/OLMo-2-1124-7B-DPO
tiiuae/falcon-7b-instruct deepseek-ai/deepseek-llm-7b-chat
""")
WITH_STEPS = {
    "EleutherAI/pythia-160m": ("step0", "step512", "step3000", "step143000"),
    "EleutherAI/pythia-70m-seed3": ("step64", "step1000"),
    "allenai/OLMo-1B-hf": ("step1000-tokens4B", "step738020-tokens3094B"),
    "allenai/OLMo-2-1124-7B": ("stage1-step150-tokens1B", "stage2-ingredient1-step11931-tokens50B"),
    "allenai/DataDecide-c4-90M": ("step1250-seed-default", "step5000-seed-small-aux-2"),
    "LLM360/Amber": ("ckpt_000", "ckpt_358"),
}
# Names that leave embeddings out, or round far.
ROUGH = words("""
    gemma-2b gemma-7b gemma-2-2b llama-3.2-1b olmo-1b olmo-0724-1b olmo-2-1b dclm-1b falcon-rw-1b stablelm-alpha-3b
    datadecide-1b
""")


def spellings(name: str) -> Iterator[str]:
    """Yield a public name as people and tools write it."""
    publisher, model = name.split("/")
    yield from (name, f"{publisher}__{model}", f"{publisher}_{model}", name.lower(), name.upper(), f"{name}-hf")
    yield from (f"/data/models/{name}", f"models--{publisher}--{model}", f"results/{publisher}__{model}", f"{name}/")
    yield from (f"hub/models--{publisher}--{model}/snapshots/0a1b2c", f"{name}@main", f"{name} main", f" {name}")
    if name not in ONLY_WITH_PUBLISHER:
        yield from (model, f"./{model}", f"/data/hf_models/{model}", f"checkpoints/{model}", f"models\\{model}")
        yield from (model.replace("-", "_"), model.replace(".", "_"), f"unsloth/{model}")


def known(name: str) -> PublicModel:
    model = public_model(name)
    assert model is not None, name
    return model


@pytest.mark.parametrize("name", BASE_MODELS)
def test_any_spelling_is_the_same_model(name: str) -> None:
    model = known(name)
    assert not model.fine_tuned
    for spelling in spellings(name):
        spelt = known(spelling.replace("-hf-hf", "-hf"))
        assert (spelt.N, spelt.tokens, spelt.source) == (model.N, model.tokens, model.source), spelling


@pytest.mark.parametrize("name", TUNED)
def test_a_model_trained_further_by_its_publisher_has_its_size_alone(name: str) -> None:
    model = known(name)
    assert model.fine_tuned
    assert (model.tokens, model.tokens_per_step) == (None, None)
    assert model.family.endswith("fine-tuned")


@pytest.mark.parametrize("name", WITH_STEPS)
def test_published_checkpoints(name: str) -> None:
    for revision in WITH_STEPS[name]:
        for joint in (" ", "/", "@", "-", ",revision="):
            assert known(f"{name}{joint}{revision}") == known(name), revision


@pytest.mark.parametrize(
    "name",
    words("""
    pythia-160m-finetuned-x my-llama-20M gpt2-mine llama-custom-300m bob/gpt2 bob/Llama-2-7b-hf gpt2/checkpoint-500
    pythia-160m/checkpoint-500 pythia-160m-step1500 pythia-160m-step150000 pythia-160m/ckpt_1000 gpt2-step1000 gpt2-main
    runs/pythia-160m out/gpt2 pythia pythia-200m olmo llama llama-8b qwen2.5 EleutherAI/pythia-160m-v0 amber k2 bloom
    tiny-llama-7b Llama-2-7b-hf-lora OLMo-2-1124-7B-mine opt-125m-sst2 gemma-3-1b DataDecide-mine-4M neo-7b
    llama-2-7b-step1000 Qwen2.5-Coder-7B Qwen2.5-Math-7B gpt2-70M mamba-130m-ours not-gpt2 TheBloke/Llama-2-7B-GGUF
    """),
)
def test_private_names_and_derivatives(name: str) -> None:
    assert public_model(name) is None


SPOKEN_FOR = {
    *" ".join(owner for family in public_families() for owner in family.publishers).replace("-", " ").split(),
    *words("chat instruct deduped small medium large slimpj base sft dpo meta open unsloth huggyllama huggingface"),
    *words("model models checkpoint ckpt ckpts weights hub cache pretrained nousresearch"),
}


@given(
    st.sampled_from(BASE_MODELS),
    st.from_regex(r"[a-z]{3,9}", fullmatch=True).filter(lambda word: word not in SPOKEN_FOR),
    st.sampled_from("-_."),
)
def test_a_word_before_or_behind_makes_it_another_model(name: str, word: str, joint: str) -> None:
    model = name.rpartition("/")[2]
    for private in (f"{word}{joint}{model}", f"{model}{joint}{word}", f"{name}{joint}{word}", f"{word}/{model}"):
        assert public_model(private) is None, private


@given(st.text(max_size=40))
def test_any_text_is_read(text: str) -> None:
    public_model(text)
    read_name(text)


def test_what_a_private_name_says() -> None:
    said = read_name("mine-70m-seed-3-step500")
    assert (said.N, said.D, said.step, said.seed, said.family) == (70e6, None, 500, "3", "mine")
    assert read_name("mine-70m 5xC").D == 5 * 20 * 70e6


def in_name(size: str) -> float | None:
    """The parameters that a size in a name states: 1.3B, 1b7."""
    found = re.fullmatch(r".*?(\d+(?:\.\d+)?)([mb])(\d?)(?:-4e1t)?", size.lower())
    if found is None:
        return None
    return float(f"{found[1]}.{found[3]}" if found[3] else found[1]) * {"m": 1e6, "b": 1e9}[found[2]]


def test_the_table_agrees_with_itself() -> None:
    for model in (model for family in public_families() for model in family.models.values()):
        assert model.source
        assert model.tokens is None or model.N < model.tokens < 1e14, model.name
        if model.tokens and model.tokens_per_step and model.last_step:
            assert model.tokens_per_step * model.last_step == pytest.approx(model.tokens, rel=0.04), model.name
        stated = in_name(model.name.removeprefix(model.family).lstrip("-"))
        if stated and model.family != "tinyllama" and model.name.lower() not in ROUGH:
            assert stated / 1.151 < model.N < stated * 1.151, model.name


def test_chinchilla_and_hundred_tokens_per_parameter() -> None:
    for size in ("111M", "590M", "6.7B"):
        model = known(f"cerebras/Cerebras-GPT-{size}")
        assert model.tokens == pytest.approx(20 * model.N, rel=0.02)
    for size in ("4M", "20M", "300M"):
        model = known(f"allenai/DataDecide-c4-{size}")
        assert model.tokens == pytest.approx(100 * model.N, rel=0.08)


def test_tokens_in_revisions_are_those_of_the_table() -> None:
    for name, step, billions in (
        ("allenai/OLMo-1B", 343_000, 1438), ("allenai/OLMo-7B", 556_000, 2460),
        ("allenai/OLMo-2-0425-1B", 1_907_359, 4001),
        ("allenai/OLMo-2-1124-7B", 928_646, 3896), ("allenai/OLMo-2-1124-13B", 596_057, 5001),
        ("allenai/OLMo-2-0325-32B", 721_901, 6056),
    ):  # fmt: skip
        assert known(name).tokens_at(step) == pytest.approx(billions * 1e9, abs=1.1e9)


def test_tokens_of_a_later_stage_count_from_the_end_of_the_first() -> None:
    said = read_name("allenai/OLMo-2-1124-7B stage2-ingredient1-step11931-tokens50B")
    assert said.step == 928_646 + 11_931
    assert said.D == 928_646 * 4_194_304 + 50e9
    assert read_name("mine stage2-step100-tokens50B").D is None


def rows(evaluations: Evaluations, *columns: str) -> list[tuple[object, ...]]:
    return sorted(evaluations.table.select(columns).unique().rows(), key=str)


def test_sizes_and_tokens_of_a_leaderboard(tmp_path: Path) -> None:
    names = ["openai-community/gpt2", "EleutherAI/pythia-160m", "facebook/opt-1.3b", "my-llama-20M", "Qwen/Qwen3-0.6B"]
    random.Random(3).shuffle(names)
    evaluations = read_scores(tmp_path, "model,task,acc\n" + "".join(f"{name},piqa,0.6\n" for name in names))
    assert rows(evaluations, "run", "N", "D") == [
        ("EleutherAI/pythia-160m", 162_322_944, 299_892_736_000), ("Qwen/Qwen3-0.6B", 596_049_920, None),
        ("facebook/opt-1.3b", 1_315_758_080, 300e9), ("my-llama-20M", 20e6, None),
        ("openai-community/gpt2", 124_439_808, None),
    ]  # fmt: skip
    remarks = " ".join(evaluations.remarks)
    assert (
        "sizes and tokens of 4 runs such as EleutherAI/pythia-160m are those that their publishers declare" in remarks
    )
    assert "N of 1 run such as Qwen/Qwen3-0.6B, trained further by the publisher, is the base model's" in remarks
    assert "parameters N are read from the names of 1 run such as my-llama-20M" in remarks


def test_steps_become_tokens_only_where_checkpoints_are_published(tmp_path: Path) -> None:
    table = "model,step,task,acc\n" + "".join(
        f"{name},{step},piqa,0.6\n"
        for name, steps in (("pythia-160m", (1000, 2000)), ("gpt2", (1000, 2000)), ("pythia-70m", (500, 1500)))
        for step in steps
    )
    assert rows(read_scores(tmp_path, table), "run", "N", "step", "D") == [
        ("gpt2", None, 1000, None), ("gpt2", None, 2000, None),
        ("pythia-160m", 162_322_944, 1000, 2_097_152_000), ("pythia-160m", 162_322_944, 2000, 4_194_304_000),
        ("pythia-70m", 70e6, 1500, None), ("pythia-70m", 70e6, 500, None),
    ]  # fmt: skip


def test_own_checkpoints_of_a_public_model_are_another_run(tmp_path: Path) -> None:
    for step in (500, 1000):
        args = f"pretrained=./pythia-160m/checkpoint-{step}"
        document = {"results": {"piqa": {"acc": 0.6}}, "versions": {"piqa": 1}, "config": {"model_args": args}}
        (tmp_path / f"{step}.json").write_text(json.dumps(document))
    found = rows(read_evaluations(tmp_path), "run", "N", "step", "D")
    assert found == [("pythia-160m-checkpoint", 160e6, 1000, None), ("pythia-160m-checkpoint", 160e6, 500, None)]


def test_runs_in_a_folder_of_ones_own_are_private(tmp_path: Path) -> None:
    evaluations = read_scores(
        tmp_path, "model,task,acc\n/home/me/out/pythia-70m,piqa,0.6\n/home/me/out/pythia-160m,piqa,0.6\n"
    )
    assert rows(evaluations, "run", "N", "D") == [
        ("/home/me/out/pythia-160m", 160e6, None), ("/home/me/out/pythia-70m", 70e6, None),
    ]  # fmt: skip


def test_public_families_of_a_table_are_recipes(tmp_path: Path) -> None:
    names = ("Llama-2-7b-hf", "Llama-2-13b-hf", "pythia-1b-deduped", "pythia-410m-deduped", "ours-1B")
    evaluations = read_scores(tmp_path, "model,piqa\n" + "".join(f"{name},0.6\n" for name in names))
    assert rows(evaluations, "run", "recipe") == [
        ("Llama-2-13b-hf", "llama-2"), ("Llama-2-7b-hf", "llama-2"), ("ours-1B", ""),
        ("pythia-1b-deduped", "pythia-deduped"), ("pythia-410m-deduped", "pythia-deduped"),
    ]  # fmt: skip


def test_what_files_state_wins(tmp_path: Path) -> None:
    table = "model,N,task,acc\npythia-160m,1e8,piqa,0.6\npythia-70m,,piqa,0.6\n"
    evaluations = read_files(tmp_path, {"scores.csv": table, "runs.csv": "run,N,D\npythia-70m,2e7,3e9\n"})
    assert rows(evaluations, "run", "N", "D") == [("pythia-160m", 1e8, 299_892_736_000), ("pythia-70m", 2e7, 3e9)]
    table, runs = "model,step,task,acc\npythia-160m,1000,piqa,0.6\n", "run,tokens_per_step,N\npythia-160m,1000,5\n"
    assert rows(read_files(tmp_path, {"scores.csv": table, "runs.csv": runs}), "N", "D") == [(5, 1e6)]


def test_families_without_a_size_in_the_name(tmp_path: Path) -> None:
    folder = tmp_path
    for name in ("openai-community/gpt2", "gpt2-medium", "EleutherAI__pythia-160m", "EleutherAI/pythia-410m"):
        (folder / f"{name.replace('/', '_')}.json").write_text(
            f'{{"results": {{"piqa": {{"acc": 0.6}}}}, "versions": {{"piqa": 1}}, "model_name": "{name}"}}'
        )
    recipes = rows(read_evaluations(folder), "recipe", "run")
    assert [recipe for recipe, _ in recipes] == ["gpt2", "gpt2", "pythia", "pythia"]
