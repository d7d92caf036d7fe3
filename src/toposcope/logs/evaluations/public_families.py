"""The table of public families of language models: sizes, tokens, published checkpoints, and where they are declared.

Parameters are those of the published weights, embeddings included, and those that two layers share once: exact where
the architecture is known, else as rounded as the publisher has them. Of models that also see images, those of the
language model count. Tokens are those of the base model at the end of training. What is not public is left out, and so
are mixtures of experts, whose parameters do not compare with those of other models.
"""

from collections.abc import Mapping
from typing import NamedTuple

_LLAMA = {"7b": 6_738_415_616, "13b": 13_015_864_320}


class Family(NamedTuple):
    """A family of models that differ in size."""

    name: str
    source: str  # a paper (arXiv) or a model card
    publishers: str  # organisations whose names stand before the model's
    # a regular expression for a name in lower case, with ``-`` for any of ``._ -``; ``{}`` is the size. The group
    # ``variant`` is other data, to be named; the group ``tuned`` stands in names of models trained further
    pattern: str
    N: Mapping[str, float]  # parameters by the size in the name
    tokens: Mapping[str, float] | float | None = None  # at the end of training
    tokens_per_step: Mapping[str, float] | float | None = None  # of the first stage of training, as the next
    last_step: Mapping[str, float] | float | None = None
    # what stands before the number in the revisions of checkpoints within training; empty if none are published
    checkpoints: str = ""
    every: int = 1  # steps between published checkpoints; earlier ones are at powers of two
    later_stages: bool = False  # whether training has stages after the first, whose steps are counted anew in revisions
    publisher_required: bool = False  # whether a name without its publisher may be anybody's


_PYTHIA = {
    "14m": 14_067_712, "31m": 30_494_720, "70m": 70_426_624, "160m": 162_322_944, "410m": 405_334_016,
    "1b": 1_011_781_632, "1.4b": 1_414_647_808, "2.8b": 2_775_208_960, "6.9b": 6_857_302_016, "12b": 11_846_072_320,
}  # fmt: skip
_DATADECIDE = {  # parameters, sequences of 2,048 tokens in a step, steps
    "4M": (3_744_832, 32, 5_725), "6M": (6_010_464, 32, 9_182), "8M": (8_538_240, 32, 13_039),
    "10M": (9_900_432, 32, 15_117), "14M": (14_380_224, 32, 21_953), "16M": (16_004_560, 32, 24_432),
    "20M": (19_101_888, 64, 14_584), "60M": (57_078_144, 96, 29_042), "90M": (97_946_640, 160, 29_901),
    "150M": (151_898_880, 192, 38_157), "300M": (319_980_544, 320, 45_787), "530M": (530_074_944, 448, 57_786),
    "750M": (681_297_408, 576, 63_589), "1B": (1_176_832_000, 704, 69_369),
}  # fmt: skip
_CORPORA = (
    r"c4|dolma1-6plus|dolma1-7|falcon|fineweb|dclm|baseline|no|code|flan|math|reddit|and|cc|qc|orig|tulu|pro|edu|fw\d?"
    r"|\d+p"
)
FAMILIES = (
    Family(
        "pythia", "arXiv:2304.01373; PolyPythias arXiv:2503.09543", "EleutherAI",
        r"pythia-{}(?:-(?P<variant>deduped)|-(?:data-|weight-)?seed\d)?",
        _PYTHIA, 143_000 * 2_097_152, 2_097_152, 143_000, checkpoints="step", every=1000,
    ),
    Family(
        "gpt2", "https://huggingface.co/openai-community/gpt2; tokens are not public", "openai-community openai",
        r"gpt-?2{}", {"": 124_439_808, "-small": 124_439_808, "-medium": 354_823_168, "-large": 774_030_080,
                      "-xl": 1_557_611_200},
    ),
    Family(
        "gpt-neo", "https://huggingface.co/EleutherAI/gpt-neo-2.7B", "EleutherAI", r"gpt-neo-{}",
        {"125M": 125_198_592, "1.3B": 1_315_575_808, "2.7B": 2_651_307_520},
        {"125M": 300e9, "1.3B": 380e9, "2.7B": 420e9},
    ),
    Family(
        "gpt-j", "https://huggingface.co/EleutherAI/gpt-j-6b", "EleutherAI", r"gpt-?j-{}", {"6b": 6_050_882_784}, 402e9,
    ),
    Family(
        "gpt-neox", "arXiv:2204.06745: 150,000 steps of 1,538 sequences", "EleutherAI", r"gpt-neox-{}",
        {"20b": 20_554_567_680}, 150_000 * 1538 * 2048,
    ),
    Family(
        "cerebras-gpt", "arXiv:2304.03208", "cerebras", r"cerebras-gpt-{}",
        {"111M": 111_050_496, "256M": 255_977_024, "590M": 590_310_912, "1.3B": 1_315_723_264, "2.7B": 2_651_553_280,
         "6.7B": 6_658_404_352, "13B": 12_853_386_240},
        {"111M": 2.2e9, "256M": 5.1e9, "590M": 11.8e9, "1.3B": 26.3e9, "2.7B": 53.0e9, "6.7B": 133e9, "13B": 257e9},
    ),
    Family(
        "opt", "arXiv:2205.01068: 300B tokens, from a corpus of 180B", "facebook", r"opt-{}",
        {"125m": 125_239_296, "350m": 331_196_416, "1.3b": 1_315_758_080, "2.7b": 2_651_596_800,
         "6.7b": 6_658_473_984, "13b": 12_853_473_280, "30b": 29_974_540_288, "66b": 65_719_701_504, "175b": 175e9},
        300e9,
    ),
    Family(
        "bloom", "arXiv:2211.05100, table 3", "bigscience", r"bloom-{}",
        {"560m": 559_214_592, "1b1": 1_065_314_304, "1b7": 1_722_408_960, "3b": 3_002_557_440, "7b1": 7_069_016_064},
        341e9,
    ),
    Family(
        "bloom", "arXiv:2211.05100, table 3", "bigscience", r"bloom{}", {"": 176_247_271_424, "-176b": 176_247_271_424},
        366e9, publisher_required=True,
    ),
    Family(
        "llama", "arXiv:2302.13971", "meta-llama huggyllama", r"llama-{}",
        {**_LLAMA, "30b": 32_528_943_616, "33b": 32_528_943_616, "65b": 65_285_660_672},
        {"7b": 1e12, "13b": 1e12, "30b": 1.4e12, "33b": 1.4e12, "65b": 1.4e12},
    ),
    Family(
        "llama-2", "arXiv:2307.09288", "meta-llama", r"(?:meta-)?llama-?2-{}(?P<tuned>-chat)?",
        {**_LLAMA, "70b": 68_976_648_192}, 2e12,
    ),
    Family(
        "llama-3", "https://huggingface.co/meta-llama/Meta-Llama-3-8B: over 15T", "meta-llama",
        r"(?:meta-)?llama-?3-{}(?P<tuned>-instruct)?", {"8b": 8_030_261_248, "70b": 70_553_706_496}, 15e12,
    ),
    Family(
        "llama-3.1", "arXiv:2407.21783; https://huggingface.co/meta-llama/Llama-3.1-8B", "meta-llama",
        r"(?:meta-)?llama-?3-1-{}(?P<tuned>-instruct)?",
        {"8b": 8_030_261_248, "70b": 70_553_706_496, "405b": 405_853_388_800},
        {"8b": 15e12, "70b": 15e12, "405b": 15.6e12},
    ),
    Family(
        "llama-3.2", "https://huggingface.co/meta-llama/Llama-3.2-1B: up to 9T", "meta-llama",
        r"(?:meta-)?llama-?3-2-{}(?P<tuned>-instruct)?", {"1b": 1_235_814_400, "3b": 3_212_749_824}, 9e12,
    ),
    Family(
        "open_llama", "https://github.com/openlm-research/open_llama", "openlm-research",
        r"open-?llama-{}(?:-(?P<variant>v2))?", {"3b": 3_426_473_600, **_LLAMA}, 1e12,
    ),
    Family(
        "mistral", "arXiv:2310.06825; tokens are not public", "mistralai", r"mistral-7b(?P<tuned>-instruct)?-{}",
        {"v0.1": 7_241_732_096, "v0.2": 7_241_732_096, "v0.3": 7_248_023_552},
    ),
    Family(
        "mistral-nemo", "https://huggingface.co/mistralai/Mistral-Nemo-Base-2407; tokens are not public", "mistralai",
        r"mistral-nemo-(?:base|(?P<tuned>instruct))-{}", {"2407": 12_247_782_400},
    ),
    Family(
        "qwen", "arXiv:2309.16609; https://github.com/QwenLM/Qwen", "Qwen", r"qwen-{}(?P<tuned>-chat)?",
        {"1.8B": 1_836_828_672, "7B": 7_721_324_544, "14B": 14_167_290_880, "72B": 72_287_920_128},
        {"1.8B": 2.2e12, "7B": 2.4e12, "14B": 3e12, "72B": 3e12},
    ),
    Family(
        "qwen1.5", "https://qwenlm.github.io/blog/qwen1.5; tokens are not stated by size", "Qwen",
        r"qwen-?1-5-{}(?P<tuned>-chat)?",
        {"0.5B": 463_987_712, "1.8B": 1_836_828_672, "4B": 3_950_369_280, "7B": 7_721_324_544, "14B": 14_167_290_880,
         "32B": 32_512_218_112, "72B": 72_287_920_128, "110B": 111_209_914_368},
    ),
    Family(
        "qwen2", "arXiv:2407.10671", "Qwen", r"qwen-?2-{}(?P<tuned>-instruct)?",
        {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "7B": 7_615_616_512, "72B": 72_706_203_648},
        {"0.5B": 12e12, "1.5B": 7e12, "7B": 7e12, "72B": 7e12},
    ),
    Family(
        "qwen2.5", "arXiv:2412.15115: up to 18T", "Qwen", r"qwen-?2-5-{}(?P<tuned>-instruct)?",
        {"0.5B": 494_032_768, "1.5B": 1_543_714_304, "3B": 3_085_938_688, "7B": 7_615_616_512, "14B": 14_770_033_664,
         "32B": 32_763_876_352, "72B": 72_706_203_648},
        18e12,
    ),
    Family(  # of the name without -Base the publisher has a model trained further
        "qwen3", "arXiv:2505.09388", "Qwen", r"qwen-?3-{}(?:-base|(?P<tuned>))",
        {"0.6B": 596_049_920, "1.7B": 1_720_574_976, "4B": 4_022_468_096, "8B": 8_190_735_360, "14B": 14_768_307_200,
         "32B": 32_762_123_264},
        36e12,
    ),
    Family(
        "gemma", "arXiv:2403.08295", "google", r"gemma-{}(?P<tuned>-it)?", {"2b": 2_506_172_416, "7b": 8_537_680_896},
        {"2b": 3e12, "7b": 6e12},
    ),
    Family(
        "gemma-2", "arXiv:2408.00118", "google", r"gemma-2-{}(?P<tuned>-it)?",
        {"2b": 2_614_341_888, "9b": 9_241_705_984, "27b": 27_227_128_320}, {"2b": 2e12, "9b": 8e12, "27b": 13e12},
    ),
    Family(
        "gemma-3", "arXiv:2503.19786; https://huggingface.co/google/gemma-3-270m", "google",
        r"gemma-3-{}-(?:pt|(?P<tuned>it))",
        {"1b": 999_885_952, "4b": 3_880_263_168, "12b": 11_766_034_176, "27b": 27_009_346_304},
        {"1b": 2e12, "4b": 4e12, "12b": 12e12, "27b": 14e12},
    ),
    Family(
        "gemma-3", "https://huggingface.co/google/gemma-3-270m", "google", r"gemma-3-{}(?P<tuned>-it)?",
        {"270m": 268_098_176}, 6e12,
    ),
    Family(
        "phi", "arXiv:2306.11644, arXiv:2309.05463; https://huggingface.co/microsoft/phi-2", "microsoft", r"phi-{}",
        {"1": 1_418_270_720, "1.5": 1_418_270_720, "2": 2_779_683_840}, {"1": 54e9, "1.5": 150e9, "2": 1.4e12},
    ),
    Family(
        "falcon", "arXiv:2311.16867", "tiiuae", r"falcon-{}(?P<tuned>-instruct|-chat)?",
        {"7b": 6_921_720_704, "40b": 41_303_293_952, "180b": 178_557_088_768},
        {"7b": 1.5e12, "40b": 1e12, "180b": 3.5e12},
    ),
    Family(
        "falcon-rw", "arXiv:2306.01116", "tiiuae", r"falcon-rw-{}", {"1b": 1_311_625_216, "7b": 7_455_727_616}, 350e9,
    ),
    Family(
        "mpt", "https://huggingface.co/mosaicml/mpt-30b", "mosaicml", r"mpt-{}(?P<tuned>-instruct|-chat)?",
        {"7b": 6_649_286_656, "30b": 29_957_200_896}, {"7b": 1e12, "30b": 1.05e12},
    ),
    Family(
        "stablelm-alpha", "https://github.com/Stability-AI/StableLM", "stabilityai",
        r"stablelm-(?:base|(?P<tuned>tuned))-alpha-{}", {"3b": 3_638_525_952, "7b": 7_869_358_080}, 800e9,
    ),
    Family(
        "stablelm-3b-4e1t", "https://github.com/Stability-AI/StableLM: 4 epochs of 1T", "stabilityai", r"stablelm-{}",
        {"3b-4e1t": 2_795_443_200}, 4e12,
    ),
    Family(
        "stablelm-2", "arXiv:2402.17834; https://huggingface.co/stabilityai/stablelm-2-12b", "stabilityai",
        r"stablelm-2-{}(?P<tuned>-chat)?", {"1.6b": 1_644_417_024, "12b": 12_143_605_760}, 2e12,
    ),
    Family(
        "deepseek-llm", "arXiv:2401.02954", "deepseek-ai", r"deepseek-llm-{}-(?:base|(?P<tuned>chat))",
        {"7b": 6_910_365_696, "67b": 67_425_001_472}, 2e12,
    ),
    Family(
        "yi", "https://huggingface.co/01-ai/Yi-9B", "01-ai", r"yi-{}(?P<tuned>-chat)?",
        {"6B": 6_061_035_520, "9B": 8_829_407_232, "34B": 34_388_917_248}, {"6B": 3e12, "9B": 3.8e12, "34B": 3e12},
    ),
    Family(
        "yi-1.5", "https://github.com/01-ai/Yi-1.5", "01-ai", r"yi-1-5-{}(?P<tuned>-chat)?",
        {"6B": 6_061_035_520, "9B": 8_829_407_232, "34B": 34_388_917_248}, 3.6e12,
    ),
    Family(
        "olmo", "arXiv:2402.00838; https://huggingface.co/allenai/OLMo-1B",
        "allenai", r"olmo-{}(?P<tuned>-instruct|-sft)?",
        {"1B": 1_176_764_416, "7B": 6_888_095_744}, {"1B": 3e12, "7B": 2.46e12}, {"1B": 4_194_304, "7B": 4_423_680},
        {"1B": 738_020}, checkpoints="step",
    ),
    Family(
        "olmo-0424", "https://huggingface.co/allenai/OLMo-7B-0424",
        "allenai", r"olmo-(?:1-7-(?!.*0424)|(?=.*0424)){}(?:-0424)?",
        {"7B": 6_888_095_744}, 2.05e12, checkpoints="step",
    ),
    Family(
        "olmo-0724", "https://huggingface.co/allenai/OLMo-7B-0724-hf",
        "allenai", r"olmo-{}-0724(?P<tuned>-instruct|-sft)?",
        {"1B": 1_279_787_008, "7B": 6_888_095_744}, {"1B": 3.05e12, "7B": 2.75e12}, checkpoints="step",
    ),
    Family(
        "olmo-2", "arXiv:2501.00656; model cards", "allenai",
        r"olmo-?2-(?:0425-|1124-|0325-)?{}(?P<tuned>-instruct|-sft|-dpo)?",
        {"1B": 1_484_916_736, "7B": 7_298_617_344, "13B": 13_716_198_400, "32B": 32_234_279_936},
        {"1B": 4e12, "7B": 4e12, "13B": 5e12, "32B": 6e12},
        {"1B": 2_097_152, "7B": 4_194_304, "13B": 8_388_608, "32B": 8_388_608},
        {"1B": 1_907_359, "7B": 928_646, "13B": 596_057, "32B": 721_901}, checkpoints="step", later_stages=True,
    ),
    Family(
        "olmo-3", "https://huggingface.co/allenai/Olmo-3-1025-7B, Olmo-3-1125-32B", "allenai", r"olmo-?3-{}",
        {"1025-7B": 7_298_011_136, "1125-32B": 32_233_522_176}, {"1025-7B": 5.93e12, "1125-32B": 5.5e12},
        {"1025-7B": 4_194_304}, {"1025-7B": 1_413_814}, checkpoints="step", later_stages=True,
    ),
    Family(
        "DataDecide", "arXiv:2504.11393, table of sizes", "allenai",
        rf"datadecide-(?P<variant>(?:{_CORPORA})(?:-(?:{_CORPORA}))*)-{{}}",
        {size: N for size, (N, _, _) in _DATADECIDE.items()},
        {size: float(steps * batch * 2048) for size, (_, batch, steps) in _DATADECIDE.items()},
        {size: batch * 2048 for size, (_, batch, _) in _DATADECIDE.items()},
        {size: steps for size, (_, _, steps) in _DATADECIDE.items()}, checkpoints="step",
    ),
    Family(
        "amber", "arXiv:2312.06550", "LLM360", r"amber{}", {"": 6_738_415_616}, 1.26e12, last_step=359,
        checkpoints="ckpt_", publisher_required=True,
    ),
    Family(
        "k2", "https://huggingface.co/LLM360/K2", "LLM360", r"k2{}", {"": 65_285_660_672}, 1.4e12, checkpoints="ckpt_",
        publisher_required=True,
    ),
    Family(
        "neo", "arXiv:2405.19327", "m-a-p", r"neo-{}(?P<tuned>-instruct-v0-1|-sft-v0-1)?", {"7b": 7_792_143_360},
        4.5e12, publisher_required=True,
    ),
    Family(
        "smollm", "https://huggingface.co/blog/smollm", "HuggingFaceTB", r"smollm-{}(?P<tuned>-instruct)?",
        {"135M": 134_515_008, "360M": 361_821_120, "1.7B": 1_711_376_384},
        {"135M": 600e9, "360M": 600e9, "1.7B": 1e12},
    ),
    Family(
        "smollm2", "arXiv:2502.02737", "HuggingFaceTB", r"smollm-?2-{}(?P<tuned>-instruct)?",
        {"135M": 134_515_008, "360M": 361_821_120, "1.7B": 1_711_376_384},
        {"135M": 2e12, "360M": 4e12, "1.7B": 11e12},
    ),
    Family(
        "smollm3", "https://huggingface.co/HuggingFaceTB/SmolLM3-3B-Base", "HuggingFaceTB",
        r"smollm-?3-{}(?:-base|(?P<tuned>))", {"3B": 3_075_098_624}, 11.2e12,
    ),
    Family(
        "redpajama-incite", "https://huggingface.co/togethercomputer/RedPajama-INCITE-Base-3B-v1", "togethercomputer",
        r"redpajama-incite-(?:base|(?P<tuned>chat|instruct))-{}-v1", {"3B": 2_775_864_320}, 800e9,
    ),
    Family(
        "redpajama-incite", "https://huggingface.co/togethercomputer/RedPajama-INCITE-7B-Base", "togethercomputer",
        r"redpajama-incite-{}-(?:base|(?P<tuned>chat|instruct))", {"7B": 6_857_302_016}, 1e12,
    ),
    Family(
        "tinyllama", "https://github.com/jzhang38/TinyLlama", "TinyLlama", r"tinyllama-1-1b-(?:intermediate-)?step-{}",
        dict.fromkeys(
            ("50K-105b", "240k-503b", "480k-1T", "715k-1.5T", "955k-token-2T", "1195k-token-2.5T", "1431k-3T"),
            1_100_048_384,
        ),
        {"50K-105b": 105e9, "240k-503b": 503e9, "480k-1T": 1e12, "715k-1.5T": 1.5e12, "955k-token-2T": 2e12,
         "1195k-token-2.5T": 2.5e12, "1431k-3T": 3e12},
    ),
    Family("tinyllama", "https://huggingface.co/TinyLlama/TinyLlama_v1.1", "TinyLlama", r"tinyllama-{}",
           {"v1.1": 1_100_048_384}, 2e12),
    Family("tinyllama", "https://github.com/jzhang38/TinyLlama", "TinyLlama", r"tinyllama-{}(?P<tuned>-chat-v\d-\d)",
           {"1.1B": 1_100_048_384}),
    Family(
        "dclm", "arXiv:2406.11794; https://huggingface.co/apple/DCLM-7B; tokens of the 1B are stated variously",
        "apple TRI-ML mlfoundations", r"dclm-(?:baseline-)?{}", {"1B": 1.4e9, "7B": 6_889_410_560}, {"7B": 2.5e12},
    ),
    Family(
        "mamba", "arXiv:2312.00752", "state-spaces", r"mamba-{}",
        {"130m": 129_135_360, "370m": 371_516_416, "790m": 793_204_224, "1.4b": 1_372_178_432, "2.8b": 2_768_345_600},
        300e9,
    ),
    Family(
        "mamba-slimpj", "https://github.com/state-spaces/mamba", "state-spaces", r"mamba-{}-slimpj",
        {"2.8b": 2_768_345_600}, 600e9,
    ),
    Family(
        "mamba2", "arXiv:2405.21060", "state-spaces", r"mamba-?2-{}",
        {"130m": 128_989_632, "370m": 368_346_624, "780m": 780_161_280, "1.3b": 1_343_757_312, "2.7b": 2_702_599_680},
        300e9,
    ),
    Family(
        "rwkv-4", "arXiv:2305.13048: one epoch of the Pile", "RWKV BlinkDL", r"rwkv-4-(?=.*pile)(?:pile-)?{}(?:-pile)?",
        {"169m": 169_342_464, "430m": 430_397_440, "1b5": 1_515_106_304, "3b": 2_984_627_200, "7b": 7_392_649_216,
         "14b": 14_148_597_760},
        330e9,
    ),
)  # fmt: skip
