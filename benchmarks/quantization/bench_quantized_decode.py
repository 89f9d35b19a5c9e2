"""D6. Decoding with quantized weights is faster and smaller, end to end.

Timed: greedy steps of one sequence over the whole model, each format in turn within one run; the context is filled
outside the timer, and every lap starts from it. Two ways of stepping: transformers' own, its projections replaced,
and a lean loop (one product for q, k and v, one for gate and up, a cache that lies still, the head quantized too;
on CUDA captured as a graph). A third case runs the lean loop in turn with llama.cpp on the same GGUF file. Tokens
are held against a full pass over the dequantized weights, but for formats with 8-bit activations, which have none.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from bench_utils import pictures
from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict, Work
from bench_utils.devices import HALVES, demand_memory
from bench_utils.inference import agreement, llama_cpp
from bench_utils.inference.captured import CapturedStep
from bench_utils.inference.decode import decode_step, prefill
from bench_utils.inference.kernel_choice import choose
from bench_utils.inference.kernels import INT4, INT8, INT8_TENSOR, NF4, Format
from bench_utils.inference.kv_cache import bytes_per_token
from bench_utils.inference.lean import LeanDecoder, quantizing
from bench_utils.inference.quantized_linear import dequantized_copy, quantized_copy, resident_bytes
from bench_utils.models import facts, loading, prompts, sources
from bench_utils.verdict import above, all_of

TRANSFORMERS, LEAN, PEER = "transformers", "lean", "peer"
FLOAT32, LLAMA_CPP = "float32", "llama.cpp"
NUM_CONTEXT, NUM_STEPS = 64, 4
OF_TRANSFORMERS = (INT8, INT4, NF4)
# What the projections and the head are kept in.
OF_LEAN = {INT8.name: (INT8, INT8), INT8_TENSOR.name: (INT8_TENSOR, INT8_TENSOR), INT4.name: (INT4, INT8)}
INTEGER_HEAD = f"{INT4.name}, integer head"
OF_PEER = {INT4.name: (INT4, INT8), INTEGER_HEAD: (INT4, INT8_TENSOR)}
# Memory that a path takes at most, its checks in finer dtypes too, in float32 copies of the model.
COPIES = {TRANSFORMERS: 4, LEAN: 6, PEER: 4}
JUDGED = (INT8.name, INT4.name)
# How far off logits may be, in what rounding does to a full pass of transformers: others round in other places.
MOST_OFF = 3.0


@dataclass
class Arm:
    """One way to decode. `step`: a token (1,) and which one it is, to logits (V,); `reset`: back to the context.

    `generate`: all steps, greedily, to the tokens (NUM_STEPS,). `reference` makes what the logits are held against.
    """

    generate: Callable[[], torch.Tensor]
    resident_bytes: int
    read_bytes: int
    dtype: torch.dtype
    step: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    reset: Callable[[], None] = lambda: None
    reference: Callable[[], Any] | None = None


class ClaimQuantizedDecode(Claim):
    id = "D6"
    title = "quantized decode is faster and smaller end to end"

    param_names = ["path"]
    params = [[TRANSFORMERS, LEAN, PEER]]

    def skip_reason(self, path) -> str:
        if path != PEER:
            return ""
        if reason := llama_cpp.missing(sources.gguf_of(self.lab.settings.model)):
            return reason
        return llama_cpp.lacks(self.lab.placement.device.type)

    @torch.inference_mode()
    def setup(self, path):
        loaded = loading.load_float32(self.lab.settings)
        facts.demand_dense(loaded.config)
        self.wide, self.config = loaded.model, loaded.config
        demand_memory(COPIES[path] * loaded.weight_bytes, self.lab.placement.device, "the model in several formats")
        self.half = self.lab.placement.half_name
        self.dtype = HALVES[self.half]
        # Both: which of them a device is fast in is not what one would think.
        halves = [self.half] if path == PEER else [self.half, *(name for name in HALVES if name != self.half)]
        self.models = {FLOAT32: self.wide} if path != PEER else {}
        self.models |= {name: copy.deepcopy(self.wide).to(HALVES[name]) for name in halves}
        self.ids = prompts.prompt_ids(loaded, NUM_CONTEXT + 1)
        self.lacking, self.arms = {}, {}
        {TRANSFORMERS: self._with_transformers, LEAN: self._with_lean, PEER: self._with_peer}[path]()

    def _with_transformers(self) -> None:
        models = {name: (model, lambda m=model: m) for name, model in self.models.items()}
        for form in filter(self._runs, OF_TRANSFORMERS):
            model = quantized_copy(self.models[self.half], form, weights_of=self.wide)
            models[form.name] = model, self._reference(form, None)
        for name, (model, reference) in models.items():
            _, cache = prefill(model, self.ids[:, :NUM_CONTEXT], last_logits_only=True)
            size, looked_up = resident_bytes(model), model.get_input_embeddings().weight
            is_tied = looked_up is model.get_output_embeddings().weight

            def step(token, _index, model=model, cache=cache):
                return decode_step(model, token[None], cache)[0, -1]

            def reset(cache=cache):
                cache.crop(-NUM_STEPS)

            read = size - (0 if is_tied else looked_up.nbytes)
            self._add(name, step, reset, size, read, looked_up.dtype, reference)

    def _with_lean(self) -> None:
        for name, model in self.models.items():
            self._add_lean(name, LeanDecoder(model, max_tokens=NUM_CONTEXT + NUM_STEPS), lambda m=model: m)
        self._add_quantized(OF_LEAN)

    def _with_peer(self) -> None:
        self._add_quantized(OF_PEER)
        gguf = sources.gguf_of(self.lab.settings.model)
        peer = llama_cpp.LlamaCpp(
            gguf,
            max_tokens=NUM_CONTEXT + NUM_STEPS,
            num_threads=torch.get_num_threads(),
            on_gpu=self.lab.placement.device.type != "cpu",
        )
        peer.fill(self.ids[0, :NUM_CONTEXT].tolist())
        first, size = int(self.ids[0, NUM_CONTEXT]), gguf.stat().st_size
        self.arms[LLAMA_CPP] = Arm(lambda: torch.tensor(peer.greedy(first, NUM_STEPS)), size, size, self.dtype)

    def _add_quantized(self, arms: Mapping[str, tuple[Format, Format]]) -> None:
        for name, (form, of_head) in arms.items():
            if not (self._runs(form) and self._runs(of_head)):
                continue
            decoder = LeanDecoder(
                self.models[self.half],
                max_tokens=NUM_CONTEXT + NUM_STEPS,
                make=quantizing(form, self.dtype),
                make_head=quantizing(of_head, self.dtype),
                weights_of=self.wide,
            )
            has_own = form.activations or of_head.activations
            self._add_lean(name, decoder, None if has_own else self._reference(form, of_head))

    def _add_lean(self, name, decoder: LeanDecoder, reference) -> None:
        decoder.fill(self.ids[0, :NUM_CONTEXT])

        def step(token, index):
            return decoder.step(token, NUM_CONTEXT + index)

        self._add(name, step, lambda: None, decoder.resident_bytes, decoder.num_bytes, decoder.dtype, reference)
        if self.ids.is_cuda:
            self.arms[name].generate = CapturedStep(self.arms[name].generate)

    def _add(self, name, step, reset, resident: int, read: int, dtype: torch.dtype, reference) -> None:
        def generate():
            token, tokens = self.ids[0, NUM_CONTEXT:], []
            for index in range(NUM_STEPS):
                token = step(token, index).argmax(keepdim=True)
                tokens.append(token)
            reset()
            return torch.cat(tokens)

        self.arms[name] = Arm(generate, resident, read, dtype, step, reset, reference)

    def _runs(self, form: Format) -> bool:
        choice = choose(form, self.lab.placement.device.type, self.dtype)
        if choice.kernel is None:
            self.lacking[form.name] = choice.lacks
        return choice.kernel is not None

    def _reference(self, form: Format, of_head: Format | None) -> Callable[[], Any]:
        model, scheme = self.models[self.half], form.scheme_for(self.dtype)
        head = None if of_head is None else of_head.scheme_for(self.dtype)
        return lambda: dequantized_copy(model, scheme, weights_of=self.wide, head=head)

    @torch.inference_mode()
    def run(self, path):
        tokens = {}
        for name, arm in self.arms.items():
            with self.lab.laps.lap(name):
                tokens[name] = arm.generate()
        return {name: each.clone() for name, each in tokens.items()}

    @torch.inference_mode()
    def check(self, output, path):
        self.off, self.num_ties = {}, 0
        for name, arm in self.arms.items():
            tokens = output[name]
            assert tokens.shape == (NUM_STEPS,), f"{name} made {tuple(tokens.shape)} tokens"
            if arm.reference is None:
                continue
            fed = torch.cat([self.ids[0, NUM_CONTEXT:], tokens[:-1]])
            logits = torch.stack([arm.step(token, index) for index, token in enumerate(fed.split(1))])
            arm.reset()
            short = logits.amax(1) - logits.gather(1, tokens[:, None])[:, 0]
            assert not short.any(), f"{name}: token {int(short.argmax()) + 1} is not what its own logits choose"
            sequence = torch.cat([self.ids[:, :NUM_CONTEXT], fed[None]], dim=1)
            reference = arm.reference()
            try:
                self.off[name] = agreement.assert_within_rounding(reference, sequence, logits, times=MOST_OFF)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            chosen = agreement.own_logits(reference, sequence)[-NUM_STEPS:].argmax(1)
            self.num_ties += int((chosen != tokens.cpu()).sum())

    def counters(self, output, path) -> Mapping[str, float]:
        sizes = {f"bytes, {name}": arm.resident_bytes for name, arm in self.arms.items()}
        off = {f"off, {name}": quotient for name, quotient in self.off.items()}
        return {"num_steps": NUM_STEPS, "num_near_ties": self.num_ties, **sizes, **off}

    def notes(self, output, path) -> Mapping[str, str]:
        tokens = {f"tokens, {name}": " ".join(map(str, each.tolist())) for name, each in output.items()}
        return tokens | {f"not run, {name}": reason for name, reason in self.lacking.items()}

    def lap_work(self, output, path) -> Mapping[str, Work]:
        contexts = range(NUM_CONTEXT + 1, NUM_CONTEXT + NUM_STEPS + 1)
        together = sum(arm.read_bytes for arm in self.arms.values())
        works = {}
        for name, arm in self.arms.items():
            token_bytes = bytes_per_token(facts.cache_shape(self.config), arm.dtype.itemsize)
            moved = NUM_STEPS * arm.read_bytes + token_bytes * sum(contexts)
            works[name] = Work(moved, working_set_bytes=together, dtype=str(arm.dtype).removeprefix("torch."))
        return works

    def teardown(self, path):
        self.arms, self.models, self.wide = {}, {}, None

    def verdict(self, results: Results) -> Verdict:
        results.samples_s(*min(results.usable()))
        figures, outcomes, words, bounds, lacking, slower = {}, [], [], [], [], []
        for path in (TRANSFORMERS, LEAN):
            if (found := results.get_if_any((path,))) is None:
                continue
            dense = [name for name in (FLOAT32, *HALVES) if name in found.laps]
            fastest = min(dense, key=lambda name: median(found.laps[name].samples_s))
            lacking += [note for name, note in found.notes.items() if name.startswith("not run")]
            for name in (name for name in JUDGED if name in found.laps):
                over = {each: results.paired_ratio(each, name, path) for each in dense}
                smaller = found.counters[f"bytes, {fastest}"] / found.counters[f"bytes, {name}"]
                outcomes += [above(over[fastest], 1.0), Outcome.HOLDS if smaller > 1 else Outcome.DOES_NOT_HOLD]
                slower += [] if over[fastest].low > 1 else [f"{path} {name}"]
                ratios = ", ".join(f"{ratio.format('.2f', 'x')} {each}" for each, ratio in over.items())
                words.append(f"{path} {name}: {ratios}, {smaller:.2f}x smaller than {fastest}")
                bounds.append(f"{path} {name}: {results.lap_bound(name, path)}")
                figures |= {f"{path} {name} over {each}": ratio for each, ratio in over.items()}
        if (found := results.get_if_any((PEER,))) is not None:
            for name in (name for name in OF_PEER if name in found.laps):
                ratio = results.paired_ratio(name, LLAMA_CPP, PEER)
                words.append(f"lean {name} takes {ratio.format('.2f', 'x')} llama.cpp's time")
                figures[f"{name} to llama.cpp"] = ratio
        reason = f"not faster than the fastest dense: {', '.join(slower)}" if slower else ""
        if not outcomes:
            reason = "; ".join(dict.fromkeys(lacking)) or "no path was run"
        reason = f"not faster than the fastest dense: {', '.join(slower)}" if slower else ""
        if not outcomes:
            reason = "; ".join(dict.fromkeys(lacking)) or "no path was run"
        return Verdict(
            all_of(outcomes) if outcomes else Outcome.NOT_APPLICABLE,
            measured="; ".join(words),
            bound="; ".join(bounds),
            reason=reason,
            picture=draw(results),
            figures=figures,
            by_scheme=cells_of(results),
        )


def cells_of(results: Results) -> dict[str, dict[str, str]]:
    """Step and size of what transformers' loop ran, for the table that claims about schemes fill together."""
    if (found := results.get_if_any((TRANSFORMERS,))) is None:
        return {}
    schemes = {FLOAT32: "reference"} | {form.name: form.scheme.name for form in OF_TRANSFORMERS}
    return {
        schemes[name]: {
            "ms": f"{1e3 * median(lap.samples_s) / found.counters['num_steps']:.1f}",
            "MB": f"{found.counters[f'bytes, {name}'] / 1e6:.0f}",
        }
        for name, lap in found.laps.items()
        if name in schemes
    }


def draw(results: Results) -> str:
    """A row a path and format: a step, tokens a second, bytes kept (llama.cpp: its file), and what bounds it."""
    rows = []
    for (path,), found in results.usable().items():
        for name, lap in found.laps.items():
            step_s = median(lap.samples_s) / found.counters["num_steps"]
            size = found.counters[f"bytes, {name}"] / 1e6
            bound = str(lap.bound) if lap.bound else ""
            kept = f"{size:.0f} (file)" if name == LLAMA_CPP else f"{size:.0f}"
            rows.append([f"{path} {name}", f"{step_s * 1e3:.2f}", f"{1 / step_s:.1f}", kept, bound])
    return pictures.table(["decoding one sequence", "ms a step", "tokens/s", "resident MB", "bound by"], rows)
