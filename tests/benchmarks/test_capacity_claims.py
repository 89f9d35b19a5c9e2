"""H1 and H2 on small models, with planted faults."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from bench_utils import edge
from bench_utils.claim import Outcome
from bench_utils.devices import ShortOfMemoryError
from bench_utils.edge import Need
from bench_utils.models import loading
from bench_utils.models.cache_layout import CacheLayout
from bench_utils.settings import NotApplicableError, Settings
from benchmarks.capacity import bench_edge, bench_fit
from benchmarks.capacity.bench_edge import ClaimEdge
from benchmarks.capacity.bench_fit import ClaimFit
from tests.benchmarks.support import run, run_all, verdict
from tests.conftest import tiny_config

MIB = 2**20

# --- H1


def test_h1_has_the_chapters_table_and_the_model_at_hand(lab):
    found = run_all(ClaimFit, lab)
    shown = verdict(ClaimFit, lab, found)
    assert shown.outcome is Outcome.HOLDS
    assert "13b int4 337; 16 GiB: 7b int8 65,378, 13b int8 3,136, whose cache takes 6.25x" in shown.measured
    assert "13b              8 GiB" in shown.picture
    assert all(set(ClaimFit.tracked) <= set(case.counters) for case in found.values())
    assert len(found) == 12


@pytest.mark.parametrize("changes", [{"overhead_bytes": 2**30}, {"element_bytes": 4}, {"weight_bytes": 1}])
def test_h1_sees_a_formula_that_is_off(lab, monkeypatch, changes):
    honest = bench_fit.Capacity
    monkeypatch.setattr(bench_fit, "Capacity", lambda *figures: replace(honest(*figures), **changes))
    with pytest.raises(AssertionError):
        run(ClaimFit, lab, "13b", 8)


def test_h1_sees_an_answer_that_is_one_token_off(lab, monkeypatch):
    honest = bench_fit.Capacity.longest_context
    monkeypatch.setattr(bench_fit.Capacity, "longest_context", lambda *given: honest(*given) - 1)
    with pytest.raises(AssertionError, match="is too few"):
        run(ClaimFit, lab, "7b", 16)
    monkeypatch.setattr(bench_fit.Capacity, "longest_context", lambda *given: honest(*given) + 1)
    with pytest.raises(AssertionError, match="fp16: 11,973"):
        run(ClaimFit, lab, "7b", 16)


@pytest.mark.parametrize(("field", "words"), [("layout", "B of cache"), ("weights", "B of weights")])
def test_h1_sees_a_size_that_the_models_tensors_do_not_have(lab, monkeypatch, field, words):
    honest = bench_fit.size_of

    def wrong(config, name):
        size = honest(config, name)
        layout = CacheLayout(size.layout.layers[1:])
        weights = replace(size.weights, num_others=size.weights.num_others - 1)
        return replace(size, **{field: {"layout": layout, "weights": weights}[field]})

    monkeypatch.setattr(bench_fit, "size_of", wrong)
    with pytest.raises(AssertionError, match=words):
        run(ClaimFit, lab, "model at hand", 8)


# --- H2, its processes told what to find


@pytest.fixture
def machine(monkeypatch, lab):
    """Processes that need 100 MiB besides weights and cache, and `machine['extra']` more where it matters."""
    claim = ClaimEdge()
    claim._lab = lab
    claim.setup(8)
    told = {"extra": 0, "weights": claim.weight_bytes}

    def need(_settings, num_users, num_tokens):
        cache_bytes = num_users * num_tokens * claim.token_bytes
        return Need(told["weights"], cache_bytes, told["weights"] + cache_bytes + 100 * MIB, 4 * MIB, "told")

    def longest(_settings, num_users, limit_bytes, num_tokens, most):
        room = limit_bytes - claim.weight_bytes - 100 * MIB - told["extra"]
        return min(most, room // (num_users * claim.token_bytes))

    monkeypatch.setattr(bench_edge.edge, "need", need)
    monkeypatch.setattr(bench_edge.edge, "longest", longest)
    return told


def decided(lab, *users):
    return verdict(ClaimEdge, lab, {(num,): run(ClaimEdge, lab, num) for num in users or (8,)})


def test_h2_holds_where_the_prediction_runs_and_little_more_does(lab, machine):
    shown = decided(lab)
    assert shown.outcome is Outcome.HOLDS
    assert "8 users in 320 MiB" in shown.measured
    assert "overhead 104 MiB" in shown.measured
    assert "the chapter's overhead is 1,536 MiB" in shown.predicted


@pytest.mark.parametrize("extra_mib", [5, -20])
def test_h2_does_not_hold_where_the_prediction_is_refused_or_far_from_the_edge(lab, machine, extra_mib):
    machine["extra"] = extra_mib * MIB
    assert decided(lab).outcome is Outcome.DOES_NOT_HOLD


def test_h2_sees_weights_that_are_not_those_of_the_model(lab, machine):
    machine["weights"] -= 1
    with pytest.raises(AssertionError, match="B of weights there"):
        run(ClaimEdge, lab, 8)


def test_h2_is_not_applicable_where_no_limit_is_kept(lab, machine, monkeypatch):
    def without(*_arguments, **_options):
        raise NotApplicableError("this kernel does not keep RLIMIT_DATA")

    monkeypatch.setattr(bench_edge.edge, "need", without)
    assert decided(lab).outcome is Outcome.NOT_APPLICABLE


def test_h2_leaves_the_single_user_to_the_full_profile(lab, machine):
    assert run(ClaimEdge, lab, 1).validity.reason == "full profile only"


# --- the processes themselves


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is kept by Linux alone")
def test_a_process_finds_its_need_and_another_its_edge_within_a_few_mib(tmp_path):
    """Really limited. The margins are H2's: what one process may take more than another, and a page a tensor."""
    from transformers import LlamaForCausalLM

    config = tiny_config(hidden_size=256, num_attention_heads=8, num_key_value_heads=8, head_dim=64)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    settings = Settings(model=str(tmp_path), device="cpu", dtype="float32")
    token_bytes = 2 * 3 * 8 * 64 * 4
    need = edge.need(settings, num_users=4, num_tokens=256)
    assert need.cache_bytes == 4 * 256 * token_bytes
    assert need.overhead_bytes > 50 * MIB  # an interpreter and torch
    limit = need.limit_bytes + need.spread_bytes + 4 * 1_000 * token_bytes
    found = edge.longest(settings, num_users=4, limit_bytes=limit, num_tokens=256, most=4_096)
    assert 1_256 <= found <= 1_256 + 2 * need.spread_bytes // (4 * token_bytes)


def asked_of(monkeypatch, **done):
    """What asking says where the process ends so."""
    finished = subprocess.CompletedProcess([], **{"returncode": 0, "stdout": "", "stderr": "", **done})
    monkeypatch.setattr(edge.subprocess, "run", lambda *_arguments, **_options: finished)
    return edge.longest(Settings(), num_users=1, limit_bytes=1, num_tokens=1, most=2)


def test_an_answer_is_the_last_line(monkeypatch):
    assert asked_of(monkeypatch, stdout='a warning of a library\n{"num_tokens": 7}\n') == 7


@pytest.mark.parametrize(
    ("done", "error", "words"),
    [
        (
            {"stdout": '{"kind": "not applicable", "message": "no such limit"}'},
            NotApplicableError,
            "^no such limit$",
        ),
        ({"stdout": '{"kind": "out of memory", "message": "5 B wanted"}'}, MemoryError, "^5 B wanted$"),
        (
            {"stdout": '{"kind": "ModelLoadError", "message": "no such model\\n  hint"}'},
            RuntimeError,
            "^no such model",
        ),
        ({"returncode": -9}, MemoryError, "was killed, as systems do that run out of memory"),
        ({"returncode": -6, "stderr": "x\nAborted"}, RuntimeError, "ended with status -6 and said: Aborted"),
        ({"stdout": "no JSON"}, RuntimeError, "ended with status 0 and said: nothing"),
    ],
)
def test_how_a_process_ends_is_told_in_one_line(monkeypatch, done, error, words):
    with pytest.raises(error, match=words):
        asked_of(monkeypatch, **done)


def test_a_process_that_does_not_answer_is_no_command_line(monkeypatch):
    def hang(*command, **_options):
        raise subprocess.TimeoutExpired(command, 400)

    monkeypatch.setattr(edge.subprocess, "run", hang)
    with pytest.raises(RuntimeError, match=r"^the limited process gave no answer within 400 s$"):
        edge.need(Settings(), num_users=1, num_tokens=1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotApplicableError("no limit"), "not applicable"),
        (ShortOfMemoryError("5 B"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError"),
    ],
)
def test_a_process_tells_whatever_happens_to_it(monkeypatch, tmp_path, capsys, error, kind):
    def answer(_question, _settings):
        raise error

    (tmp_path / "question").write_text("{}")
    monkeypatch.setattr(edge, "_answer", answer)
    with (tmp_path / "question").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        edge.main()
    assert json.loads(capsys.readouterr().out) == {"kind": kind, "message": str(error)}


# --- what a process does, its steps told


class FakeTenant:
    """Steps that take weights, cache and an overhead of a limit that is told."""

    overhead_bytes = 1_000_000
    limit_seen = None

    def __init__(self, _settings):
        self.weight_bytes = 5_000_000

    def step(self, num_users, num_tokens):
        cache_bytes = num_users * num_tokens * 1_000
        if self.limit_seen is not None and self.weight_bytes + cache_bytes + self.overhead_bytes > self.limit_seen:
            raise MemoryError
        return cache_bytes


@pytest.fixture
def tenant(monkeypatch):
    class Limit:
        what, spread_bytes = "told", 7

        def set(self, num_bytes):
            FakeTenant.limit_seen = num_bytes

        def lift(self):
            FakeTenant.limit_seen = None

    monkeypatch.setattr(edge.memory_limit, "limit_for", lambda *_device: Limit())
    monkeypatch.setattr(edge, "_Tenant", FakeTenant)
    return monkeypatch


def ask(**question):
    return edge._answer({"question": "need", "num_users": 2, "num_tokens": 10, **question}, Settings(device="cpu"))


def test_the_need_is_the_least_limit_that_runs(tenant):
    need = Need(**ask())
    assert (need.weight_bytes, need.cache_bytes, need.spread_bytes) == (5_000_000, 20_000, 7)
    assert FakeTenant.overhead_bytes <= need.overhead_bytes < FakeTenant.overhead_bytes + 2**16


def test_an_allocator_that_no_limit_sees_is_not_applicable(tenant):
    tenant.setattr(FakeTenant, "overhead_bytes", -1)
    with pytest.raises(NotApplicableError, match="another allocator holds them"):
        ask()


def test_a_load_that_nothing_holds_is_out_of_memory(tenant):
    tenant.setattr(FakeTenant, "overhead_bytes", 2**33)
    with pytest.raises(MemoryError, match="2 x 10 tokens do not run"):
        ask()


@pytest.mark.parametrize(("room", "found"), [(35, 35), (34, 34), (50, 40), (10, 10), (9, 0)])
def test_the_longest_is_the_last_that_runs_up_to_the_most(tenant, room, found):
    limit_bytes = 6_000_000 + room * 2_000
    assert ask(question="longest", limit_bytes=limit_bytes, most=40) == {"num_tokens": found}


def test_a_machine_that_is_short_itself_is_no_edge(tenant):
    def short(_self, _num_users, num_tokens):
        if num_tokens > 10:
            raise ShortOfMemoryError("a cache needs 5 B and 4 B are free")
        return 1

    tenant.setattr(FakeTenant, "step", short)
    with pytest.raises(ShortOfMemoryError):
        ask(question="longest", limit_bytes=2**40, most=40)


def test_weights_of_a_mapped_file_become_the_process_own(tiny_folder):
    settings = Settings(model=str(tiny_folder), device="cpu", dtype="float32")
    mapped = {weight.data_ptr() for weight in loading.load(settings).model.parameters()}
    tenant = edge._Tenant(settings)
    own = {weight.data_ptr() for weight in tenant._loaded.model.parameters()}
    assert not mapped & own
    assert tenant.step(2, 5) == 2 * 5 * 2 * 3 * 2 * 8 * 4
