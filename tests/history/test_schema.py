"""The text of a record: sealed, of a published schema, and read in every version."""

import json
from pathlib import Path

import jsonschema
import pytest

from bench_utils.history import records, schema
from bench_utils.history.schema import RecordError
from bench_utils.measure.machine import MachineState
from bench_utils.measure.reading import Reading, missing
from bench_utils.measure.roofline import Roofline
from bench_utils.measure.statistics import Interval
from bench_utils.verdict import Outcome, Verdict
from tests.history.support import ABOUT, MEASURED, record

ROOT = Path(__file__).parent.parent.parent
PUBLISHED = ROOT / "results" / "record.schema.json"


def full():
    held = record(
        roofline=Roofline({2**20: 5e10, 2**21: 4e10, 10: 1e11}, {}, {"float32": 1e11}),
        state_before=MachineState(Reading(0.5), missing("unknown"), None),
        planned=["A2[cached-48]"],
    )
    held.add(MEASURED)
    held.add_verdict("A2", ABOUT, Verdict(Outcome.HOLDS, figures={"speedup": Interval(2.0, 1.5, 2.5)}))
    return held


def text_of(document):
    return json.dumps(document, ensure_ascii=False)


def test_what_is_written_reads_back_whatever_its_keys_are():
    assert schema.from_text(text_of(schema.to_document(full()))) == full()


def test_a_seal_does_not_depend_on_the_order_or_the_spaces():
    document = schema.to_document(full())
    shuffled = dict(reversed(document.items()))
    assert schema.from_text(json.dumps(shuffled, indent=7)) == full()


@pytest.mark.parametrize(
    "edit",
    [
        lambda document: document["cases"]["A2[cached-48]"].update(samples_s=[0.1, 0.1, 0.1]),
        lambda document: document["verdicts"]["A2"].update(outcome="does not hold here"),
        lambda document: document.update(profile="quick"),
        lambda document: document.update(note="a field more"),
        lambda document: document.pop("sha256"),
        lambda document: document.update(sha256="0" * 64),
    ],
)
def test_an_edit_by_hand_breaks_the_seal(edit):
    document = schema.to_document(full())
    edit(document)
    with pytest.raises(RecordError, match="was edited after it was written"):
        schema.from_text(text_of(document))


def sealed(**changes):
    document = {**schema.to_document(full()), **changes}
    return text_of({**document, "sha256": schema._seal(document)})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cases": {"A2[x]": {"claim": "A2"}}}, r"cases.A2\[x\].case: Field required"),
        ({"profile": 5}, "profile: Input should be a valid string"),
        ({"roofline": {"read_bytes_per_s": {"big": 1.0}}}, "roofline.read_bytes_per_s.big"),
        ({"origin": "guessed"}, "origin: Input should be 'measured' or 'stated'"),
        (
            {"state_before": {"load_average_1min": {"value": None}, "cpu_mhz": {"value": 1}, "gpu": None}},
            "a reading",
        ),
    ],
)
def test_a_sealed_record_without_its_fields_is_none(changes, words):
    with pytest.raises(RecordError, match=words):
        schema.from_text(sealed(**changes))


def test_a_record_relabelled_as_an_older_one_is_edited():
    document = {**schema.to_document(full()), "schema_version": 1}
    with pytest.raises(RecordError, match="version 1 had no seal"):
        schema.from_text(text_of(document))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema_version": 2, "x": 1e999}', "1e999 is beyond every number"),
        ('{"schema_version": 2, "x": ' + "9" * 400 + "}", "is beyond every number"),
        ("[" * 200_000, "is not a readable record"),
    ],
)
def test_what_no_number_and_no_stack_holds_is_no_record(text, words):
    with pytest.raises(RecordError, match=words):
        schema.from_text(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples_s": [0.1, -0.2]}, "times that are none"),
        ({"laps": {"x": {"samples_s": [], "bound": None}}}, "times that are none"),
        ({"case": {"arm": "other"}}, r"A2\[cached-48\] is the case A2\[other\]"),
    ],
)
def test_a_case_that_makes_no_sense_is_none(changes, words):
    cases = schema.to_document(full())["cases"]
    cases["A2[cached-48]"].update(changes)
    with pytest.raises(RecordError, match=words):
        schema.from_text(sealed(cases=cases))


def test_a_terminal_obeys_nothing_in_a_record():
    found = schema.from_text(sealed(profile="full\x1b]0;title\x07\x1b[2J, kept\n"))
    assert found.profile == "full]0;title[2J, kept\n"


def test_a_record_of_version_1_is_read_and_becomes_one_of_today():
    document = schema.to_document(full())
    older = {**document, "schema_version": 1}
    for added in ("sha256", "origin"):
        del older[added]
    found = schema.from_text(text_of(older))
    assert found == full()
    assert schema.to_document(found) == document


def test_the_published_schema_is_todays():
    assert json.loads(PUBLISHED.read_text()) == schema.json_schema(), "write it anew: claims records schema"


def test_a_record_is_valid_by_the_published_schema_for_an_independent_reader():
    """The library jsonschema knows nothing of the classes that the schema was made from."""
    published = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    document = json.loads(text_of(schema.to_document(full())))
    jsonschema.validate(document, published)
    del document["cases"]["A2[cached-48]"]["claim"]
    with pytest.raises(jsonschema.ValidationError, match="'claim' is a required property"):
        jsonschema.validate(document, published)


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/*.json")), ids=lambda path: path.name)
def test_every_committed_record_is_one(path):
    if path.parent.name == "asv":
        pytest.skip("asv's own")
    records.read(path)
    jsonschema.validate(json.loads(path.read_text()), json.loads(PUBLISHED.read_text()))
