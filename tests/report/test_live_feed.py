"""What the served page is sent: every row once, spikes kept, nothing lost by a restart, a cut or a late value."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from live_studies import LiveStudy, live_study

from toposcope.probes import Measurement
from toposcope.report.live.assets import Assets
from toposcope.report.live.database import Row, columns, rows_a_run, single, thinned
from toposcope.report.live.feed import Feed, View
from toposcope.report.live.layer_map import LayerTable, layer_map
from toposcope.report.live.making import assets_without_vega
from toposcope.study.tables import Unit

VIEW = View(
    feature="neural_persistence np_mean", run="mine", quantity="neural_persistence np_mean", layer="layers.1.mlp.weight"
)


class Shown:
    """The rows of a page, put together as its script does."""

    def __init__(self, feed: Feed, view: View = VIEW) -> None:
        self.feed, self.view, self.known = feed, view, dict[str, Any]()
        self.rows: dict[tuple[str, str], dict[str, list[Any]]] = {}
        self.n_sent = 0
        self.message: dict[str, Any] = {}

    def update(self) -> "Shown":
        self.feed.has_changed()  # as the server asks, before it wakes a page
        self.message, position = self.feed.message(self.view, self.known)
        self.known = json.loads(json.dumps(position))
        self.n_sent = sum(len(line["rows"]["step"]) for line in self.message["lines"])
        for line in self.message["lines"]:
            before = self.rows.get((line["chart"], line["run"]), {"step": [], "value": []})
            kept = sum(step <= line["after"] for step in before["step"])
            self.rows[line["chart"], line["run"]] = {
                name: before[name][:kept] + line["rows"][name] for name in ("step", "value")
            }
        return self

    def steps(self, chart: str, run: str = "mine") -> list[int]:
        return self.rows[chart, run]["step"]


@cache
def assets() -> Assets:
    return Assets(**assets_without_vega(), vega="")


def feed_of(directory: Path) -> Feed:
    return Feed(directory, assets())


def losses(study: LiveStudy) -> dict[int, float]:
    return dict(study.store._rows("SELECT step, loss FROM log ORDER BY step"))


def test_thinned_rows_keep_every_extreme() -> None:
    values = [0.0] * 10_000
    values[4321], values[77] = 50.0, -3.0
    rows = thinned(single(enumerate(values)), 100)
    assert len(rows) == 100
    assert (max(row.high for row in rows), min(row.low for row in rows)) == (50.0, -3.0)
    assert sum(row.n for row in rows) == 10_000
    assert sum(row.value * row.n for row in rows) == pytest.approx(47.0)
    again = thinned(rows, 30)
    assert (max(row.high for row in again), sum(row.n for row in again)) == (50.0, 10_000)


def test_single_rows_have_no_range_and_no_infinity() -> None:
    rows = single([(1, 2.0), (2, None), (3, float("inf")), (4, float("nan")), (5, 1.0)])
    assert columns(rows) == {"step": [1, 5], "value": [2.0, 1.0]}
    assert "low" in columns([*rows, Row(9, 1.0, 0.0, 2.0, 4)])


def test_first_every_row_then_only_new_ones(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=150, every=50)
    page = Shown(feed_of(study.directory)).update()
    assert page.steps("explore-loss") == list(range(1, 151))
    assert page.steps("explore-feature") == page.steps("layer-lines") == [0, 50, 100, 150]
    assert len(page.steps("layer-map")) == 4 * 4
    assert page.update().n_sent == 0  # nothing was written
    study.log([151, 152])
    page.update()
    assert page.n_sent < 40  # a few rows again, of three columns
    assert page.steps("explore-loss") == list(range(1, 153))
    study.measure(200)
    page.update()
    assert page.steps("explore-feature") == [0, 50, 100, 150, 200]
    assert page.rows["explore-loss", "mine"]["value"] == pytest.approx(list(losses(study).values()), rel=1e-5)


def test_a_restarted_server_goes_on_where_the_page_is(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=150, every=50)
    page = Shown(feed_of(study.directory)).update()
    study.log(range(151, 171))
    page.feed = feed_of(study.directory)
    page.update()
    assert page.n_sent < 100
    assert page.steps("explore-loss") == list(range(1, 171))


def test_a_value_added_late_and_a_run_that_was_cut_are_noticed(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=150, every=50)
    page = Shown(feed_of(study.directory), View(feature="log validation_loss")).update()
    study.store.append_log("mine", {150: {"validation_loss": 2.5}})
    assert page.update().steps("explore-feature") == [150]
    study.store.append_log("mine", {20: {"validation_loss": 4.5}})
    assert page.update().steps("explore-feature") == [20, 150]
    study.store.cut("mine", 70)
    assert page.update().steps("explore-loss") == list(range(1, 71))
    study.log(range(71, 91))
    assert page.update().steps("explore-loss") == list(range(1, 91))


def test_a_cut_run_that_went_on_between_two_looks_is_sent_anew(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=150, every=50)
    page = Shown(feed_of(study.directory)).update()
    study.store.cut("mine", 60)
    study.log(range(61, 161))
    study.measure(160)
    page.update()
    assert page.steps("explore-loss") == list(range(1, 161))
    assert page.steps("explore-feature") == [0, 50, 160]
    assert page.rows["explore-loss", "mine"]["value"] == pytest.approx(list(losses(study).values()), rel=1e-5)


def test_a_long_log_is_thinned_with_its_spike_and_shown_whole_on_request(tmp_path: Path) -> None:
    study = LiveStudy(tmp_path / "mine")
    study.log(range(1, 20_001))
    study.store.append_log("mine", {12_345: {"loss": 99.0}})
    page = Shown(feed_of(study.directory)).update()
    (line,) = [each for each in page.message["lines"] if each["chart"] == "explore-loss"]
    assert len(line["rows"]["step"]) <= rows_a_run(1) + 10
    assert max(line["rows"]["high"]) == 99.0
    assert line["rows"]["step"] == sorted(line["rows"]["step"])
    (near,) = page.feed.detail(VIEW, "explore-loss", (12_300, 12_400))
    assert near["rows"]["step"] == list(range(12_300, 12_401))
    assert near["rows"]["value"][45] == 99.0
    study.log(range(20_001, 20_101))
    page.update()
    assert page.steps("explore-loss")[-100:] == list(range(20_001, 20_101))
    (line,) = [each for each in Shown(page.feed).update().message["lines"] if each["chart"] == "explore-loss"]
    assert max(line["rows"]["high"]) == 99.0


def test_the_map_of_many_steps_keeps_a_layers_spike() -> None:
    table = LayerTable(["a", "b"])
    for step in range(500):
        table.steps.append(step)
        table.values.extend([9.0 if step == 321 else 1.0, float("nan")])
    cells, width = layer_map(table, 48)
    assert width == 11
    assert max(value for value in cells["value"] if value is not None) == 9.0
    assert {value for layer, value in zip(cells["layer"], cells["value"], strict=True) if layer == "b"} == {None}


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
    (shown,) = [line["rows"] for line in page.message["lines"] if line["chart"] == "layer-map"]
    assert (shown["layer"], shown["value"]) == ([*blocks], [7.0, 7.0])
    assert set(page.rows["layer-map", "mine"]["value"]) == {7.0}


def test_measuring_a_step_again_replaces_it(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=150, every=50)
    page = Shown(feed_of(study.directory)).update()
    before = page.rows["layer-map", "mine"]["value"]
    study.measure(100)
    page.update()
    assert page.steps("explore-feature") == [0, 50, 100, 150]
    assert page.rows["layer-map", "mine"]["value"] != before


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
    assert page.steps("explore-loss", "other") == list(range(1, 31))
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
    assert Shown(feed).update().steps("explore-loss") == list(range(1, 21))
    for path in directory.glob("study.db*"):
        path.unlink()
    feed.has_changed()
    live_study(directory, steps=5, every=10)
    assert feed.has_changed()
    assert Shown(feed).update().steps("explore-loss") == list(range(1, 6))


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
    assert page.steps("explore-loss") == list(range(1, 21))
    (status,) = page.message["statuses"]
    assert status.cost is None


def test_a_store_of_an_older_version_is_named(tmp_path: Path) -> None:
    study = live_study(tmp_path / "mine", steps=20, every=10)
    study.store.set_meta("schema_version", "5")
    study.store.close()
    (fault,) = Shown(feed_of(study.directory)).update().message["faults"].values()
    assert "schema version 5; this one reads 7" in fault


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
    assert (len(message["statuses"]), {line["run"] for line in message["lines"]}) == (3, {"a", "b"})
    assert "first 2 of 3 by name" in message["faults"]["drawn"]
    alone, _ = feed_of(tmp_path).message(replace(VIEW, study="c"), {})
    assert {line["run"] for line in alone["lines"]} == {"c"}
