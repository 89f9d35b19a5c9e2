"""What the report shows, and that nothing in a record can become more than text in it."""

import html.parser
import json
from dataclasses import replace

import pytest

from bench_utils.history.entries import ModelEntry, PlacementEntry
from bench_utils.history.report import figures, markdown, page, timings
from bench_utils.history.report.parts import samples_in_words
from bench_utils.measure.measurement import Lap
from tests.history.report.support import columns_of, full_record, two_machines, verdict
from tests.history.support import machine, record

OF_THEIR_OWN = ["C1", "C2", "D2", "D5", "E1", "E4", "F2"]


@pytest.fixture(autouse=True)
def bundle(monkeypatch):
    """The drawing library takes seconds to bundle; its text does not matter here."""
    monkeypatch.setattr(page, "vega_bundle", lambda: "/* the library */")


def plots(claim_id, columns):
    return figures.charts_of(claim_id, columns.shown)


# --- which records stand side by side


def test_of_each_kind_the_newest_finished_record_is_shown(tmp_path):
    older, newer = (record(started_at=f"2026-01-0{day}T00:00:00Z", is_finished=True) for day in (1, 2))
    unfinished = record(started_at="2026-01-03T00:00:00Z")
    other = record(machine=machine(name="other"), is_finished=True)
    columns = columns_of(tmp_path, newer, older, unfinished, other)
    assert [column.record.started_at for column in columns.shown] == [newer.started_at, other.started_at]
    assert len(columns.overview) == 4


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"machine": machine(name="other")}, ["box", "other"]),
        ({"machine": machine(num_threads=1)}, ["box, 2 threads", "box, 1 threads"]),
        ({"model": ModelEntry("big", "r")}, ["box, tiny", "box, big"]),
        ({"placement": PlacementEntry("cpu", "bfloat16")}, ["box, float32", "box, bfloat16"]),
    ],
)
def test_a_label_says_what_tells_the_records_apart_and_no_more(tmp_path, changes, labels):
    columns = columns_of(tmp_path, record(is_finished=True), record(is_finished=True, **changes))
    assert sorted(column.label for column in columns.shown) == sorted(labels)


# --- plots


@pytest.mark.parametrize("claim_id", OF_THEIR_OWN)
def test_a_claim_with_a_plot_of_its_own_has_it_over_all_machines(tmp_path, claim_id):
    chart = plots(claim_id, columns_of(tmp_path, *two_machines()))[0]
    assert chart.spec["$schema"].startswith("https://vega.github.io/schema/vega-lite")
    if claim_id != "C2":  # steps are the same everywhere
        assert {row["run"] for row in chart.rows} == {"box", "slow"}


def test_a_claim_that_nobody_foresaw_is_drawn_too(tmp_path):
    (chart,) = plots("Z9", columns_of(tmp_path, full_record()))
    assert [(row["ms"], row["samples"]) for row in chart.rows] == [(10.0, "1 sample, ms: 10")]


def test_a_number_that_cases_have_is_an_axis_and_the_rest_is_a_series(tmp_path):
    (chart,) = plots("A3", columns_of(tmp_path, full_record()))
    assert {row["series"] for row in chart.rows} == {"recompute", "cached"}
    assert chart.spec["layer"][0]["encoding"]["x"]["field"] == "num_positions"
    (both,) = plots("A3", columns_of(tmp_path, *two_machines()))
    assert "slow, cached" in {row["series"] for row in both.rows}


def test_laps_that_are_numbers_are_an_axis_with_its_meaning(tmp_path):
    laps = plots("B3", columns_of(tmp_path, full_record()))[1]
    assert laps.title == "Time by tokens of context"
    assert [row["x"] for row in laps.rows] == [16, 64, 256]


def test_throughput_is_the_batch_over_the_time_and_its_ends_change_places(tmp_path):
    chart = plots("C1", columns_of(tmp_path, full_record()))[0]
    rate = next(row for row in chart.rows if row["what"] == "tokens/s" and row["batch"] == 4)
    assert (rate["value"], rate["low"], rate["high"]) == pytest.approx((4 / 0.15, 4 / 0.2, 4 / 0.1))
    assert rate["samples"] == "3 samples, ms: 100, 200, 150"


def test_seats_are_held_from_done_to_gone(tmp_path):
    rows = plots("C2", columns_of(tmp_path, full_record()))[0].rows
    held = [(row["policy"], row["seat"], row["from"], row["to"]) for row in rows if row["what"] == "held, done"]
    assert held == [("static", 0, 3.0, 5.0)]


def test_the_last_bin_of_a_histogram_is_open(tmp_path):
    rows = plots("E4", columns_of(tmp_path, full_record()))[0].rows
    assert [(row["magnitude"], row["dimensions"]) for row in rows] == [
        ("0 to 1", 0),
        ("1 to 2", 5),
        ("2 to 4", 2),
        ("4 and more", 1),
    ]


def test_products_of_all_shapes_are_added(tmp_path):
    rows = plots("D5", columns_of(tmp_path, full_record()))[0].rows
    assert [(row["tokens"], row["shapes"], row["ms"]) for row in rows] == [(1, 2, 200.0), (8, 2, 1600.0)]


def test_quality_stands_over_bits_and_the_reference_is_a_line(tmp_path):
    rows = plots("E1", columns_of(tmp_path, full_record()))[0].rows
    assert [(row["scheme"], row["bits"]) for row in rows] == [("reference", None), ("int8", 8.05)]


def test_a_speedup_names_the_laps_that_it_is_a_ratio_of(tmp_path):
    (row,) = plots("F2", columns_of(tmp_path, full_record()))[0].rows
    assert row["samples"] == "2 samples, ms: 400, 500 over 2 samples, ms: 200, 300"


def test_the_roofline_has_every_case_and_lap_that_was_held_against_it(tmp_path):
    rows = timings.roofline(columns_of(tmp_path, full_record()).shown).rows
    by_case = {row["case"]: row for row in rows}
    assert by_case["A3[cached-16]"]["share of the limit"] == 0.7
    assert by_case["A3[cached-16]"]["intensity over the ridge"] == pytest.approx(0.1 / 0.7)
    assert by_case["B1[40]: prefill"]["share of the limit"] == 0.6


def test_more_samples_than_a_reader_wants_are_cut_and_counted():
    words = samples_in_words([0.001] * 30)
    assert words.startswith("30 samples, ms: 1, 1")
    assert words.endswith(", ...")
    assert words.count("1,") == 24


def test_figures_of_another_shape_are_said_and_the_rest_is_drawn(tmp_path):
    held = full_record()
    for key, found in held.cases.items():
        if found.claim in ("C1", "C2", "D2", "E1", "E4"):
            held.cases[key] = replace(found, case={"renamed": 1}, notes={"histogram": "{", "timeline_static": "["})
    columns = columns_of(tmp_path, held)
    with pytest.raises(figures.NotDrawnError, match="JSONDecodeError"):
        plots("E4", columns)
    words = " ".join(Reader(page.render(columns)).words)
    assert words.count("Not drawn, for a record of another shape") == 5
    assert "Time of each case" in words


def test_laps_have_all_their_samples_in_the_table(tmp_path):
    words = Reader(page.render(columns_of(tmp_path, full_record()))).words
    assert "D5[8]: int8 | 4x4" in words
    assert "1 sample, ms: 800" in words


def test_what_a_text_states_has_no_samples(tmp_path):
    held = full_record(origin="stated")
    (key, found), *_ = [each for each in held.cases.items() if each[1].claim == "B1"]
    held.cases = {key: replace(found, bound=None, laps={"prefill": Lap((1.0224,))})}
    words = Reader(page.render(columns_of(tmp_path, held))).words
    assert "stated, without samples" in words
    assert not [word for word in words if "samples, ms" in word or "sample, ms" in word]


# --- the page


class Reader(html.parser.HTMLParser):
    """Elements, the texts of scripts, and every address."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.addresses, self.scripts, self.words = [], [], [], []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self._in_script = tag == "script"
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action", "srcset")]
        self.words += [value for name, value in attributes if name in ("title", "aria-label")]

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        (self.scripts if self._in_script else self.words).append(data)


HOSTILE = '<img src=x onerror=alert(1)></script><script>alert("2")</script>'


def hostile_record():
    held = full_record(
        machine=machine(name=HOSTILE, cpu=HOSTILE),
        model=ModelEntry(HOSTILE, HOSTILE),
        placement=PlacementEntry("cpu", "float32", HOSTILE),
    )
    for claim_id, entry in held.verdicts.items():
        held.verdicts[claim_id] = replace(entry, title=HOSTILE, measured=HOSTILE, reason=HOSTILE, picture=HOSTILE)
    for key, found in list(held.cases.items()):
        held.cases[key] = replace(
            found, case={name: HOSTILE if isinstance(v, str) else v for name, v in found.case.items()}
        )
    return held


def test_nothing_of_a_record_is_more_than_text(tmp_path):
    written = page.render(columns_of(tmp_path, hostile_record()), [HOSTILE])
    read = Reader(written)
    assert "img" not in read.elements
    assert not any("alert" in script and "<" in script for script in read.scripts)
    assert sum(HOSTILE in word for word in read.words) > 20
    # Two scripts of the page's own, and one with data for each plot, all of which are JSON still.
    *specs, library, own = read.scripts
    assert "the library" in library
    assert "vegaEmbed" in own
    assert all(json.loads(spec)["$schema"] for spec in specs)


def test_the_page_asks_for_nothing_outside_itself(tmp_path):
    written = page.render(columns_of(tmp_path, *two_machines()))
    assert all(address.startswith("#") for address in Reader(written).addresses)
    assert "default-src 'none'" in written


def test_every_link_leads_somewhere(tmp_path):
    written = page.render(columns_of(tmp_path, *two_machines()))
    for address in Reader(written).addresses:
        assert f'id="{address[1:]}"' in written, address


def test_machines_stand_side_by_side_and_a_claim_that_one_lacks_was_not_run(tmp_path):
    one, other = two_machines()
    del other.verdicts["Z9"]
    words = Reader(page.render(columns_of(tmp_path, one, other))).words
    assert {"box", "slow", "not run"} <= set(words)


def test_every_time_has_its_samples_on_hover(tmp_path):
    words = Reader(page.render(columns_of(tmp_path, full_record()))).words
    assert "3 samples, ms: 100, 200, 150" in words


def test_the_bundle_of_the_library_is_kept_for_the_next_report(monkeypatch, isolated_cache):
    monkeypatch.undo()
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_names, **_options: isolated_cache)
    made = []
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *arguments: made.append(arguments) or "bundle")
    assert [page.vega_bundle(), page.vega_bundle()] == ["bundle", "bundle"]
    assert len(made) == 1


# --- Markdown


def test_the_scoreboard_in_markdown_marks_verdicts_that_differ(tmp_path):
    one, other = two_machines()
    other.verdicts["A3"] = verdict("does not hold here", "1x")
    text = markdown.render(columns_of(tmp_path, one, other), ["bad.json is not readable"])
    lines = text.splitlines()
    assert "| claim | chapter, laptop 8 GB | box | slow |" in lines
    assert "| **A3** a title | 9x | **holds**: 2x \\[1, 3\\] | **does not hold here**: 1x |" in lines
    assert "| **B1** a title | 9x | holds: 2x \\[1, 3\\] | holds: 2x \\[1, 3\\] |" in lines
    assert lines[-1] == "- left out: bad.json is not readable"


def test_a_text_in_markdown_means_itself(tmp_path):
    held = full_record(machine=machine(name="a|b<script>[x](y)"))
    held.verdicts["A3"] = verdict(measured="**bold** | `code`\nnext @someone")
    text = markdown.render(columns_of(tmp_path, held))
    assert "a\\|b\\<script\\>\\[x\\](y)" in text
    assert "\\*\\*bold\\*\\* \\| \\`code\\` next \\@someone" in text
