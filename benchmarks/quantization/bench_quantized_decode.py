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
from bench_utils.devices import demand_memory
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
# Both halves: which of them a device is fast in is not what one would think.
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
OF_TRANSFORMERS = (INT8, INT4, NF4)
# What the projections and the head are kept in.
OF_LEAN = {INT8.name: (INT8, INT8), INT8_TENSOR.name: (INT8_TENSOR, INT8_TENSOR), INT4.name: (INT4, INT8)}
INTEGER_HEAD = f"{INT4.name}, integer head"
OF_PEER = {INT4.name: (INT4, INT8), INTEGER_HEAD: (INT4, INT8_TENSOR)}


@dataclass
class Arm:
    """One way to decode: its steps, the tokens' ids (NUM_STEPS,); bytes kept and read; what it is held against."""

    steps: Callable[[], torch.Tensor]
    resident_bytes: int
    read_bytes: int
    dtype: torch.dtype
    reference: Callable[[], Any] | None


class ClaimQuantizedDecode(Claim):
    id = "D6"
    title = "quantized decode is faster and smaller end to end"

    param_names = ["path"]
    params = [[TRANSFORMERS, LEAN, PEER]]

    def skip_reason(self, path) -> str:
        if path != PEER:
            return ""
        if sources.gguf_of(self.lab.settings.model) is None:
            return "llama.cpp reads GGUF files, and this model comes from none"
        if not llama_cpp.is_installed():
            return llama_cpp.MISSING
        return llama_cpp.lacks(self.lab.placement.device.type)

    @torch.inference_mode()
    def setup(self, path):
        loaded = loading.load_float32(self.lab.settings)
        facts.demand_dense(loaded.config)
        self.wide, self.config, device = loaded.model, loaded.config, self.lab.placement.device
        demand_memory(2 * loaded.weight_bytes, device, "the model in several formats")
        own = self.lab.placement.dtype_name
        self.half = own if own in HALVES else next(iter(HALVES))
        self.models = {FLOAT32: self.wide, self.half: copy.deepcopy(self.wide).to(HALVES[self.half])}
        self.ids = prompts.prompt_ids(loaded, NUM_CONTEXT + 1)
        self.lacking, self.arms, self.peer = {}, {}, None
        {TRANSFORMERS: self._with_transformers, LEAN: self._with_lean, PEER: self._with_peer}[path]()

    def _with_transformers(self) -> None:
        models = {name: (model, lambda m=model: m) for name, model in self.models.items()}
        for form in filter(self._runs, OF_TRANSFORMERS):
            model = quantized_copy(self.models[self.half], form, weights_of=self.wide)
            models[form.name] = model, self._reference(form, None)
        for name, (model, reference) in models.items():
            _, cache = prefill(model, self.ids[:, :NUM_CONTEXT], last_logits_only=True)
            size = resident_bytes(model)
            looked_up = model.get_input_embeddings().weight
            is_tied = looked_up is model.get_output_embeddings().weight
            read = size - (0 if is_tied else looked_up.nbytes)
            self.arms[name] = Arm(self._stepping(model, cache), size, read, looked_up.dtype, reference)

    def _stepping(self, model, cache) -> Callable[[], torch.Tensor]:
        def steps():
            token, tokens = self.ids[:, NUM_CONTEXT:], []
            for _ in range(NUM_STEPS):
                token = decode_step(model, token, cache)[:, -1:].argmax(-1)
                tokens.append(token[0])
            cache.crop(-NUM_STEPS)
            return torch.cat(tokens)

        return steps

    def _with_lean(self) -> None:
        self.models |= {
            name: copy.deepcopy(self.wide).to(dtype) for name, dtype in HALVES.items() if name != self.half
        }
        for name, model in self.models.items():
            self._add_lean(name, LeanDecoder(model, max_tokens=NUM_CONTEXT + NUM_STEPS), lambda m=model: m)
        self._add_quantized(OF_LEAN)

    def _with_peer(self) -> None:
        self._add_quantized(OF_PEER)
        gguf = sources.gguf_of(self.lab.settings.model)
        self.peer = llama_cpp.LlamaCpp(
            gguf,
            max_tokens=NUM_CONTEXT + NUM_STEPS,
            num_threads=torch.get_num_threads(),
            on_gpu=self.lab.placement.device.type != "cpu",
        )
        self.peer.fill(self.ids[0, :NUM_CONTEXT].tolist())
        token = int(self.ids[0, NUM_CONTEXT])
        size = gguf.stat().st_size
        self.arms[LLAMA_CPP] = Arm(
            lambda: torch.tensor(self.peer.greedy(token, NUM_STEPS)), size, size, HALVES[self.half], None
        )

    def _add_quantized(self, arms: Mapping[str, tuple[Format, Format]]) -> None:
        half = HALVES[self.half]
        for name, (form, of_head) in arms.items():
            if not (self._runs(form) and self._runs(of_head)):
                continue
            decoder = LeanDecoder(
                self.models[self.half],
                max_tokens=NUM_CONTEXT + NUM_STEPS,
                make=quantizing(form, half),
                make_head=quantizing(of_head, half),
            )
            has_own = form.activations or of_head.activations
            self._add_lean(name, decoder, None if has_own else self._reference(form, of_head))

    def _add_lean(self, name, decoder: LeanDecoder, reference) -> None:
        decoder.fill(self.ids[0, :NUM_CONTEXT])

        def steps():
            return decoder.greedy(self.ids[0, NUM_CONTEXT:], NUM_CONTEXT, NUM_STEPS)

        captured = CapturedStep(steps) if self.ids.is_cuda else steps
        self.arms[name] = Arm(captured, decoder.resident_bytes, decoder.num_bytes, decoder.dtype, reference)

    def _runs(self, form: Format) -> bool:
        choice = choose(form, self.lab.placement.device.type, HALVES[self.half])
        if choice.kernel is None:
            self.lacking[form.name] = choice.lacks
        return choice.kernel is not None

    def _reference(self, form: Format, of_head: Format | None) -> Callable[[], Any]:
        half = self.models[self.half]
        return lambda: dequantized_copy(half, form, weights_of=self.wide, head=of_head)

    @torch.inference_mode()
    def run(self, path):
        tokens = {}
        for name, arm in self.arms.items():
            with self.lab.laps.lap(name):
                tokens[name] = arm.steps()
        return {name: each.clone() for name, each in tokens.items()}

    def check(self, output, path):
        prompt = self.ids[:, : NUM_CONTEXT + 1]
        self.num_ties = {}
        for name, arm in self.arms.items():
            assert output[name].shape == (NUM_STEPS,), f"{name} made {len(output[name])} tokens"
            if arm.reference is not None:
                self.num_ties[name] = agreement.assert_greedy(arm.reference(), [(prompt, output[name][None])])

    def counters(self, output, path) -> Mapping[str, int]:
        sizes = {f"bytes, {name}": arm.resident_bytes for name, arm in self.arms.items()}
        return {"num_steps": NUM_STEPS, "num_near_ties": sum(self.num_ties.values()), **sizes}

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
        self.arms, self.models, self.wide, self.peer = {}, {}, None, None

    def verdict(self, results: Results) -> Verdict:
        results.samples_s(*min(results.usable()))
        figures, outcomes, words = {}, [], []
        for path in (TRANSFORMERS, LEAN):
            found = results[(path,)]
            half = next(name for name in found.laps if name in HALVES)
            for name in (INT8.name, INT4.name):
                if name not in found.laps:
                    continue
                over = {dense: results.paired_ratio(dense, name, path) for dense in (half, FLOAT32)}
                smaller = found.counters[f"bytes, {half}"] / found.counters[f"bytes, {name}"]
                outcomes += [above(over[half], 1.0), Outcome.HOLDS if smaller > 1 else Outcome.DOES_NOT_HOLD]
                words.append(
                    f"{path} {name} {over[half].format('.2f', 'x')} {half}, "
                    f"{over[FLOAT32].format('.2f', 'x')} {FLOAT32}, {smaller:.2f}x smaller"
                )
                figures |= {f"{path} {name} over {dense}": ratio for dense, ratio in over.items()}
        if results.get_if_any((PEER,)) is not None:
            for name in OF_PEER:
                ratio = results.paired_ratio(name, LLAMA_CPP, PEER)
                words.append(f"lean {name} takes {ratio.format('.2f', 'x')} llama.cpp's time")
                figures[f"{name} to llama.cpp"] = ratio
        return Verdict(
            all_of(outcomes),
            measured="; ".join(words),
            bound="; ".join(f"{path}: {results.lap_bound(INT4.name, path)}" for path in (TRANSFORMERS, LEAN)),
            picture=draw(results),
            figures=figures,
        )


def draw(results: Results) -> str:
    """A row a path and format: a step, tokens a second, bytes kept, and what bounds it."""
    rows = []
    for (path,), found in results.usable().items():
        for name, lap in found.laps.items():
            step_s = median(lap.samples_s) / found.counters["num_steps"]
            size = found.counters[f"bytes, {name}"] / 1e6
            bound = str(lap.bound) if lap.bound else ""
            rows.append([f"{path} {name}", f"{step_s * 1e3:.2f}", f"{1 / step_s:.1f}", f"{size:.0f}", bound])
    return pictures.table(["decoding one sequence", "ms a step", "tokens/s", "resident MB", "bound by"], rows)
