"""F1. A verification pass gives (1 - a^(g+1)) / (1 - a) tokens, and the speedup divides that by g c + 1.

Nothing is timed. The formula at the chapter's settings and others, against rounds drawn at random: each drafted
token is accepted with probability a, up to the first that is not.
"""

import random
from math import sqrt

from bench_utils.claim import Claim, Mapping, Outcome, Results, Stated, Verdict
from bench_utils.inference.speculation import expected_speedup, expected_tokens

# (a, g, c): acceptance, tokens drafted, cost of one in passes of the target.
SETTINGS = {
    "a=0.9 g=8 c=0.1": (0.9, 8, 0.1),
    "a=0.3 g=8 c=0.1": (0.3, 8, 0.1),
    "a=0.3 g=4 c=0.2": (0.3, 4, 0.2),
    "a=0.8 g=5 c=0.1": (0.8, 5, 0.1),
    "a=0.5 g=1 c=0.5": (0.5, 1, 0.5),
}
# The chapter's speedups, to its digits, and its tokens for passes where it gives those.
CHAPTER = {"a=0.9 g=8 c=0.1": 3.40, "a=0.3 g=8 c=0.1": 0.79}
CHAPTER_TOKENS = {"a=0.3 g=4 c=0.2": (1.4, 1.8)}
NUM_ROUNDS, QUICK_ROUNDS = 200_000, 20_000
# Standard errors that the mean may be off: beyond it in one of 100,000 honest runs.
MOST_OFF = 4.42


class ClaimExpectedTokens(Claim):
    id = "F1"
    title = "tokens a verification pass, and when drafting pays"
    kind = "exact"
    chapter = "a=0.9, g=8, c=0.1: 3.40x; a=0.3, g=8: 0.79x; a=0.3, g=4, c=0.2: 1.4 tokens for 1.8 passes"
    stated = Stated(counters={(setting,): {"speedup": speedup} for setting, speedup in CHAPTER.items()})
    timed = False
    tracked = {"num_tokens": "tokens"}

    param_names = ["setting"]
    params = [list(SETTINGS)]

    def setup(self, setting):
        self.num_rounds = QUICK_ROUNDS if self.lab.settings.is_quick else NUM_ROUNDS

    def run(self, setting):
        """Tokens of every round."""
        acceptance, num_drafted, _ = SETTINGS[setting]
        return rounds(acceptance, num_drafted, self.num_rounds)

    def check(self, output, setting):
        acceptance, num_drafted, cost = SETTINGS[setting]
        expected = expected_tokens(acceptance, num_drafted)
        average = sum(output) / len(output)
        spread = sqrt(sum((tokens - average) ** 2 for tokens in output) / (len(output) - 1))
        off = abs(average - expected) / (spread / sqrt(len(output)))
        assert off < MOST_OFF, (
            f"{average:.4f} tokens a pass, the formula has {expected:.4f}: {off:.1f} standard errors"
        )
        speedup = expected_speedup(acceptance, num_drafted, cost)
        if setting in CHAPTER:
            assert round(speedup, 2) == CHAPTER[setting], f"{speedup:.4f}x, the chapter has {CHAPTER[setting]}x"
        if setting in CHAPTER_TOKENS:
            found = round(expected, 1), round(num_drafted * cost + 1, 1)
            assert found == CHAPTER_TOKENS[setting], f"{found}, the chapter has {CHAPTER_TOKENS[setting]}"

    def counters(self, output, setting) -> Mapping[str, float]:
        acceptance, num_drafted, cost = SETTINGS[setting]
        return {
            "num_tokens": sum(output),
            "num_rounds": len(output),
            "expected_tokens": expected_tokens(acceptance, num_drafted),
            "speedup": expected_speedup(acceptance, num_drafted, cost),
        }

    def verdict(self, results: Results) -> Verdict:
        found = {setting: results[(setting,)].counters for setting in SETTINGS}
        return Verdict(
            Outcome.HOLDS,
            measured="; ".join(
                f"{setting}: {counted['num_tokens'] / counted['num_rounds']:.3f} tokens a pass "
                f"({counted['expected_tokens']:.3f} by the formula), {counted['speedup']:.2f}x"
                for setting, counted in found.items()
            ),
        )


def rounds(acceptance: float, num_drafted: int, num_rounds: int) -> list[int]:
    """Tokens of so many rounds, drawn at random: those accepted, and the one of the pass itself."""
    generator = random.Random(0)  # noqa: S311 - a simulation, not a secret
    found = []
    for _ in range(num_rounds):
        accepted = 0
        while accepted < num_drafted and generator.random() < acceptance:
            accepted += 1
        found.append(accepted + 1)
    return found
