"""G1. A teacher's distribution carries more than the label: after its first choice others are still alive.

Nothing is timed. The five most likely tokens after a few sentences, on the model at hand, in float32; and how many
tokens the distribution is worth (exp of its entropy), where a label is worth one.
"""

import json

import torch

from bench_utils import pictures
from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.decode import full_pass
from bench_utils.inference.distillation import tempered
from bench_utils.models import corpus, loading

SENTENCES = {
    "milk": "She poured the milk into the",
    "window": "He opened the window because the room was",
    "capital": "The capital of France is",
}
# The first line of a text of the user's.
OWN = "your own"
NUM_SHOWN, WIDEST = 5, 48


class ClaimSoftLabels(Claim):
    id = "G1"
    title = "the teacher's distribution carries more than the label"
    chapter = "jug .1355, cup .1051, bowl .0605, large .0380, milk .0360"
    timed = False
    tracked = {"num_tokens": "tokens"}

    param_names = ["sentence"]
    params = [[*SENTENCES, OWN]]

    def skip_reason(self, sentence) -> str:
        is_missing = sentence == OWN and not self.lab.settings.corpus
        return "no text was given: --claims-corpus, whose first line is taken" if is_missing else ""

    def setup(self, sentence):
        self.loaded = loading.load_float32(self.lab.settings)
        if self.loaded.tokenizer is None:
            self.not_applicable("the model has no tokenizer")
        if self.loaded.identity.is_random:
            self.not_applicable("random weights have learned no language")
        own = corpus.read(self.lab.settings).text.strip() if sentence == OWN else ""
        self.text = SENTENCES.get(sentence) or own.splitlines()[0]
        ids = self.loaded.tokenizer(self.text, add_special_tokens=False)["input_ids"]
        self.ids = torch.tensor([ids], device=self.loaded.placement.device)

    @torch.inference_mode()
    def run(self, sentence):
        """The distribution (V,) of the next token."""
        return tempered(full_pass(self.loaded.model, self.ids, last_logits_only=True)[0, -1], 1.0).cpu()

    def check(self, output, sentence):
        total = float(output.sum())
        assert abs(total - 1) < 1e-9, f"the probabilities add up to {total}"

    def counters(self, output, sentence) -> Mapping[str, float]:
        return {
            "num_tokens": self.ids.numel(),
            "first": float(output.max()),
            "worth_tokens": float(torch.special.entr(output).sum().exp()),
        }

    def notes(self, output, sentence) -> Mapping[str, str]:
        top = output.topk(NUM_SHOWN)
        words = [self.loaded.tokenizer.decode([token]) for token in top.indices.tolist()]
        return {
            "sentence": self.text,
            "most_likely": json.dumps(list(zip(words, top.values.tolist(), strict=True)), ensure_ascii=False),
        }

    def teardown(self, sentence):
        self.loaded = None

    def verdict(self, results: Results) -> Verdict:
        found = {sentence: results[(sentence,)] for (sentence,) in results.usable()}
        worth = {sentence: each.counters["worth_tokens"] for sentence, each in found.items()}
        rows = []
        for sentence, each in found.items():
            likely = json.loads(each.notes["most_likely"])
            cells = [f"{word.strip()} {p:.4f}" for word, p in likely]
            rows.append([each.notes["sentence"][:WIDEST], *cells, f"{worth[sentence]:.1f}"])
        return Verdict(
            Outcome.HOLDS if results[("milk",)].counters["worth_tokens"] > 2 else Outcome.DOES_NOT_HOLD,
            measured=", ".join(f"{sentence}: worth {tokens:.1f} tokens" for sentence, tokens in worth.items()),
            picture=pictures.table(["sentence", *(f"{place + 1}." for place in range(NUM_SHOWN)), "worth"], rows),
        )
