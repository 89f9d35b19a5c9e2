"""E2. A battery of sixteen questions shows a collapse, and cannot tell two good 4-bit schemes apart.

Nothing is timed. Short factual questions, answered greedily by the same model with its projections as each scheme
has them, in float32; with the model's own repetition penalty too, where it comes with one. Schemes are compared
question by question: a flip is one that one has right and the other wrong (McNemar).
"""

import json

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.batch import greedy_answers
from bench_utils.inference.quantized_linear import dequantized_copy
from bench_utils.inference.quantizers import INT4_GROUPS, INT4_ROW, INT4_TENSOR, INT8_ROW, NF4_BLOCKS
from bench_utils.measure import statistics
from bench_utils.models import battery, facts, loading
from bench_utils.verdict import all_of

REFERENCE = "reference"
ALIKE = (NF4_BLOCKS[64], INT4_GROUPS[128])
SCHEMES = {scheme.name: scheme for scheme in (INT8_ROW, INT4_TENSOR, INT4_ROW, *ALIKE)}
GREEDY, PENALISED = "greedy", "stock penalty"
NUM_TOKENS, QUICK_TOKENS = 20, 8
# Below it flips as uneven would be rare if neither were better: one run in twenty.
REAL = 0.05
# Fewer flips, all one way, are never rarer than that.
FEWEST = 6


class ClaimBattery(Claim):
    id = "E2"
    title = "sixteen questions show a collapse and little else"
    chapter = "NF4 and group 128 differ by one question; without the penalty the order flips"
    timed = False
    tracked = {"num_wrong": "questions"}

    param_names = ["scheme", "decoding"]
    params = [[REFERENCE, *SCHEMES], [GREEDY, PENALISED]]

    def setup(self, scheme, decoding):
        self.loaded = loading.load_float32(self.lab.settings)
        if self.loaded.identity.is_random:
            self.not_applicable("random weights know no answers")
        facts.demand_dense(self.loaded.config)
        self.questions = battery.read(self.lab.settings)
        self.prompts = battery.chat_ids(self.loaded, self.questions)
        stock = getattr(self.loaded.model.generation_config, "repetition_penalty", None)
        if decoding == PENALISED and stock in (None, 1.0):
            self.not_applicable("the model comes with no repetition penalty")
        self.penalty = stock if decoding == PENALISED else 1.0
        self.num_tokens = QUICK_TOKENS if self.lab.settings.is_quick else NUM_TOKENS

    @torch.inference_mode()
    def run(self, scheme, decoding):
        model = self.loaded.model
        if scheme != REFERENCE:
            model = dequantized_copy(model, SCHEMES[scheme])
        return greedy_answers(
            model, self.prompts, self.num_tokens, ends=battery.ends(self.loaded), penalty=self.penalty
        )

    def check(self, output, scheme, decoding):
        assert len(output) == len(self.questions), f"{len(output)} answers to {len(self.questions)} questions"
        longest = max(map(len, output))
        assert longest <= self.num_tokens, f"an answer of {longest} tokens, {self.num_tokens} were asked for"

    def counters(self, output, scheme, decoding) -> Mapping[str, int]:
        self.answers = [self.loaded.tokenizer.decode(answer, skip_special_tokens=True) for answer in output]
        pairs = zip(self.questions, self.answers, strict=True)
        self.right = [question.is_answered_by(answer) for question, answer in pairs]
        return {"num_right": sum(self.right), "num_wrong": len(self.right) - sum(self.right)}

    def notes(self, output, scheme, decoding) -> Mapping[str, str]:
        return {"answers": json.dumps(self.answers, ensure_ascii=False), "right": json.dumps(self.right)}

    def teardown(self, scheme, decoding):
        self.loaded = None

    def verdict(self, results: Results) -> Verdict:
        for scheme in (REFERENCE, INT4_TENSOR.name, *(scheme.name for scheme in ALIKE)):
            results[(scheme, GREEDY)]
        words, outcomes, cells = [], [], {}
        for decoding in (GREEDY, PENALISED):
            right = {
                scheme: json.loads(found.notes["right"])
                for (scheme, own), found in results.usable().items()
                if own == decoding
            }
            if REFERENCE not in right:
                continue
            for scheme, answered in right.items():
                share = statistics.proportion(sum(answered), len(answered))
                cell = f"{sum(answered)} of {len(answered)} [{share.low:.2f}, {share.high:.2f}]"
                if scheme != REFERENCE:
                    cell += " real" if p_of(right[REFERENCE], answered) < REAL else " noise"
                cells.setdefault(scheme, {})[f"battery, {decoding}"] = cell
            one, other = (right.get(scheme.name) for scheme in ALIKE)
            if one is not None and other is not None:
                names = f"{sum(one)} {ALIKE[0].name} and {sum(other)} {ALIKE[1].name}"
                words.append(f"{decoding}, of {len(one)}: {names}, {told_apart(one, other)}")
                outcomes.append(Outcome.HOLDS if p_of(one, other) >= REAL else Outcome.DOES_NOT_HOLD)
            if (collapsed := right.get(INT4_TENSOR.name)) is not None:
                words.append(
                    f"{sum(right[REFERENCE])} the reference and {sum(collapsed)} int4 tensor, "
                    f"{told_apart(right[REFERENCE], collapsed)}"
                )
                is_real = p_of(right[REFERENCE], collapsed) < REAL
                missed = Outcome.INCONCLUSIVE if sum(right[REFERENCE]) < FEWEST else Outcome.DOES_NOT_HOLD
                outcomes.append(Outcome.HOLDS if is_real else missed)
        return Verdict(
            all_of(outcomes),
            measured="; ".join(words),
            by_scheme=cells,
        )


def p_of(one: list[bool], other: list[bool]) -> float:
    """How probable flips as uneven are where neither is better."""
    return statistics.mcnemar(*statistics.flips(one, other))


def told_apart(one: list[bool], other: list[bool]) -> str:
    """'2 lost, 1 won: noise (p = 1)'."""
    lost, won = statistics.flips(one, other)
    p = p_of(one, other)
    return f"{lost} lost, {won} won: {'real' if p < REAL else 'noise'} (p = {p:.2g})"
