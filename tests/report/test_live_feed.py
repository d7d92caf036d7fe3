"""What the served page is sent: every row once, and nothing lost by a restart, a cut or a late value."""

import json
import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from live_studies import LiveStudy, live_study

from toposcope.probes import Measurement
from toposcope.report.live.assets import Assets
from toposcope.report.live.feed import Feed, View
from toposcope.report.live.making import assets_without_vega
from toposcope.study.tables import Unit

NP = "neural_persistence np_mean"
VIEW = View(run="mine", quantity=NP)


class Shown:
    """The rows of a page, put together as its script does."""

    def __init__(self, feed: Feed, view: View = VIEW) -> None:
        self.feed, self.view, self.known = feed, view, dict[str, Any]()
        self.rows: dict[tuple[str, str, str], dict[int, float]] = {}
        self.n_sent = 0
        self.message: dict[str, Any] = {}

    def update(self) -> "Shown":
        self.feed.has_changed()  # as the server asks, before it wakes a page
        self.n_sent, more = 0, True
        while more:
            self.message, position = self.feed.message(self.view, self.known)
            self.known, more = json.loads(json.dumps(position)), self.message["more"]
            for place in [place for place in self.rows if place[1] in self.message["anew"]]:
                del self.rows[place]
            for key, run, layer, steps, values in self.message["lines"]:
                self.rows.setdefault((key, run, layer), {}).update(zip(steps, values, strict=True))
                self.n_sent += len(steps)
        return self

    def steps(self, key: str, run: str = "mine", layer: str = "") -> list[int]:
        return sorted(self.rows[key, run, layer])


@cache
def assets() -> Assets:
    return Assets(**assets_without_vega(), vega="")


def feed_of(directory: Path) -> Feed:
    return Feed(directory, assets())


def stored(study: LiveStudy) -> dict[tuple[str, str, str], dict[int, float]]:
    """All that a page that shows `NP` of all layers has of a study, read at once."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for name in ("loss", "validation_loss", "learning_rate", "grad_norm"):
        for run, step, value in study.store._rows(f"SELECT run, step, {name} FROM log WHERE {name} IS NOT NULL"):
            found.setdefault((f"log {name}", run, ""), {})[step] = value
    query = "SELECT probe, run, layer, step, statistic, value FROM measurements JOIN features ON measurement = id"
    for probe, run, layer, step, statistic, value in study.store._rows(query):
        if layer == "network" or f"{probe} {statistic}" == NP:
            found.setdefault((f"{probe} {statistic}", run, layer), {})[step] = value
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_page_ends_up_with_what_is_stored_whatever_happened(tmp_path: Path, seed: int) -> None:
    draw, study = random.Random(seed), live_study(tmp_path / "mine", steps=40, every=10)
    pages = [Shown(feed_of(study.directory))]
    last = 40
    for _ in range(30):
        what = draw.choice(["log", "log", "late", "cut", "measure", "again", "restart", "open", "drop", "nothing"])
        if what == "log":
            study.log(range(last + 1, last := last + draw.randint(1, 9)))
        elif what == "late":
            study.store.append_log("mine", {draw.randint(1, last): {"validation_loss": draw.choice([3.0, math.nan])}})
        elif what == "cut":
            study.store.cut("mine", last := draw.randint(last // 2, last))
        elif what == "measure":
            study.measure(last)
        elif what == "again":
            study.measure(draw.choice([0, 10]))
        elif what == "restart":
            pages[0].feed = feed_of(study.directory)
        elif what == "open":
            pages.append(Shown(feed_of(study.directory)))
        elif what == "drop":
            study.store.drop_checkpoints("mine", [draw.choice([0, 10, 20])])
        if draw.random() < 0.7:
            draw.choice(pages).update()
    for page in pages:
        rows, expected = page.update().rows, stored(study)
        assert {place: of for place, of in rows.items() if of} == {
            place: pytest.approx(of, rel=1e-5) for place, of in expected.items()
        }


def test_many_rows_come_in_parts_and_a_replaced_study_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.report.live.stores.MAX_NEW", 70)
    study = live_study(tmp_path / "mine", steps=150, every=50)
    page = Shown(feed_of(study.directory)).update()
    assert page.rows == {place: pytest.approx(of, rel=1e-5) for place, of in stored(study).items()}
    study.store.close()
    for path in study.directory.glob("study.db*"):
        path.unlink()
    other = LiveStudy(study.directory, seed=1)
    other.log(range(1, 200))
    page.feed = feed_of(study.directory)
    assert page.update().rows == {place: pytest.approx(of, rel=1e-5) for place, of in stored(other).items()}


def test_blocks_of_a_fixed_batch_have_a_map_of_their_own(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=100, every=50)
    unit, blocks = Unit("mine", 100, "", "activations", "{}"), ("hidden.01", "hidden.02")
    values = {"attention_logit_max": 7.0, "attention_logit_max@head.00": 7.0}
    study.store.put_measurements(
        (unit._replace(layer=block), "", Measurement(block, "hidden", values), "") for block in blocks
    )
    page = Shown(feed_of(study.directory), replace(VIEW, quantity="activations attention_logit_max")).update()
    of_run = page.message["layers"]["mine"]
    assert of_run["names"] == [*study.layers, *blocks]
    assert [key for key in of_run["keys"] if key.startswith("activations")] == ["activations attention_logit_max"]
    of_layers = {layer: of for (key, _, layer), of in page.rows.items() if key.startswith("activations")}
    assert of_layers == {block: {100: 7.0} for block in blocks}


def test_runs_of_a_folder_stand_side_by_side_and_new_ones_are_found(tmp_path: Path) -> None:
    first = live_study(tmp_path / "mine", steps=20, every=10)
    (tmp_path / "notes").mkdir()
    feed = feed_of(tmp_path)
    assert Shown(feed).update().message["runs"] == ["mine"]
    second = live_study(tmp_path / "other", steps=30, every=10)
    assert feed.discover()
    assert not feed.discover()
    page = Shown(feed, View()).update()
    assert page.message["runs"] == ["mine", "other"]
    assert page.steps("log loss", "other") == list(range(1, 31))
    assert Shown(feed, View(study="other")).update().message["runs"] == ["other"]
    second.store.put_run("second", 1, "live", None, "")
    assert Shown(feed, View()).update().message["runs"] == ["mine", "other/other", "other/second"]
    first.log([21])
    assert feed.has_changed()


def test_a_folder_may_be_empty_and_a_study_may_be_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    feed = feed_of(directory)
    assert Shown(feed).update().message["runs"] == []
    live_study(directory, steps=20, every=10).store.close()
    assert feed.discover()
    assert feed.has_changed()
    assert Shown(feed).update().steps("log loss") == list(range(1, 21))
    for path in directory.glob("study.db*"):
        path.unlink()
    feed.has_changed()
    live_study(directory, steps=5, every=10)
    assert feed.has_changed()
    assert Shown(feed).update().steps("log loss") == list(range(1, 6))


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    live_study(tmp_path / "mine", steps=20, every=10)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "study.db").write_bytes(b"not a database" * 100)
    message = Shown(feed_of(tmp_path), View()).update().message
    assert message["runs"] == ["mine"]
    assert list(message["faults"]) == ["torn"]


def test_facts_of_another_shape_are_read(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=20, every=10)
    study.store.set_meta("monitor mine", '["of another shape"]')
    study.store.close()
    page = Shown(feed_of(study.directory)).update()
    assert page.steps("log loss") == list(range(1, 21))
    (status,) = page.message["statuses"]
    assert status.cost is None


def test_a_store_of_an_older_version_is_named(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=20, every=10)
    study.store.set_meta("schema_version", "7")
    study.store.close()
    (fault,) = Shown(feed_of(study.directory)).update().message["faults"].values()
    assert "schema version 7; this one reads 8" in fault


def test_labels_are_those_of_the_report() -> None:
    from toposcope.probes import make_probes

    probe = make_probes([{"name": "rips", "pooled": True, "max_points": 50}])[0]
    assert assets().label(probe.name(), probe.options()) == probe.label()
    assert assets().label("unknown", '{"a":1}') == "unknown:a=1"


def test_runs_that_are_not_drawn_count_and_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.report.live.feed.MAX_DRAWN", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
        live_study(tmp_path / name)
    message, _ = feed_of(tmp_path).message(VIEW, {})
    assert (len(message["statuses"]), {line.run for line in message["lines"]}) == (3, {"a", "b"})
    assert "2 of 3 runs, evenly by name" in message["faults"]["drawn"]
    alone, _ = feed_of(tmp_path).message(replace(VIEW, study="c"), {})
    assert {line.run for line in alone["lines"]} == {"c"}
