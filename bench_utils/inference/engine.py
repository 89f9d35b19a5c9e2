"""A continuous-batching engine on transformers' models: one ragged step for all seats, admission before each."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from bench_utils.inference.decode import prefill
from bench_utils.inference.row_cache import ragged_step
from bench_utils.inference.sampling import GREEDY, Chooser, Sampling
from bench_utils.inference.scheduling import CONTINUOUS, Policy, Seats, SeatSteps
from bench_utils.inference.stores import RowStore, Store


@dataclass(eq=False)
class Generation:
    """One request in the engine's hands. `finish` says why it ended; None while it runs."""

    id: int
    prompt: Sequence[int]
    num_tokens: int
    chooser: Chooser
    is_greedy: bool
    tokens: list[int] = field(default_factory=list)
    finish: Literal["length", "stop"] | None = None
    num_preemptions: int = 0


@dataclass(kw_only=True)
class Totals(SeatSteps):
    """What the engine did so far, in the simulator's account and in tokens."""

    num_prefilled: int = 0
    num_reused: int = 0
    num_preemptions: int = 0


class Engine:
    """Seats over a store of caches. Everything that decides is bookkeeping; `step` does the arithmetic.

    Args: `stop_tokens` end a generation and belong to it; `policy` says who may sit down when.
    """

    def __init__(
        self,
        model: Any,
        store: Store,
        num_seats: int,
        *,
        policy: Policy = CONTINUOUS,
        stop_tokens: Collection[int] = (),
    ) -> None:
        if not policy.joins and not isinstance(store, RowStore):
            raise ValueError("a static batch pads the rows of those that are done: it needs a RowStore")
        if store.order:
            raise ValueError(f"the store holds {len(store.order)} sequences: an engine needs one of its own")
        self.totals = Totals()
        self._model = model
        self._store = store
        self._stop_tokens = frozenset(stop_tokens)
        self._vocab = int(model.config.vocab_size)
        self._context = int(model.config.max_position_embeddings)
        self._device = model.get_input_embeddings().weight.device
        self._seats = Seats(num_seats, policy)
        self._waiting: deque[Generation] = deque()
        # By id, in the order they sat down: (seat, generation).
        self._seated: dict[int, tuple[int, Generation]] = {}
        self._num_submitted = 0

    @property
    def has_work(self) -> bool:
        """Whether anyone waits or sits."""
        return bool(self._waiting or self._seated)

    def holds(self, generation: Generation) -> bool:
        """Whether a generation still sits: done perhaps, and held by its batch."""
        return generation.id in self._seated

    def submit(self, prompt: Sequence[int], num_tokens: int, sampling: Sampling = GREEDY) -> Generation:
        """Queue a prompt for up to `num_tokens` tokens.

        Raises:
            ValueError: nothing to read or to write, a token that is none, or more than the context or the cache can
                ever hold.
        """
        if not prompt:
            raise ValueError("an empty prompt: there is nothing to continue")
        if not 0 <= min(prompt) <= max(prompt) < self._vocab:
            raise ValueError(f"tokens from {min(prompt)} to {max(prompt)}, and the vocabulary has {self._vocab}")
        if num_tokens < 1:
            raise ValueError(f"{num_tokens} tokens asked for; at least one can be generated")
        whole = len(prompt) + num_tokens
        if whole > self._context:
            raise ValueError(
                f"{len(prompt)} + {num_tokens} = {whole} tokens, and the model's context is {self._context}"
            )
        if whole - 1 > self._store.max_tokens:  # the last token is never fed
            raise ValueError(f"{whole - 1} tokens to keep, and the whole cache holds {self._store.max_tokens}")
        chooser = Chooser(sampling)
        generation = Generation(self._num_submitted, tuple(prompt), num_tokens, chooser, sampling.is_greedy)
        self._num_submitted += 1
        self._waiting.append(generation)
        return generation

    def run(self) -> None:
        """Step until nobody is left."""
        while self.has_work:
            self.step()

    @torch.inference_mode()
    def step(self) -> None:
        """Admit, then one token for every seat that is active."""
        self._make_room()
        while self._admit():
            pass  # a request that its prompt's pass already finished leaves its seat to the next
        if not self._seated:
            return
        order = [self._seated[key][1] for key in self._store.order]
        assert len(order) == self._seats.num_active + self._seats.num_held, "a row for each seat that is taken"
        newest = torch.tensor([each.tokens[-1] for each in order], device=self._device)
        logits = ragged_step(self._model, newest, self._store.step())  # (n, V)
        self.totals.count(self._seats)
        greedy = logits.argmax(-1).tolist()
        for row, generation in enumerate(order):
            if generation.finish is None:
                self._accept(generation, logits[row], greedy[row])
                self._settle(generation)

    def _admit(self) -> bool:
        """Seat whom the policy and the store let in; whether one of them is done already and others may follow."""
        admitted = []
        for _ in range(self._seats.num_admissible(len(self._waiting))):
            generation = self._waiting[0]
            tokens = (*generation.prompt, *generation.tokens)
            cache = self._store.admit(generation.id, tokens)
            if cache is None:
                assert self._seated, f"{len(tokens)} tokens do not fit into an empty cache"
                break
            self._waiting.popleft()
            self._seated[generation.id] = self._seats.take(), generation
            num_reused = cache.get_seq_length()
            rest = torch.tensor([tokens[num_reused:]], device=self._device)
            logits, cache = prefill(self._model, rest, cache=cache, last_logits_only=True)
            self._store.fill(generation.id, cache)
            self.totals.num_reused += num_reused
            self.totals.num_prefilled += rest.shape[1]
            self._accept(generation, logits[0, -1], int(logits[0, -1].argmax()))
            if generation.finish is None:  # at once: the next one to sit down must not take its slot
                has_room = self._store.append(generation.id, generation.tokens[-1])
                assert has_room, "admission looks for one token more"
            admitted.append(generation)
        for generation in admitted:  # once all of them are seated: a batch is let in whole
            self._settle(generation)
        return any(generation.finish for generation in admitted)

    def _make_room(self) -> None:
        """A slot for every active sequence's newest token; where blocks run out the last to sit down gets up."""
        for key, (_, generation) in list(self._seated.items()):
            while key in self._seated and generation.finish is None:
                if self._store.append(key, generation.tokens[-1]):
                    break
                self._preempt()

    def _preempt(self) -> None:
        """Send the last one seated back to the head of the queue: what it has so far is its prompt then."""
        key = next(reversed(self._seated))
        seat, generation = self._seated.pop(key)
        self._store.release(key)
        self._seats.finish(seat)
        generation.num_preemptions += 1
        self.totals.num_preemptions += 1
        self._waiting.appendleft(generation)

    def _accept(self, generation: Generation, logits: torch.Tensor, greedy: int) -> None:
        """One more token, which may be the last."""
        token = greedy if generation.is_greedy else generation.chooser.choose(logits)
        generation.tokens.append(token)
        if token in self._stop_tokens:
            generation.finish = "stop"
        elif len(generation.tokens) == generation.num_tokens:
            generation.finish = "length"

    def _settle(self, generation: Generation) -> None:
        """Free the seats that a generation's end frees."""
        if generation.finish is None:
            return
        freed = set(self._seats.finish(self._seated[generation.id][0]))
        for key in [key for key, (seat, _) in self._seated.items() if seat in freed]:
            del self._seated[key]
            self._store.release(key)
