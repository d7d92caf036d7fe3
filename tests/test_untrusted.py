"""What is read from outside takes memory and time in proportion to its size, or is refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from toposcope.untrusted import MAX_BYTES, MAX_VALUES, bytes_of, is_bounded, json_value, toml_value


def shared(depth: int, width: int) -> list[Any]:
    """A list that lies `width` times in each of the lists above it."""
    content: list[Any] = [1, 2]
    for _ in range(depth):
        content = [content] * width
    return content


@pytest.mark.parametrize(
    ("content", "bounded"),
    [
        ([[*range(100)]] * 1, True),
        ([shared(1, 100)] * 10**4, False),
        (shared(40, 2), False),
        (shared(10, 2), True),
        ([[1]] * 1000, True),
        (None, True),
    ],
    ids=["one", "wide", "doubling", "small", "plain", "none"],
)
def test_the_parts_of_each_container_are_listed_once_or_twice(content: Any, bounded: bool) -> None:
    listed: dict[int, int] = {}

    def parts_of(value: Any) -> list[Any]:
        listed[id(value)] = listed.get(id(value), 0) + 1
        return value if isinstance(value, list) else []

    assert is_bounded(content, parts_of) is bounded
    assert max(listed.values()) <= 2


def test_what_holds_itself_is_cut_there() -> None:
    content: dict[str, Any] = {"a": [1]}
    content["a"] += [content, content["a"]]
    content["b"] = content
    assert is_bounded(content, lambda value: list(value.values()) if isinstance(value, dict) else value)
    assert content == {"a": [1, None, None], "b": None}
    around: list[Any] = []
    around.append((around,))
    assert not is_bounded(around, list)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".".join("a" * 50_000) + " = 1", "more than 20 deep"),
        ("[" + ".".join("a" * 50_000) + "]", "more than 20 deep"),
        ("[[" + '."a"' * 50_000 + "]]", "more than 20 deep"),
        ("a = " + "[" * 50_000, "nested too deeply"),
        ("a = " + "[" * 25 + "1" + "]" * 25, "more than 20 deep"),
        ("#" * 5_000_000, "of at most"),
        ('path = "' + "../" * 50 + 'x"\ntext = "Wait ... for it. And so on."', ""),
    ],
    ids=["dots", "header", "tables", "brackets", "deep", "long", "innocent"],
)
def test_toml(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    if not words:
        assert toml_value(file)["path"].endswith("../x")
        return
    with pytest.raises(ValueError, match=words) as caught:
        toml_value(file)
    assert "\n" not in str(caught.value)


def test_json_of_too_many_values_or_bytes_is_not_made(tmp_path: Path) -> None:
    for text in ("[" + "[]," * MAX_VALUES + "1]", b"[" + b"1," * (MAX_VALUES + 1) + b"1]", "[" * 10**5):
        with pytest.raises(ValueError, match=r"values|nested too deeply"):
            json_value(text)
    file = tmp_path / "long.json"
    with file.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="of at most"):
        bytes_of(file)
