"""Which table is the input embedding and which matrix the head: one that is stored, or the embedding itself, tied.

An embedding is the head as well only for a reason: the configuration says so, there is a bias for each token without a
matrix of its own, or a language model has nothing else outside its blocks. Without a reason it is an embedding.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toposcope.checkpoints import roles
from toposcope.checkpoints.formats import Entry
from toposcope.checkpoints.layer import Layer
from toposcope.wording import examples

BY_CONFIGURATION, TIED = "configuration", "tied: nothing else maps to the vocabulary"
TIED_BIAS = "tied: a bias for each token"
_EXTRA_TABLE = re.compile(
    r"per_layer|ngram|entity|value|segment|type|hash|global|emb(?:ed)?_?\d|shape|pronunciation|char"
)
_LANGUAGE_MODEL = re.compile(r"LMHead|LM(?![a-zA-Z0-9])|MTModel|ConditionalGeneration|DoubleHeads|GenerationDecoder")
"""Classes of transformers whose output is the vocabulary; encoders, classifiers and CLIP have other names."""
_EITHER = re.compile(r"EncoderDecoder|PreTraining")  # classes with a head of tokens, or without one
_RECURRENT = re.compile(r"weight_hh(?:_l\d+)?(?:_reverse)?$|recurrent_kernel$")
_MIXER = re.compile(r"mixer|mamba|ssm|rwkv|retention|temporal_block", re.IGNORECASE)
_ONE_BLOCK = re.compile(r"(?:^|[./])(?:attn?|attention|self_attn|sa|mha|mlp|ffn|ffwd|feed_forward|ff)[./]")
_ENCODER = re.compile(r"(?:^|[._])(?:encoder|bert)[._]|(?:token_type|segment)_emb|(?:^|\.)embeddings\.\w*norm", re.I)
_OTHER_INPUTS = re.compile(r"vision|visual|image|multi_?modal|audio|speech", re.IGNORECASE)
_BIAS = re.compile(r"(?:^|[._])(?:bias|b)$")


def main_embedding(layers: Sequence[Layer]) -> int | None:
    """Return the place of the input embedding among layers: the only one, or the one of tokens; None without such."""
    tables = [k for k, layer in enumerate(layers) if layer.role == "embed"]
    if len(tables) > 1:
        tables = [k for k in tables if not is_extra_table(layers[k].name)]
    return tables[0] if len(tables) == 1 else None


def is_extra_table(name: str) -> bool:
    """Return whether a name is that of a table next to the one of tokens: of segments, characters, values."""
    return _EXTRA_TABLE.search(name.lower()) is not None


def in_blocks(found: Mapping[str, str], table: str) -> Callable[[str], bool]:
    """Return a function of a name: whether it lies in a block or a recurrent layer, not between these and the output.

    `found` has the role of each matrix by its name. Blocks are numbered modules, one of which holds attention or a
    mixer, or where none does an MLP, but not `table`, the embedding; of a model without numbers, attention and an MLP.
    """
    stacks, of_mlps, recurrent = set[str](), set[str](), set[str]()
    for name, role in found.items():
        if _RECURRENT.search(name):
            recurrent.add(_RECURRENT.sub("", name))
        elif role.startswith(("attn.", "mlp.")) or _MIXER.search(name):
            outer = name.removesuffix(roles.leaf_of(name))
            numbers = (m for m in re.finditer(r"\d+", outer or name) if not table.startswith(name[: m.end()]))
            places = [name[: number.start()] for number in numbers][:1]
            (stacks if _MIXER.search(name) or role.startswith("attn.") else of_mlps).update(places)
    stacks, modules = stacks or of_mlps, tuple(recurrent - {""})

    def inside(name: str) -> bool:
        if name.startswith(modules) or "weight_hh" in name or "weight_ih" in name:
            return True
        if not stacks:
            return _ONE_BLOCK.search(name) is not None
        return any(name.startswith(stack) and name[len(stack) :][:1].isdigit() for stack in stacks)

    return inside


def by_shape(
    found: Mapping[str, tuple[Entry, str, str]], width: int | None, vectors: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Return the role that shapes alone show, by name: the head of a known embedding, the embedding of a known head.

    It is the one matrix outside the blocks that has an axis as long as the vocabulary. `found` has the numbers of each
    matrix, its role, and how that was recognised.
    """
    named = {name: role for name, (_, role, _) in found.items()}
    shapes = {name: entry.shape for name, (entry, _, _) in found.items() if len(entry.shape) == 2}
    tables = [name for name in shapes if named[name] == "embed" and not is_extra_table(name)]
    heads = [name for name in shapes if named[name] == "head"]
    if len(tables) + len(heads) != 1:
        return {}
    (known,) = tables or heads
    inside = in_blocks(named, known)
    rows, columns = shapes[known]
    inner, tokens = (rows, columns) if rows == width else (columns, rows)
    others = [
        name
        for name, shape in shapes.items()
        if tokens in shape and name != known and named[name] not in roles.NOT_ANALYSED and not inside(name)
    ]
    if tokens == inner or len(others) != 1 or found[others[0]][2] == roles.OWN_RULE:
        return {}
    (name,) = others
    bias = vectors.get(f"{name.removesuffix('weight')}bias")
    if heads:
        is_table = found[name][2] == roles.UNKNOWN and bias is None and shapes[name][0] == tokens
        return {name: "embed"} if is_table else {}
    is_head = tokens in map(math.prod, vectors.values()) or not {inner, width}.isdisjoint(shapes[name])
    return {name: "head"} if is_head else {}


def with_head(
    found: list[Layer],
    others: Mapping[str, str],
    entries: Sequence[Entry],
    configuration: Callable[[str], Mapping[str, Any]],
    unread: Iterable[str] = (),
) -> tuple[list[Layer], list[str]]:
    """Give the embedding the role of the head where the two are one matrix; say in a sentence where that is not known.

    `others` is what each tensor is that is no matrix; `configuration` returns the content of a file by its name. One of
    the `unread`, weights that are packed or of a class that is not read, may be the head.
    """
    tables = [layer.name for layer in found if layer.role == "embed"]
    if any(layer.role == "head" for layer in found) or not tables:
        return found, []
    place = main_embedding(found)
    if place is None:
        why, doubt = "", "there are several tables"
    else:
        why, doubt = _tied(found, found[place], others, entries, configuration("config.json"), [*unread])
    if why:
        return [replace(m, role="head", why=why) if k == place else m for k, m in enumerate(found)], []
    unknown = (
        f"no head is known: {examples(tables, 2)} not measured, as nothing says that an embedding is the output as "
        f"well ({doubt}); if one is, give it the role: --role REGEX=head"
    )
    return found, [unknown] if doubt else []


def _tied(
    found: Sequence[Layer],
    table: Layer,
    others: Mapping[str, str],
    entries: Sequence[Entry],
    stated: Mapping[str, Any],
    unread: Sequence[str],
) -> tuple[str, str]:
    """Return why an embedding is the head, or else what leaves it open; neither if the configuration denies it."""
    inside = in_blocks({m.name: m.role for m in found}, table.name)
    if hidden := [name for name in unread if not inside(name)]:
        return "", f"{examples(hidden, 2)} cannot be read"
    inner, classes = stated.get("text_config"), stated.get("architectures")
    ties = [part.get("tie_word_embeddings") for part in (stated, inner) if isinstance(part, dict)]
    tie = next((stated for stated in ties if isinstance(stated, bool)), None)
    names = " ".join(map(str, classes)) if isinstance(classes, list) else ""
    if tie is False or (names and not _LANGUAGE_MODEL.search(names) and not _EITHER.search(names)):
        return "", ""
    tokens, width = table.shape[::-1] if table.transposed else table.shape
    if _LANGUAGE_MODEL.search(names):
        # Fine-tuned models by hand are saved beside the configuration of the language model that they began as.
        new = [m.name for m in found if m.why == roles.UNKNOWN and not inside(m.name) and _outputs(m, width) != width]
        new = [name for name in new if not _OTHER_INPUTS.search(name)]
        return ("", f"{examples(new, 2)} may be the output instead") if new else (BY_CONFIGURATION, "")
    shapes = {e.name: e.shape for e in entries}
    weights = {m.name.removesuffix("weight") for m in found}
    if tokens != width and any(
        tokens in shape and math.prod(shape) == tokens and name.removesuffix("bias") not in weights
        for name, shape in shapes.items()
        if _BIAS.search(name) and not inside(name)
    ):
        return TIED_BIAS, ""
    outer = [m.name for m in found if m.role not in roles.NOT_ANALYSED and not inside(m.name) and _reads(m, width)]
    outer += [n for n, what in others.items() if what == "3 axes" and shapes[n][-1] == 1 and not inside(n)]
    if outer:
        return "", f"{examples(outer, 2)} may be the output"
    if tie:
        return BY_CONFIGURATION, ""
    return _of_language_model(found, width, list(shapes), inside)


def _outputs(layer: Layer, width: int) -> int:
    """Return how many outputs a matrix has that surely reads the stream; else the width itself."""
    outputs, inputs = layer.shape[::-1] if layer.transposed else layer.shape
    return outputs if inputs == width and layer.orientation else width


def _reads(layer: Layer, width: int) -> bool:
    """Return whether a matrix may read the stream: not one that surely maps something else into it."""
    outputs, inputs = layer.shape[::-1] if layer.transposed else layer.shape
    return outputs != width or inputs == width or not layer.orientation


def _of_language_model(
    found: Sequence[Layer], width: int, names: Sequence[str], inside: Callable[[str], bool]
) -> tuple[str, str]:
    """Return that the embedding is the head of a language model with nothing else, or what speaks against it."""
    last = [m for m in found if _RECURRENT.search(m.name)]
    if any("reverse" in m.name or width not in m.shape for m in last):
        return "", "its recurrent layers do not end in its width"
    readers = [m for m in found if (m.role.startswith(("attn.", "mlp.")) or _MIXER.search(m.name)) and width in m.shape]
    if not last and not any(map(inside, (m.name for m in readers))):
        return "", "no block or recurrent layer that reads it is recognised"
    if not any("decoder" in name for name in names) and (tell := next(filter(_ENCODER.search, names), "")):
        return "", f"this may be an encoder alone, by {tell}"
    return TIED, ""
