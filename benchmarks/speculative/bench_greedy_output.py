"""F2. Greedy speculative decoding gives the target's own tokens, and pays where the draft is cheap and often right.

Timed, in turn within one run: plain decoding; the same tokens by speculation with a draft of 1, 2, 4 and 8 tokens;
a step of the draft; and passes of the target over as many tokens as it then verifies. Prompts are filled outside
the timer. Drafts: the target itself, quantized, in the lean loop; prompt lookup, which costs nothing; and a smaller
model where one is given. Exact, in float32: every token is the target's own choice, near ties excepted; in half
precision the verdict counts the tokens that plain decoding gives too. The speedup is predicted from the measured
acceptance, the draft's steps and their cost, and the cost of verifying.
"""

import copy
from dataclasses import replace
from statistics import fmean

import torch

from bench_utils import pictures
from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.devices import HALVES, demand_memory
from bench_utils.inference import agreement
from bench_utils.inference.kernel_choice import choose
from bench_utils.inference.kernels import INT4, INT8, NF4
from bench_utils.inference.lean import LeanDecoder, quantizing
from bench_utils.inference.speculation import (
    LeanScorer,
    ModelDraft,
    ModelScorer,
    PromptLookup,
    Proposal,
    expected_tokens,
    speculate,
)
from bench_utils.measure.sampler import Budget
from bench_utils.models import facts, loading, prompts, sources

LOOKUP, GIVEN = "prompt lookup", "given model"
FORMS = {form.name: form for form in (INT8, INT4, NF4)}
NUM_PROMPT, NUM_TOKENS = 64, 16
NUM_DRAFTED, CHECKED = (1, 2, 4, 8), 4
PLAIN, DRAFT_STEP = "plain", "draft step"
HEADER = ("draft", "acceptance", "cost c", "verifying", "predicted", "measured", "tokens as plain")
# The target, its finer self to quantize from and to check by, and the draft, in float32 copies of the model.
COPIES = 4


class NoDraft:
    """Proposes nothing: plain decoding, by the very same loop."""

    def propose(self, sequence, num_tokens):
        return Proposal([])


class ClaimGreedyOutput(Claim):
    id = "F2"
    title = "greedy speculation keeps the tokens, and may pay"
    chapter = "exact"
    tracked = {"num_passes": "passes"}

    param_names = ["draft"]
    params = [[*FORMS, LOOKUP, GIVEN]]

    def skip_reason(self, draft) -> str:
        return (
            "no smaller model was given: --claims-draft" if draft == GIVEN and not self.lab.settings.draft else ""
        )

    @torch.inference_mode()
    def setup(self, draft):
        loaded = loading.load_float32(self.lab.settings)
        facts.demand_dense(loaded.config)
        placement = self.lab.placement
        half = placement.half_name
        if draft in FORMS and (choice := choose(FORMS[draft], placement.device.type, HALVES[half])).kernel is None:
            self.not_applicable(f"{draft}: {choice.lacks}")
        demand_memory(COPIES * loaded.weight_bytes, placement.device, "target and draft")
        self.wide, self.model = loaded.model, copy.deepcopy(loaded.model).to(HALVES[half])
        self.draft_steps = {}
        self.prompt = prompts.prompt_ids(loaded, NUM_PROMPT)
        self.tokens = self.prompt[0].tolist()
        self.target = ModelScorer(self.model)
        self.target.feed(self.tokens[:-1])
        self.scorer, self.draft = None, PromptLookup()
        if draft in FORMS:
            make = quantizing(FORMS[draft], HALVES[half])
            decoder = LeanDecoder(
                self.model,
                max_tokens=NUM_PROMPT + NUM_TOKENS + max(NUM_DRAFTED),
                make=make,
                make_head=make,
                weights_of=loaded.model,
            )
            self.scorer = LeanScorer(decoder, placement.device)
        elif draft == GIVEN:
            self.scorer = self._given(half)
        if self.scorer is not None:
            self.draft = ModelDraft(self.scorer)
            self.draft.propose(self.tokens, 1)

    def _given(self, half):
        """The user's model, in the lean loop where that has its architecture."""
        settings = self.lab.settings
        sources.demand_same_vocabulary(sources.locate(settings.model), sources.locate(settings.draft))
        model = loading.load(replace(settings, model=settings.draft, dtype=half)).model
        if facts.known_decoder_shape(model.config) is None:
            return ModelScorer(model)
        max_tokens = NUM_PROMPT + NUM_TOKENS + max(NUM_DRAFTED)
        return LeanScorer(LeanDecoder(model, max_tokens=max_tokens), self.lab.placement.device)

    def _generate(self, draft, num_drafted):
        found = speculate(
            self.target, draft, self.tokens, NUM_TOKENS, num_drafted=num_drafted, num_held=NUM_PROMPT - 1
        )
        self.target.forget(NUM_TOKENS)
        return found

    @torch.inference_mode()
    def run(self, draft):
        found = {}
        with self.lab.laps.lap(PLAIN):
            found[PLAIN] = self._generate(NoDraft(), 0)
        for num_drafted in NUM_DRAFTED:
            name, before = f"g = {num_drafted}", self.draft.num_steps
            with self.lab.laps.lap(name):
                found[name] = self._generate(self.draft, num_drafted)
            self.draft_steps[name] = self.draft.num_steps - before
        for num_tokens in (1, *(num + 1 for num in NUM_DRAFTED)):
            with self.lab.laps.lap(f"pass over {num_tokens}"):
                self.target.feed(self.tokens[-1:] * num_tokens)
            self.target.forget(num_tokens)
        if self.scorer is not None:
            with self.lab.laps.lap(DRAFT_STEP):
                self.scorer.feed(self.tokens[-1:])
            self.scorer.forget(1)
        return found

    @torch.inference_mode()
    def check(self, output, draft):
        for name, found in output.items():
            assert len(found.tokens) == NUM_TOKENS, f"{name} made {len(found.tokens)} tokens"
        # In float32, where rounding explains little: the same loop over the same draft.
        found = speculate(ModelScorer(self.wide), self.draft, self.tokens, NUM_TOKENS, num_drafted=CHECKED)
        tokens = torch.tensor([found.tokens], device=self.prompt.device)
        self.num_ties = agreement.assert_greedy(self.wide, [(self.prompt, tokens)])

    def counters(self, output, draft) -> Mapping[str, float]:
        plain = output[PLAIN].tokens
        counted = {"num_near_ties": self.num_ties, "num_passes": 0}
        for name, found in output.items():
            counted["num_passes"] += len(found.rounds)
            if name == PLAIN:
                continue
            counted |= {
                f"acceptance, {name}": found.acceptance,
                f"passes, {name}": len(found.rounds),
                f"proposed, {name}": sum(proposed for proposed, _ in found.rounds),
                f"draft steps, {name}": self.draft_steps[name],
                f"as plain, {name}": sum(a == b for a, b in zip(found.tokens, plain, strict=True)),
                # Of each round by what was proposed in it: prompt lookup often has nothing to offer.
                f"expected tokens, {name}": fmean(
                    expected_tokens(found.acceptance, proposed) for proposed, _ in found.rounds
                ),
            }
        return counted

    def notes(self, output, draft) -> Mapping[str, str]:
        return {f"tokens, {name}": " ".join(map(str, found.tokens)) for name, found in output.items()}

    def budget(self, default: Budget) -> Budget:
        return replace(default, max_time_s=min(5.0, default.max_time_s))  # seconds a run

    def teardown(self, draft):
        self.wide = self.model = self.target = self.scorer = self.draft = None

    def verdict(self, results: Results) -> Verdict:
        results.samples_s(*min(results.usable()))
        words, rows, figures = [], [], {}
        for (draft,), found in results.usable().items():
            speedups = {num: results.paired_ratio(PLAIN, f"g = {num}", draft) for num in NUM_DRAFTED}
            cost = results.paired_ratio(DRAFT_STEP, "pass over 1", draft).value if DRAFT_STEP in found.laps else 0.0
            for num, speedup in speedups.items():
                verified = results.paired_ratio(f"pass over {num + 1}", "pass over 1", draft).value
                counted = {name.removesuffix(f", g = {num}"): value for name, value in found.counters.items()}
                passes = counted["passes"]
                predicted = counted["expected tokens"] / (
                    counted["draft steps"] / passes * cost + 1 + (verified - 1) * counted["proposed"] / passes / num
                )
                cells = [f"{counted['acceptance']:.2f}", f"{cost:.2f}", f"{verified:.2f}", f"{predicted:.2f}x"]
                as_plain = f"{counted['as plain']:.0f} of {NUM_TOKENS}"
                rows.append([f"{draft}, g = {num}", *cells, speedup.format(".2f", "x"), as_plain])
                figures[f"{draft}, g = {num}"] = speedup
            best, worst = (choice(speedups, key=lambda num: speedups[num].value) for choice in (max, min))
            words.append(
                f"{draft}: best g = {best}, {speedups[best].format('.2f', 'x')}; worst g = {worst}, "
                f"{speedups[worst].format('.2f', 'x')}"
            )
        ties = sum(each.counters["num_near_ties"] for each in results.usable().values())
        return Verdict(
            Outcome.HOLDS,
            measured=f"in float32 every token the target's own, {ties:.0f} by a near tie; against plain decoding "
            + "; ".join(words),
            by_scheme=accepted_by_scheme(results),
            picture=pictures.table(
                ["draft", "acceptance", "cost c", "verifying", "predicted", "measured", "tokens as plain"], rows
            ),
            figures=figures,
        )


def accepted_by_scheme(results: Results) -> dict[str, dict[str, str]]:
    """The share of single drafted tokens that stood, beside what E3 says of the same schemes."""
    return {
        FORMS[draft].scheme.name: {"accepted as draft": f"{found.counters['acceptance, g = 1']:.2f}"}
        for (draft,), found in results.usable().items()
        if draft in FORMS
    }
