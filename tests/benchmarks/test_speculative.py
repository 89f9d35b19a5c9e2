"""Claims F1 and F3: green as they are, red with a fault planted in what each one watches."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from bench_utils.claim import Outcome
from bench_utils.inference import speculation
from bench_utils.inference.kernels import INT4, INT8
from bench_utils.inference.sampling import probabilities
from bench_utils.inference.speculation import Proposal
from bench_utils.models.errors import ModelLoadError
from benchmarks.speculative import bench_expected_tokens
from benchmarks.speculative.bench_expected_tokens import SETTINGS, ClaimExpectedTokens
from benchmarks.speculative.bench_greedy_output import GIVEN, LOOKUP, ClaimGreedyOutput
from benchmarks.speculative.bench_sampled_output import DRAFTED, SAMPLINGS, ClaimSampledOutput
from tests.benchmarks.support import lapped, run, run_all, verdict
from tests.conftest import tiny_config
from tests.kernels_here import needs

# --- F1


def test_f1_has_the_chapters_figures(lab):
    found = run_all(ClaimExpectedTokens, lab)
    judged = verdict(ClaimExpectedTokens, lab, found)
    assert judged.outcome is Outcome.HOLDS
    assert "a=0.9 g=8 c=0.1: 6.1" in judged.measured
    assert found[("a=0.3 g=4 c=0.2",)].counters["speedup"] < 1, "drafting can lose"


@pytest.mark.parametrize("setting", SETTINGS)
def test_f1_sees_a_formula_without_the_token_of_the_pass_itself(lab, monkeypatch, setting):
    honest = bench_expected_tokens.expected_tokens
    monkeypatch.setattr(bench_expected_tokens, "expected_tokens", lambda a, g: honest(a, g) - 1)
    with pytest.raises(AssertionError, match="standard errors"):
        run(ClaimExpectedTokens, lab, setting)


def test_f1_sees_another_speedup(lab, monkeypatch):
    monkeypatch.setattr(bench_expected_tokens, "expected_speedup", lambda a, g, c: 3.5)
    with pytest.raises(AssertionError, match=r"3\.5000x, the chapter has 3\.4x"):
        run(ClaimExpectedTokens, lab, "a=0.9 g=8 c=0.1")


# --- F3

FIRST = next(iter(SAMPLINGS))


def test_f3_finds_the_targets_own_distribution(lab):
    found = run_all(ClaimSampledOutput, lab)
    judged = verdict(ClaimSampledOutput, lab, found)
    assert judged.outcome is Outcome.HOLDS
    assert all(each.counters["num_passes"] < 3 * each.counters["num_sequences"] for each in found.values())


def planted(monkeypatch, rule):
    monkeypatch.setattr(speculation, "verify", rule)


@pytest.mark.parametrize("num_drafted", DRAFTED)
@pytest.mark.parametrize("sampling", SAMPLINGS)
class TestFaults:
    """Each of the faults that known libraries have had, in every case of the claim."""

    def test_a_distribution_that_was_not_drawn_from(self, lab, monkeypatch, sampling, num_drafted):
        honest = speculation.verify

        def flattened(logits, proposal, rule, generator):
            q = proposal.drawn_from
            if q is not None:
                q = (q**0.5) / (q**0.5).sum(1, keepdim=True)
            return honest(logits, Proposal(proposal.tokens, q), rule, generator)

        planted(monkeypatch, flattened)
        with pytest.raises(AssertionError, match="are not the target's: p = "):
            run(ClaimSampledOutput, lab, sampling, num_drafted)

    def test_a_residual_that_is_none(self, lab, monkeypatch, sampling, num_drafted):
        """After a rejection p is drawn from again, not what q has left of it."""

        def from_p(logits, proposal, rule, generator):
            for index, token in enumerate(proposal.tokens):
                p, q = probabilities(logits[index], rule), proposal.drawn_from[index]
                if float(torch.rand((), generator=generator)) * float(q[token]) >= float(p[token]):
                    return index, int(torch.multinomial(p, 1, generator=generator))
            last = probabilities(logits[-1], rule)
            return len(proposal.tokens), int(torch.multinomial(last, 1, generator=generator))

        planted(monkeypatch, from_p)
        with pytest.raises(AssertionError, match="are not the target's: p = "):
            run(ClaimSampledOutput, lab, sampling, num_drafted)

    def test_a_bonus_token_from_the_place_before(self, lab, monkeypatch, sampling, num_drafted):
        honest = speculation.verify

        def dropped(logits, proposal, rule, generator):
            if proposal.tokens:
                logits = torch.cat([logits[:-1], logits[-2:-1]])
            return honest(logits, proposal, rule, generator)

        planted(monkeypatch, dropped)
        with pytest.raises(AssertionError, match="are not the target's: p = "):
            run(ClaimSampledOutput, lab, sampling, num_drafted)

    def test_every_draft_accepted(self, lab, monkeypatch, sampling, num_drafted):
        def all_of_them(logits, proposal, rule, generator):
            last = probabilities(logits[-1], rule)
            return len(proposal.tokens), int(torch.multinomial(last, 1, generator=generator))

        planted(monkeypatch, all_of_them)
        with pytest.raises(AssertionError, match="are not the target's: p = "):
            run(ClaimSampledOutput, lab, sampling, num_drafted)


# --- F2


def test_f2_gives_the_targets_own_tokens_with_every_draft(lab):
    needs(INT8, INT4)
    found = {case[0]: each for case, each in run_all(ClaimGreedyOutput, lab).items() if each.validity.is_ok}
    assert set(found) >= {INT8.name, INT4.name, LOOKUP}
    for each in found.values():
        assert each.counters["num_near_ties"] == 0
        assert each.counters["passes, g = 8"] <= each.counters["passes, g = 1"]
    assert found[INT8.name].counters["acceptance, g = 4"] > 0.5, "a draft that is nearly the target"


@pytest.mark.parametrize("draft", [LOOKUP, INT4.name])
def test_f2_sees_a_cache_that_is_not_rolled_back(lab, monkeypatch, draft):
    needs(INT4)
    honest = speculation.ModelScorer.forget
    monkeypatch.setattr(
        speculation.ModelScorer, "forget", lambda self, num: honest(self, num) if num == 24 else None
    )
    with pytest.raises(AssertionError, match="logits below the choice of decoding it alone"):
        run(ClaimGreedyOutput, lab, draft)


def test_f2_sees_a_draft_that_is_believed(lab, monkeypatch):
    needs(INT4)
    honest = speculation.verify
    planted(monkeypatch, lambda logits, proposal, *rest: (len(proposal.tokens), honest(logits, proposal, *rest)[1]))
    with pytest.raises(AssertionError, match="logits below the choice of decoding it alone"):
        run(ClaimGreedyOutput, lab, INT4.name)


def test_f2_sees_the_second_best_token(lab, monkeypatch):
    def second(logits, proposal, *_rest):
        return 0, int(logits[0].topk(2).indices[1])

    planted(monkeypatch, second)
    with pytest.raises(AssertionError, match="logits below the choice of decoding it alone"):
        run(ClaimGreedyOutput, lab, LOOKUP)


def test_f2_reports_what_pays_and_what_loses(lab):
    needs(INT8, INT4)
    laps = {"plain": 1.0, "g = 1": 0.8, "g = 2": 0.7, "g = 4": 1.1, "g = 8": 2.0, "draft step": 0.01}
    laps |= {f"pass over {num}": 0.04 + 0.001 * num for num in (1, 2, 3, 5, 9)}
    cases = [(INT8.name,), (INT4.name,), (LOOKUP,)]
    found = {case: lapped(ClaimGreedyOutput, case, laps, lab) for case in cases}
    made_up = {"acceptance, g = 2": 0.8, "passes, g = 2": 10, "proposed, g = 2": 20, "draft steps, g = 2": 26}
    made_up["expected tokens, g = 2"] = 2.44
    case = (INT8.name,)
    found[case] = replace(found[case], counters={**found[case].counters, **made_up})
    judged = verdict(ClaimGreedyOutput, lab, found)
    assert judged.outcome is Outcome.HOLDS
    assert "int8: best g = 2, 1.43x [1.43, 1.43]; worst g = 8, 0.50x" in judged.measured
    # 2.44 tokens for 2.6 steps of the draft, of 0.01 / 0.041 each, and a pass that costs 0.043 / 0.041.
    row = next(line.split() for line in judged.picture.splitlines() if "int8, g = 2" in line)
    assert row[4:8] == ["0.80", "0.24", "1.05", "1.45x"]


def test_f2_drafts_with_the_model_that_is_given(lab, tiny_folder):
    assert "--claims-draft" in run(ClaimGreedyOutput, lab, GIVEN).validity.reason
    lab.settings = replace(lab.settings, draft=str(tiny_folder))
    found = run(ClaimGreedyOutput, lab, GIVEN)
    # It is the target itself, in a loop that rounds elsewhere.
    assert found.counters["acceptance, g = 4"] > 0.7
    assert found.counters["passes, g = 4"] <= 8


def test_f2_refuses_a_draft_of_another_vocabulary(lab, tmp_path):
    LlamaForCausalLM(tiny_config(vocab_size=600)).save_pretrained(tmp_path / "other")
    lab.settings = replace(lab.settings, draft=str(tmp_path / "other"))
    with pytest.raises(ModelLoadError, match="tiny has 640 tokens and other has 600 tokens: a draft must share"):
        run(ClaimGreedyOutput, lab, GIVEN)
