"""G3. A student learns more of its teacher from soft labels than from hard ones.

Nothing is timed. Students that begin alike see the same tokens in the same order: one learns the teacher's first
choice (hard), others its whole distribution at temperature 1 and 2 (soft, with the factor T^2). Held-out text tells
how far each is from the teacher, KL(teacher | student); the interval is over seeds. A student tells apart the most
frequent tokens of the text, and takes all others for one: what the teacher gives those is added up.
"""

import json
from statistics import fmean

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference.distillation import (
    Vocabulary,
    divergence,
    divergence_of,
    hard_loss,
    labels_of,
    small_student,
    soft_loss,
    train,
)
from bench_utils.measure import statistics
from bench_utils.models import corpus, facts, loading
from bench_utils.verdict import UndecidedError, above, all_of

HARD, UNTAUGHT = "hard", "untaught"
# The same for every place: the mean of all that was taught.
CONSTANT = "a constant"
SOFT = {"soft, T = 1": 1.0, "soft, T = 2": 2.0}
SEEDS = [0, 1, 2, 3, 4]
NUM_CLASSES, WINDOW = 1_024, 64
NUM_TRAINED, NUM_HELD_OUT = 48, 12  # windows
NUM_STEPS, QUICK_STEPS, BATCH = 120, 30, 8


class ClaimStudents(Claim):
    id = "G3"
    title = "a student learns more from soft labels than from hard"
    timed = False
    tracked = {"num_seen": "tokens"}

    param_names = ["seed"]
    params = [SEEDS]

    def skip_reason(self, seed) -> str:
        return "full profile only" if self.lab.settings.is_quick and seed > 1 else ""

    def setup(self, seed):
        loaded = loading.load_float32(self.lab.settings)
        if loaded.identity.is_random:
            self.not_applicable("random weights have nothing to teach")
        facts.demand_dense(loaded.config)
        text = corpus.read(self.lab.settings)
        self.num_steps = QUICK_STEPS if self.lab.settings.is_quick else NUM_STEPS
        self.inputs, self.labels, self.first = loaded.once(f"G3 {text.digest}", lambda: self._lesson(loaded, text))

    def _lesson(self, loaded, text):
        """Windows of classes (B, T); the teacher's distribution after each token (B, T, C), its choice (B, T)."""
        num_windows = NUM_TRAINED + NUM_HELD_OUT
        ids = corpus.first_ids(loaded, text, num_windows * WINDOW).view(num_windows, WINDOW)
        vocabulary = Vocabulary.of(ids[:NUM_TRAINED], loaded.config.vocab_size, NUM_CLASSES)
        return vocabulary.classes(ids), *labels_of(loaded.model, ids, vocabulary)

    def run(self, seed):
        """Of each student the divergence at every held-out place (B, T)."""
        losses = {HARD: hard_loss} | {name: soft_loss(temperature) for name, temperature in SOFT.items()}
        num_classes, trained, held_out = self.labels.shape[-1], slice(NUM_TRAINED), slice(NUM_TRAINED, None)
        students = {name: small_student(num_classes, seed=seed) for name in (*losses, UNTAUGHT)}
        self.num_seen = 0
        for name, loss in losses.items():
            self.num_seen += train(
                students[name],
                self.inputs[trained],
                (self.first if name == HARD else self.labels)[trained],
                loss,
                num_steps=self.num_steps,
                batch=BATCH,
                seed=seed,
            )
        found = {
            name: divergence(student.eval(), self.inputs[held_out], self.labels[held_out])
            for name, student in students.items()
        }
        constant = self.labels[trained].double().mean((0, 1)).log()
        return found | {CONSTANT: divergence_of(constant, self.labels[held_out])}

    def check(self, output, seed):
        for name, found in output.items():
            assert bool(found.isfinite().all()), f"{name}: a divergence is not finite"
            least = float(found.min())
            assert least >= -1e-6, f"{name}: a divergence of {least:.3g} nats, the labels are in float32"

    def counters(self, output, seed) -> Mapping[str, float]:
        means = {f"kl, {name}": float(found.mean()) for name, found in output.items()}
        return {"num_seen": self.num_seen, **means}

    def notes(self, output, seed) -> Mapping[str, str]:
        by_window = {name: [round(value, 4) for value in found.mean(1).tolist()] for name, found in output.items()}
        return {"kl_by_window": json.dumps(by_window)}

    def verdict(self, results: Results) -> Verdict:
        seeds = sorted(results.usable())
        kl = {
            name: [results[seed].counters[f"kl, {name}"] for seed in seeds]
            for name in (HARD, *SOFT, CONSTANT, UNTAUGHT)
        }
        if len(seeds) < 2:
            raise UndecidedError(Outcome.INCONCLUSIVE, "one seed has no interval")
        gains = {
            name: statistics.mean([hard - soft for hard, soft in zip(kl[HARD], kl[name], strict=True)])
            for name in SOFT
        }
        shown = ", ".join(f"{fmean(values):.3f} {name}" for name, values in kl.items())
        return Verdict(
            all_of([above(gain, 0.0) for gain in gains.values()]),
            measured=f"held-out KL to the teacher over {len(seeds)} seeds: {shown}; "
            + ", ".join(f"{name} has {gain.format('.3f', ' nats')} less than hard" for name, gain in gains.items()),
            figures={f"gain {name}": gain for name, gain in gains.items()},
        )
