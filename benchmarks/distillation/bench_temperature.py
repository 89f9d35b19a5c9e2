"""G2. A temperature T raises the ratio of two probabilities to the power 1 / T.

Nothing is timed. The ratio of the first to the third token after the chapter's sentence, or after random tokens
where the model has no tokenizer, at several temperatures, in float64.
"""

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.decode import full_pass
from bench_utils.inference.distillation import tempered
from bench_utils.models import loading, prompts

SENTENCE = "She poured the milk into the"
TEMPERATURES = [0.5, 1.0, 2.0, 4.0]
# Spacings of float64 that a softmax and a power may be off.
ROUNDING = 1e-12


class ClaimTemperature(Claim):
    id = "G2"
    title = "temperature T takes a ratio to the power 1 / T"
    kind = "exact"
    chapter = "first over third: 2.24 at T = 1, 1.50 at T = 2, the square root"
    stated = Stated(counters={(1.0,): {"ratio": 2.24}, (2.0,): {"ratio": 1.50}})
    timed = False
    tracked = {"num_tokens": "tokens"}

    param_names = ["temperature"]
    params = [TEMPERATURES]

    def setup(self, temperature):
        loaded = loading.load_float32(self.lab.settings)
        if loaded.tokenizer is None:
            ids = prompts.prompt_ids(loaded, 8)
        else:
            found = loaded.tokenizer(SENTENCE, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([found], device=loaded.placement.device)
        self.num_tokens = ids.numel()
        with torch.inference_mode():
            self.logits = full_pass(loaded.model, ids, last_logits_only=True)[0, -1].cpu()

    def run(self, temperature):
        """First over third, at 1 and at the temperature."""
        at_one, at_this = tempered(self.logits, 1.0), tempered(self.logits, temperature)
        first, _, third = at_one.topk(3).indices.tolist()
        return float(at_one[first] / at_one[third]), float(at_this[first] / at_this[third])

    def check(self, output, temperature):
        at_one, at_this = output
        expected = at_one ** (1 / temperature)
        assert abs(at_this / expected - 1) < ROUNDING, f"{at_this} at T = {temperature}, the law has {expected}"

    def counters(self, output, temperature) -> Mapping[str, float]:
        return {"num_tokens": self.num_tokens, "ratio": output[1]}

    def verdict(self, results: Results) -> Verdict:
        found = {temperature: results[(temperature,)].counters["ratio"] for (temperature,) in results.usable()}
        return Verdict(
            Outcome.HOLDS,
            measured="first over third: " + ", ".join(f"{ratio:.3f} at T = {at:g}" for at, ratio in found.items()),
        )
