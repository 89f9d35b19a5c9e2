"""The pytest side: options, cases from a Claim's params, the benchmark fixture, and the end of the run.

Loaded in every pytest run of the environment, so nothing heavy is imported until a claim is collected.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from bench_utils.settings import DEVICES, DTYPES, PROFILES, ChoiceError, Settings, from_environ

if TYPE_CHECKING:
    from bench_utils.session import ClaimsSession

_SESSION = pytest.StashKey["ClaimsSession"]()
_SETTINGS = pytest.StashKey[Settings]()
_RESULTS = "results"
COUNTED_ONLY = "counted_only"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The whole configuration: these options, or CLAIMS_* variables of the same meaning."""
    group = parser.getgroup("claims", "inference-claims")
    add = group.addoption
    add(
        "--claims-model",
        metavar="NAME",
        help="smollm2 (default), qwen2.5-0.5b-shape, a hub id, or a local folder or .gguf file",
    )
    add("--claims-device", metavar="DEVICE", help=f"{', '.join(DEVICES)} (default auto)")
    add("--claims-dtype", metavar="DTYPE", help=f"{', '.join(DTYPES)} (default auto)")
    add("--claims-profile", metavar="PROFILE", help=f"{' or '.join(PROFILES)} (default full)")
    add("--claims-machine", metavar="NAME", help="name of this machine's folder below results/")
    add("--claims-draft", metavar="NAME", help="a smaller model that drafts for F2; it must share the tokenizer")
    add("--claims-trace", metavar="FILE", help="requests for C2: a CSV file of arrival_s,num_prompt,num_tokens")
    add("--claims-corpus", metavar="FILE", help="a UTF-8 text for E1 and E3 instead of the book")
    add("--claims-questions", metavar="FILE", help='JSON lines for E2: {"question": "...", "answers": ["..."]}')
    add("--claims-resume", action="store_true", help="finish the newest unfinished run of the same kind")
    add("--strict-claims", action="store_true", help="a physical claim that does not hold fails the run")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse bad choices before anything is collected."""
    chosen = {field.name: config.getoption(f"--claims-{field.name}") for field in fields(Settings)}
    try:
        config.stash[_SETTINGS] = from_environ(chosen=chosen)
    except ChoiceError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_pycollect_makeitem(collector: Any, obj: object) -> list[Any] | None:
    """A claim runs where it is defined, not again wherever it is imported."""
    claims = sys.modules.get("bench_utils.claim")
    if claims is None or not isinstance(obj, type) or not issubclass(obj, claims.Claim):
        return None
    return [] if obj.__module__ != collector.obj.__name__ else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case of a claim, grouped by claim in pytest-benchmark's table."""
    if "claims_session" not in metafunc.fixturenames or metafunc.cls is None:
        return
    from bench_utils.claim import case_id

    claim = metafunc.cls
    cases = [
        pytest.param(
            case,
            id=case_id(case),
            marks=[
                pytest.mark.benchmark(group=f"{claim.id} {claim.title}", timer=ReplayTimer()),
                # A case that fails or is skipped never comes to use the fixture, and says so itself.
                pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"),
            ],
        )
        for case in claim.cases()
    ]
    metafunc.parametrize("case", cases)


@pytest.fixture(scope="session")
def claims_session(request: pytest.FixtureRequest) -> "ClaimsSession":
    """The running session, where a claim measures a case."""
    if _SESSION not in request.config.stash:
        pytest.skip("claims are benchmarks, and benchmarks are skipped")
    return request.config.stash[_SESSION]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Fetch, read the machine and open the record before the first case; close all after the last."""
    items = [item for item in session.items if is_claim(item)]
    if not items or session.config.option.collectonly or session.config.getoption("benchmark_skip"):
        return (yield)
    _demand_distinct_ids(items)
    from bench_utils.session import ClaimsSession, PreparationError

    if len(items) == len(session.items):
        _quieten(session.config.pluginmanager.get_plugin("terminalreporter"))
    running = ClaimsSession(session.config, session.config.stash[_SETTINGS])
    session.config.stash[_SESSION] = running
    try:
        running.open(session.config.rootpath / _RESULTS, [key_of(item) for item in items])
    except PreparationError as error:
        running.close()
        raise pytest.UsageError(str(error)) from error
    is_complete = False
    try:
        result = yield
        is_complete = True
    finally:
        # A claim that must hold and does not is a failure of the run, though each of its cases passed.
        session.testsfailed += len(running.finish(is_complete=is_complete))
        running.close()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Show each case as it begins and ends."""
    running = item.config.stash.get(_SESSION, None)
    if running is None or not is_claim(item):
        return (yield)
    running.begin(item, key_of(item))
    try:
        return (yield)
    finally:
        running.end(key_of(item))


def _quieten(reporter: Any) -> None:
    """Where every item is a claim's case, pytest's file names and percentages would only cut the lines."""
    if reporter is not None and reporter.verbosity <= 0:
        reporter.showfspath = False
        # No public switch at run time; where it goes away, the percentages come back and nothing breaks.
        reporter._show_progress_info = False


def pytest_report_teststatus(report: pytest.TestReport, config: pytest.Config) -> tuple[str, str, str] | None:
    """A case has its own line of progress: no letter for one that passed or was skipped."""
    if _SESSION in config.stash and "::test[" in report.nodeid and config.option.verbose <= 0:
        if report.passed:
            return ("passed" if report.when == "call" else "", "", "PASSED")
        if report.skipped:
            return "skipped", "", "SKIPPED"
    return None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    """The scoreboard, last, where a reader looks."""
    running = config.stash.get(_SESSION, None)
    if running is not None:
        running.show_scoreboard()


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """People publish these files: the host's name is not in them."""
    machine_info.pop("node", None)


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(benchmarks: list[Any]) -> Generator[None, Any, Any]:
    """Leave what is only counted out of the table of times; the JSON keeps it."""
    groups = yield
    counted = {id(bench) for bench in benchmarks if bench.get("extra_info", {}).get(COUNTED_ONLY)}
    timed = [(name, [b for b in group if id(b) not in counted]) for name, group in groups]
    return [(name, group) for name, group in timed if group]


def _demand_distinct_ids(items: list[pytest.Item]) -> None:
    from bench_utils.discovery import twins

    for other, claim in twins(item.cls for item in items):  # type: ignore[attr-defined]
        raise pytest.UsageError(
            f"two claims have the id {claim.id!r}: {other.__module__}.{other.__name__} and "
            f"{claim.__module__}.{claim.__name__}; one result would hide the other"
        )


def is_claim(item: pytest.Item) -> bool:
    """Whether an item is a case of a claim."""
    return "claims_session" in getattr(item, "fixturenames", ())


def key_of(item: pytest.Item) -> str:
    """'A2[cached-48]', as records name a case."""
    callspec = item.callspec  # type: ignore[attr-defined]
    return f"{item.cls.id}[{callspec.id}]"  # type: ignore[attr-defined]


class ReplayTimer:
    """A timer for pytest-benchmark that gives back samples already taken, so that both report the same ones.

    pytest-benchmark reads its timer twice a round; the difference is then exactly the sample.
    """

    __name__ = "samples_of_inference_claims"

    def __init__(self) -> None:
        self._samples_s: Iterator[float] = iter(())
        self._started = False

    def load(self, samples_s: tuple[float, ...]) -> None:
        """The samples to give back, one a round."""
        self._samples_s = iter(samples_s)
        self._started = False

    def __call__(self) -> float:
        """0 at the start of a round, its sample at the end."""
        self._started = not self._started
        return 0.0 if self._started else next(self._samples_s)


def replay(item: pytest.Item, benchmark: Any, samples_s: tuple[float, ...], rerun: Callable[[], object]) -> None:
    """Hand samples to the benchmark fixture; under --benchmark-cprofile it then profiles one real run."""
    marker = item.get_closest_marker("benchmark")
    assert marker is not None
    marker.kwargs["timer"].load(samples_s)
    left = len(samples_s)

    def target() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            rerun()

    benchmark.pedantic(target, rounds=len(samples_s))
