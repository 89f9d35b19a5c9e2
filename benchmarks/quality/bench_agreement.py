"""E3. Agreement sees what the battery cannot: int8 per row chooses as the reference does, fewer bits do so less.

Nothing is timed. The reference continues sixteen stretches of a text by nine tokens, greedily, in float32; each
scheme is then given the reference's own tokens, and asked at every one of the 144 positions what it would have
chosen. Beside it the divergence of the two distributions, KL(reference | scheme), in float64. Exact: no divergence
is below zero, and the reference agrees with itself but for near ties.
"""

import json
from statistics import fmean, quantiles

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference import agreement
from bench_utils.inference.batch import greedy_answers
from bench_utils.inference.decode import full_pass
from bench_utils.inference.quantized_linear import dequantized_copy
from bench_utils.inference.quantizers import INT4_GROUPS, INT4_ROW, INT4_TENSOR, INT8_ROW, INT8_TENSOR, NF4_BLOCKS
from bench_utils.measure import statistics
from bench_utils.models import corpus, facts, loading
from bench_utils.verdict import above, all_of

REFERENCE = "reference"
AT_4_BITS = [INT4_TENSOR, INT4_ROW, INT4_GROUPS[128], NF4_BLOCKS[64]]
SCHEMES = {scheme.name: scheme for scheme in (INT8_TENSOR, INT8_ROW, *AT_4_BITS, INT4_GROUPS[32])}
NUM_PROMPTS, NUM_PROMPT, NUM_TOKENS = 16, 32, 9
# Where int8 per row is good enough to be called the same: nine choices in ten, by the whole interval.
ALMOST_ALL = 0.9
# Flips as uneven are rarer than that where neither agrees more.
REAL = 0.05
# float64's own rounding of a sum over the vocabulary.
ROUNDING = 1e-9


class ClaimAgreement(Claim):
    id = "E3"
    title = "agreement sees what the battery cannot"
    chapter = "int8 row 142 of 144 positions (16 prompts x 9 tokens)"
    stated = Stated(counters={("int8 row",): {"num_same": 142, "num_different": 2}})
    timed = False
    tracked = {"num_different": "positions"}

    param_names = ["scheme"]
    params = [[REFERENCE, *SCHEMES]]

    def setup(self, scheme):
        self.loaded = loading.load_float32(self.lab.settings)
        if self.loaded.identity.is_random:
            self.not_applicable("random weights have learned no text")
        facts.demand_dense(self.loaded.config)
        text = corpus.read(self.lab.settings)
        ids = corpus.first_ids(self.loaded, text, NUM_PROMPTS * NUM_PROMPT)
        self.prompts = ids.view(NUM_PROMPTS, NUM_PROMPT)
        self.text = f"{text.name} ({text.digest})"
        self.tokens, self.reference = self.loaded.once(f"E3 {text.digest}", self._reference)

    @torch.inference_mode()
    def _reference(self):
        """The reference's own tokens (B, T), and its log probabilities (B T, V) where each was chosen."""
        tokens = torch.tensor(
            greedy_answers(self.loaded.model, self.prompts.tolist(), NUM_TOKENS), device=self.prompts.device
        )
        return tokens, self._log_probabilities(self.loaded.model, tokens)

    def _log_probabilities(self, model, tokens) -> torch.Tensor:
        sequences = torch.cat([self.prompts, tokens[:, :-1]], dim=1)
        logits = full_pass(model, sequences)[:, NUM_PROMPT - 1 :]  # (B, T, V)
        return logits.flatten(0, 1).double().log_softmax(1)

    @torch.inference_mode()
    def run(self, scheme):
        """(what the scheme chooses (B T,), its divergence from the reference (B T,) in nats)."""
        model = self.loaded.model
        if scheme != REFERENCE:
            model = dequantized_copy(model, SCHEMES[scheme])
        own = self._log_probabilities(model, self.tokens)
        return own.argmax(1), (self.reference.exp() * (self.reference - own)).sum(1)

    def check(self, output, scheme):
        chosen, divergence = output
        assert float(divergence.min()) >= -ROUNDING, f"a divergence of {float(divergence.min()):.3g} nats"
        if scheme == REFERENCE:
            generated = list(zip(self.prompts.split(1), self.tokens.split(1), strict=True))
            ties = agreement.assert_greedy(self.loaded.model, generated)
            different = int((chosen != self.tokens.flatten()).sum())
            assert different <= ties, f"the reference differs from itself {different} times, {ties} are near ties"

    def counters(self, output, scheme) -> Mapping[str, float]:
        chosen, divergence = output
        same = chosen == self.tokens.flatten()
        return {
            "num_same": int(same.sum()),
            "num_different": int((~same).sum()),
            "mean_kl": fmean(divergence.tolist()),
        }

    def notes(self, output, scheme) -> Mapping[str, str]:
        chosen, divergence = output
        same = (chosen == self.tokens.flatten()).int().tolist()
        rounded = [float(f"{value:.4g}") for value in divergence.tolist()]
        return {"text": self.text, "same": json.dumps(same), "kl_nats": json.dumps(rounded)}

    def teardown(self, scheme):
        self.loaded = self.reference = None

    def verdict(self, results: Results) -> Verdict:
        found = {name: results[(name,)] for (name,) in results.usable() if name != REFERENCE}
        num = {name: int(each.counters["num_same"]) for name, each in found.items()}
        total = {name: num[name] + int(each.counters["num_different"]) for name, each in found.items()}
        shares = {name: statistics.proportion(num[name], total[name]) for name in found}
        of_int8 = json.loads(results[(INT8_ROW.name,)].notes["same"])
        of_fewer = [json.loads(results[(scheme.name,)].notes["same"]) for scheme in AT_4_BITS]
        outcomes = [above(shares[INT8_ROW.name], ALMOST_ALL), *(agrees_more(of_int8, each) for each in of_fewer)]
        cells = {}
        for name, each in found.items():
            kl = json.loads(each.notes["kl_nats"])
            middle, far = quantiles(kl, n=2)[0], quantiles(kl, n=20)[-1]
            cells[name] = {
                "agreement": f"{num[name]} of {total[name]} [{shares[name].low:.2f}, {shares[name].high:.2f}]",
                "KL: mean, median, 95 %": f"{fmean(kl):.2g}, {middle:.2g}, {far:.2g}",
            }
        return Verdict(
            all_of(outcomes),
            measured=", ".join(
                f"{num[name]} of {total[name]} {name}" for name in sorted(found, key=lambda name: -num[name])
            ),
            figures={f"agreement {name}": share for name, share in shares.items()},
            by_scheme=cells,
        )


def agrees_more(one: list[int], other: list[int]) -> Outcome:
    """Whether the first agrees with the reference at more positions than the second, position by position."""
    lost, won = statistics.flips(one, other)
    if statistics.mcnemar(lost, won) >= REAL:
        return Outcome.INCONCLUSIVE
    return Outcome.HOLDS if lost > won else Outcome.DOES_NOT_HOLD
