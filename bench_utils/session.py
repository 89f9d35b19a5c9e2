"""One pytest run over claims: opens the lab and the record, keeps every case, decides the verdicts."""

import hashlib
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from rich.console import Console

from bench_utils import scoreboard
from bench_utils.claim import VERDICT_FAILED, Claim, decide
from bench_utils.history import journal, records, schema
from bench_utils.history.entries import ModelEntry, PlacementEntry, RunRecord, machine_entry
from bench_utils.history.journal import Journal
from bench_utils.history.schema import RecordError
from bench_utils.inference.requests import TraceError, read_trace
from bench_utils.lab import first_line, open_lab
from bench_utils.measure import machine
from bench_utils.measure.measurement import Measurement, Param, Validity
from bench_utils.measure.sampler import Budget
from bench_utils.models import battery, corpus, sources
from bench_utils.models.battery import QuestionError
from bench_utils.models.corpus import CorpusError
from bench_utils.models.errors import AssetError, ModelLoadError
from bench_utils.models.sources import ModelIdentity
from bench_utils.progress import CaseProgress, FetchProgress, steps
from bench_utils.pytest_plugin import COUNTED_ONLY, replay
from bench_utils.settings import FILES, ChoiceError, Settings
from bench_utils.verdict import Outcome, Verdict, case_key

# pytest-benchmark's own defaults: a value that differs from them was chosen by the user.
_DEFAULT_MIN_ROUNDS, _DEFAULT_MAX_TIME_S = 5, 1.0
_WIDTH_WITHOUT_TERMINAL = 140
# What says by itself what is wrong and what to do.
_REFUSALS = (ChoiceError, AssetError, ModelLoadError, RecordError, TraceError, CorpusError, QuestionError)


class PreparationError(RuntimeError):
    """The run cannot start; nothing was measured."""


class ClaimsSession:
    """What the fixture `claims_session` gives to a claim, and what the plugin's hooks drive."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._stack = ExitStack()
        self._console = _console(config)
        self._is_timing = not config.getoption("benchmark_disable")
        self._journal: Journal | None = None
        self._progress: CaseProgress | None = None
        self._item: pytest.Item | None = None
        self._began_s = 0.0
        self._claims: dict[str, type[Claim]] = {}
        self._measured: dict[str, dict[tuple[Param, ...], Measurement]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._outcome = ""

    def open(self, results: Path, keys: list[str]) -> None:
        """Everything that can fail before the first case: assets, device, limits, the results folder.

        Raises:
            PreparationError: with what to do about it.
        """
        try:
            inputs = _checked_inputs(self._settings)
            with steps(self._console, f"preparing the model {self._settings.model}"):
                located = sources.prepare(self._settings.model, FetchProgress(self._console))
                if self._settings.draft:
                    draft = sources.prepare(self._settings.draft, FetchProgress(self._console))
                    sources.demand_same_vocabulary(located, draft)
                    inputs["draft"] = f"{draft.identity.name} {draft.identity.revision}"
            with steps(self._console, "reading this machine and its limits") as report:
                self.lab = open_lab(
                    self._settings,
                    self._stack,
                    with_passes=self._is_timing,
                    limits="fresh" if self._is_timing else "none",
                    report=report,
                )
            self.lab.chosen = partial(_chosen_budget, self._config)
            expected = dict.fromkeys(keys, 0.0)
            if self._is_timing:
                self._open_journal(results, expected, located.identity, inputs)
        except (*_REFUSALS, OSError, MemoryError) as error:
            raise PreparationError(str(error)) from error
        placement = self.lab.placement
        self._say(f"{self._settings.model} in {placement.dtype_name} on {placement.device} ({placement.why})")
        self._progress = CaseProgress(self._console, expected)
        self._stack.callback(self._progress.close)

    def _open_journal(
        self, results: Path, expected: dict[str, float], identity: ModelIdentity, inputs: dict[str, str]
    ) -> None:
        this_machine = machine_entry(self.lab.machine, self._settings.machine)
        placement = self.lab.placement
        durations = journal.last_durations(results, this_machine.name, self._settings.profile)
        expected.update({key: durations[key] for key in expected if key in durations})
        record = RunRecord(
            started_at=records.now_utc(),
            profile=self._settings.profile,
            source=records.source_state(self._config.rootpath),
            model=ModelEntry(**asdict(identity)),
            placement=PlacementEntry(str(placement.device), placement.dtype_name, placement.why),
            machine=this_machine,
            roofline=self.lab.roofline,
            inputs=inputs,
            state_before=machine.state(self.lab.gpu),
            planned=list(expected),
        )
        resume = bool(self._config.getoption("--claims-resume"))
        self._journal = journal.begin(results, record, resume=resume)
        for key in list(expected):
            if self._journal.resumed(key):
                del expected[key]
        if self._journal.num_resumed:
            self._say(f"resuming {self._journal.short_path}: {self._journal.num_resumed} cases are there")
        elif resume:
            self._say("no unfinished run of the same claims, model and machine: starting anew")

    def begin(self, item: pytest.Item, key: str) -> None:
        """A case is about to run."""
        self._item, self._began_s, self._outcome = item, perf_counter(), "failed"
        if self._progress is not None:
            self._progress.begin(key)

    def end(self, key: str) -> None:
        """A case has run."""
        if self._progress is not None:
            self._progress.end(key, self._outcome, perf_counter() - self._began_s)

    def run_case(self, claim: Claim, case: tuple[Param, ...], benchmark: Any) -> None:
        """Measure one case through the benchmark fixture, or take it from the record that is resumed."""
        self._claims[claim.id] = type(claim)
        claim._lab = self.lab
        key = case_key(claim.id, case)
        resumed = self._journal.resumed(key, claim.version) if self._journal else None
        if resumed is not None:
            self._outcome = "resumed"
            self._keep(resumed)
            pytest.skip("measured before this run was resumed")
        try:
            measurement = self._measure(claim, case, benchmark)
        except Exception as error:
            code = "failed" if isinstance(error, AssertionError) else "error"
            self._keep(self.lab.blank(claim, case, Validity(code, first_line(error))))
            raise
        self._keep(measurement)
        self._outcome = "noisy" if measurement.is_noisy else "ok"
        if not measurement.validity.is_ok:
            self._outcome = measurement.validity.code
            pytest.skip(f"{measurement.validity.code}: {measurement.validity.reason}")

    def _measure(self, claim: Claim, case: tuple[Param, ...], benchmark: Any) -> Measurement:
        if benchmark.disabled:
            return benchmark.pedantic(lambda: self.lab.run_once(claim, case)[0])  # type: ignore[no-any-return]
        measurement = self.lab.measure(claim, case)[0]
        if measurement.validity.is_ok:
            assert self._item is not None
            # A case that is counted, not timed, shows how long counting took.
            samples_s = measurement.samples_s or (measurement.duration_s,)
            benchmark.extra_info.update(measurement.counters)
            benchmark.extra_info[COUNTED_ONLY] = not measurement.samples_s
            replay(self._item, benchmark, samples_s, lambda: self.lab.run_once(claim, case))
        return measurement

    def _keep(self, measurement: Measurement) -> None:
        self._measured.setdefault(measurement.claim, {})[measurement.key] = measurement
        if self._journal is not None and self._outcome != "resumed":
            self._journal.add(measurement, self.lab.roofline)

    def finish(self, *, is_complete: bool) -> list[str]:
        """Decide every verdict and close a complete run's record; the ids of the claims that fail the run."""
        failing = []
        for claim_id, claim in self._claims.items():
            instance = claim()
            instance._lab = self.lab
            earlier = self._journal.measured(claim_id) if self._journal is not None else {}
            verdict = decide(instance, {**earlier, **self._measured.get(claim_id, {})})
            self._verdicts[claim_id] = verdict
            is_strict = claim.kind == "exact" or self._config.getoption("--strict-claims")
            is_broken = verdict.reason.startswith(VERDICT_FAILED)
            if is_broken or (verdict.outcome is Outcome.DOES_NOT_HOLD and is_strict):
                failing.append(claim_id)
        if self._journal is not None and is_complete:
            about = {
                claim_id: {"title": claim.title, "kind": claim.kind, "chapter": claim.chapter}
                for claim_id, claim in self._claims.items()
            }
            self._journal.finish(about, self._verdicts, machine.state(self.lab.gpu))
        return failing

    def show_scoreboard(self) -> None:
        """The scoreboard and where the record lies."""
        if not self._verdicts:
            return
        lines = [
            scoreboard.Line(claim_id, claim.title, claim.chapter, self._verdicts[claim_id])
            for claim_id, claim in sorted(self._claims.items())
        ]
        self._console.line()
        scoreboard.show(lines, self._caption(), self._console)
        if self._journal is not None and self._journal.write_error:
            self._say(f"the record could not be written ({self._journal.write_error}); here it is:")
            self._console.print_json(data=schema.to_document(self._journal.record))

    def _caption(self) -> str:
        placement = self.lab.placement
        parts = [f"{self._settings.model}, {placement.dtype_name} on {placement.device} ({placement.why})"]
        everything = [m for by_case in self._measured.values() for m in by_case.values()]
        if num_noisy := sum(m.is_noisy for m in everything):
            parts.append(f"{num_noisy} of {len(everything)} cases noisy (IQR over 10 % of the median)")
        if self._journal is not None:
            parts.append(f"record: {self._journal.short_path}")
        elif not self._is_timing:
            parts.append("timing was off: correctness only, no record")
        return "; ".join(parts)

    def close(self) -> None:
        """Let go of the lab's processes and the progress bar."""
        self._stack.close()

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _checked_inputs(settings: Settings) -> dict[str, str]:
    """The user's own files by digest, each read once to its end before anything is measured.

    Raises:
        TraceError, CorpusError, QuestionError: with what is wrong, and in which line.
    """
    if settings.trace:
        for _ in read_trace(Path(settings.trace)):
            pass
    if settings.corpus:
        corpus.read(settings)
    battery.read(settings)
    given = {name: getattr(settings, name) for name in FILES if getattr(settings, name)}
    return {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in given.items()}


def _console(config: pytest.Config) -> Console:
    """A console on pytest's own output; colours only where that is a terminal."""
    writer = config.get_terminal_writer()
    console = Console(file=writer._file, no_color=not writer.hasmarkup, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH_WITHOUT_TERMINAL)
    return console


def _chosen_budget(config: pytest.Config, budget: Budget) -> Budget:
    """The budget with --benchmark-min-rounds and --benchmark-max-time where they were given."""
    min_rounds = int(config.getoption("benchmark_min_rounds"))
    max_time_s = float(config.getoption("benchmark_max_time"))
    if min_rounds != _DEFAULT_MIN_ROUNDS:
        most = max(min_rounds, budget.max_samples)
        budget = replace(budget, min_samples=min_rounds, floor_samples=min_rounds, max_samples=most)
    if max_time_s != _DEFAULT_MAX_TIME_S:
        budget = replace(budget, max_time_s=max_time_s, min_time_s=min(max_time_s, budget.min_time_s))
    return budget
