"""Records that hold a little of everything that is drawn."""

import json
from dataclasses import replace

from bench_utils.history.entries import Figure, VerdictEntry
from bench_utils.history.report.columns import collect
from bench_utils.history.selection import Loaded
from bench_utils.measure.measurement import Bound, Lap, Measurement
from tests.history.support import machine, record

EDGES = [0, 1, 2, 4]


def verdict(outcome="holds", measured="2x [1, 3]", **more):
    return VerdictEntry("a title", "physical", "9x", outcome, measured, **more)


def case(claim, samples_s=(0.1, 0.2, 0.15), **fields):
    shape = {key: fields.pop(key) for key in list(fields) if key not in ("laps", "counters", "notes", "bound")}
    return Measurement(claim, shape, samples_s, bound=fields.pop("bound", Bound("memory", 0.7, 0.1)), **fields)


def full_record(**changes):
    """Every claim that has a plot of its own, one that has a line, and one that has dots."""
    held = record(is_finished=True, **changes)
    measured = [
        *(case("A3", arm=arm, num_positions=num) for arm in ("recompute", "cached") for num in (16, 64, 256)),
        case("B1", num_prompt=40, laps={"prefill": Lap((0.05, 0.06), Bound("compute", 0.2, 0.6))}),
        case("B3", arm="rows", laps={str(num): Lap((0.01 * num, 0.011 * num)) for num in (16, 64, 256)}),
        *(case("C1", batch=batch) for batch in (1, 2, 4)),
        case(
            "C2",
            arrivals="all at once",
            notes={
                "timeline_static": json.dumps([[0, 0, 0.0, 3.0, 5.0], [1, 1, 0.0, 5.0, 5.0]]),
                "timeline_continuous": json.dumps([[0, 0, 0.0, 3.0, 3.0], [1, 1, 0.0, 5.0, 5.0]]),
            },
        ),
        *(
            case("D2", (), scheme=name, counters={"mean_error": 0.1, "worst_error": 0.2})
            for name in ("int8", "int4")
        ),
        *(
            case("D5", num_tokens=num, laps={f"int8 | {shape}": Lap((0.1 * num,)) for shape in ("4x4", "8x8")})
            for num in (1, 8)
        ),
        *(case("E1", (), scheme=name, counters={"perplexity": 30.0}) for name in ("reference", "int8")),
        case(
            "E4",
            (),
            prompt="p",
            notes={"histogram": json.dumps({"layer": 2, "edges": EDGES, "counts": [0, 5, 2, 1]})},
        ),
        case("F2", draft="int8", laps={"plain": Lap((0.4, 0.5)), "g = 1": Lap((0.2, 0.3))}),
        case("Z9", (0.01,), arm="of a claim that nobody foresaw"),
    ]
    for found in measured:
        held.add(found)
        held.verdicts[found.claim] = verdict()
    held.verdicts["C1"] = verdict(figures={"knee_batch": Figure(2.0, 1.5, 2.5)})
    held.verdicts["E1"] = verdict(by_scheme={"reference": {"bits": "-"}, "int8": {"bits": "8.05"}})
    held.verdicts["F2"] = verdict(figures={"int8, g = 1": Figure(1.5, 1.2, 1.9)}, picture="a table\n of lines")
    return held


def loaded(held, path):
    return Loaded(path, held)


def columns_of(tmp_path, *records):
    return collect(loaded(held, tmp_path / f"{number}.json") for number, held in enumerate(records))


def two_machines():
    """The same claims on another machine, at half the speed."""
    slow = full_record(machine=machine(name="slow", id="def"))
    for key, found in slow.cases.items():
        slow.cases[key] = replace(found, samples_s=tuple(2 * sample for sample in found.samples_s))
    return full_record(), slow
