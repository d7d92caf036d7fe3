"""A folder of results of lm-evaluation-harness, written by that package over tiny random models; no network is used.

``python tests/support/lm_eval_results.py FOLDER`` wrote ``tests/logs/lm_eval_results``, where of each file is kept what
says something of the evaluation (`KEPT`), not of the machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

MODELS = (("tiny-16", 16, 10), ("tiny-16", 16, 20), ("tiny-32", 32, 10))
"""Name, width and step of each model."""
TASKS = "sums,sums_group,text_corpus,sums_generated"
KEPT = (
    *("results", "groups", "group_subtasks", "n-shot", "n-samples", "versions", "higher_is_better", "config", "date"),
    *("lm_eval_version", "model_source", "model_name", "model_name_sanitized"),
)
QUESTIONS = 12
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
CHARACTERS = "\n .0123456789?abcdefghijklmnopqrstuvwxyz"

_CHOICES = """output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
_CORPUS = """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""
_GENERATED = """output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 4}
metric_list: [{metric: exact_match}]
filter_list:
  - {name: strict-match, filter: [{function: regex, regex_pattern: '(\\d+)'}, {function: take_first}]}
  - {name: flexible-extract, filter: [{function: regex, regex_pattern: '(\\d)'}, {function: take_first}]}
"""
_GROUP = """group: sums_group
task: [sums_a, sums_b]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
metadata: {version: 1.0}
"""


def write_tasks(folder: Path) -> None:
    """Write questions and the tasks that ask them: choices, a group of two, a corpus, generated answers."""
    folder.mkdir(parents=True)
    questions = folder / "questions.jsonl"
    with questions.open("w", encoding="utf-8") as file:
        for i in range(QUESTIONS):
            choices = [str(2 * i), str(2 * i + 1), str(i)]
            row = {"question": f"what is {i} plus {i}?", "choices": choices, "answer": 0, "text": f"{i} is {i}."}
            file.write(json.dumps(row) + "\n")
    for task, definition in {
        **dict.fromkeys(("sums", "sums_a", "sums_b"), _CHOICES),
        "text_corpus": _CORPUS,
        "sums_generated": _GENERATED,
    }.items():
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {questions}}}}}\ntest_split: test\n"
        (folder / f"{task}.yaml").write_text(f"task: {task}\n{data}{definition}metadata: {{version: 1.0}}\n")
    (folder / "sums_group.yaml").write_text(_GROUP)


def write_model(folder: Path, width: int, seed: int) -> None:
    """Write a random model of one layer that reads characters."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate([end, *CHARACTERS])}, unk_token=end))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end, unk_token=end)
    wrapped.save_pretrained(folder)
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=len(CHARACTERS) + 1, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPTNeoXForCausalLM(config).save_pretrained(folder)


def evaluate(folder: Path, model: str, *options: str) -> None:
    """Evaluate a model in ``models`` by the package's own command; results are written to ``results``."""
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained=models/{model}"]
    command += ["--include_path", "tasks", "--output_path", "results", "--device", "cpu", "--batch_size", "4", *options]
    environment = os.environ | OFFLINE | {"HF_HOME": str(folder / "home")}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


def main(folder: Path) -> None:
    """Write the results of all `MODELS`, and of one with other shots and fewer questions."""
    write_tasks(folder / "tasks")
    for name, width, step in MODELS:
        write_model(folder / "models" / name / f"step{step}", width, step)
        evaluate(folder, f"{name}/step{step}", "--tasks", TASKS)
    evaluate(folder, "tiny-32/step10", "--tasks", "sums", "--num_fewshot", "2", "--limit", "5")
    for path in (folder / "results").rglob("results_*.json"):
        document = json.loads(path.read_bytes())
        path.write_text(json.dumps({name: document[name] for name in KEPT if name in document}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
