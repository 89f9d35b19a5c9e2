"""Speculative decoding: a draft proposes tokens, the target verifies them all in one pass.

The output is the target's own, whatever the draft: its very tokens where it is greedy, its distribution where it
samples. Source: Leviathan et al., arXiv 2211.17192.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from bench_utils.inference.lean import LeanDecoder
from bench_utils.inference.sampling import GREEDY, Sampling, probabilities


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens, and the distributions (n, V) that they were really drawn from; None: they were not drawn."""

    tokens: list[int]
    drawn_from: torch.Tensor | None = None


class Draft(Protocol):
    """What proposes."""

    def propose(self, sequence: Sequence[int], num_tokens: int) -> Proposal:
        """At most so many tokens after a sequence; fewer, or none, where it has none to offer."""


class Scorer(Protocol):
    """What says which token comes next. It holds a sequence that grows and can be cut back."""

    def feed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append tokens: the logits (n, V) after each."""

    def forget(self, num_tokens: int) -> None:
        """Cut the last tokens off again."""


@dataclass
class Speculated:
    """What was generated, and for every pass over the target (tokens proposed, of them accepted)."""

    tokens: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def acceptance(self) -> float:
        """Accepted over tried, up to each round's first rejection: what stands behind one was never tried."""
        accepted = sum(num for _, num in self.rounds)
        rejected = sum(num < proposed for proposed, num in self.rounds)
        return accepted / (accepted + rejected) if accepted + rejected else 0.0


class ModelScorer:
    """A transformers model with its cache, for one sequence."""

    def __init__(self, model: Any) -> None:
        self._model, self._cache = model, DynamicCache(config=model.config)

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int]) -> torch.Tensor:
        """One pass over the new tokens."""
        ids = torch.tensor([list(tokens)], device=next(self._model.parameters()).device)
        logits: torch.Tensor = self._model(ids, cache=self._cache, use_cache=True).logits[0]
        return logits

    def forget(self, num_tokens: int) -> None:
        """Roll the cache back."""
        if num_tokens:
            self._cache.crop(-num_tokens)


class LeanScorer:
    """A lean decoder, token by token: what a cheap draft is made of."""

    def __init__(self, decoder: LeanDecoder, device: torch.device | str = "cpu") -> None:
        self._decoder, self._device, self._num_held = decoder, device, 0

    def feed(self, tokens: Sequence[int]) -> torch.Tensor:
        """A step a token."""
        logits = []
        for token in tokens:
            logits.append(self._decoder.step(torch.tensor([token], device=self._device), self._num_held))
            self._num_held += 1
        return torch.stack(logits)

    def forget(self, num_tokens: int) -> None:
        """Go back: what lies behind is written over."""
        self._num_held -= num_tokens


class ModelDraft:
    """A model that drafts, token by token, as the target would choose: greedily, or by the same sampling."""

    def __init__(
        self, scorer: Scorer, sampling: Sampling = GREEDY, generator: torch.Generator | None = None
    ) -> None:
        self._scorer, self._sampling = scorer, sampling
        self._generator = generator if generator is not None else torch.Generator().manual_seed(sampling.seed)
        self._held: list[int] = []
        self.num_steps = 0  # tokens that were fed, all proposals together

    def propose(self, sequence: Sequence[int], num_tokens: int) -> Proposal:
        """What was held and does not begin the sequence is forgotten first: drafts that were rejected."""
        same = 0
        while same < min(len(self._held), len(sequence) - 1) and self._held[same] == sequence[same]:
            same += 1
        self._scorer.forget(len(self._held) - same)
        self._held = list(sequence)
        logits = self._scorer.feed(sequence[same:])[-1]
        self.num_steps += len(sequence) - same
        tokens, drawn_from = [], []
        for index in range(num_tokens):
            if self._sampling.is_greedy:
                token = int(logits.argmax())
            else:
                drawn_from.append(probabilities(logits.cpu(), self._sampling))
                token = int(torch.multinomial(drawn_from[-1], 1, generator=self._generator))
            tokens.append(token)
            if index < num_tokens - 1:  # the last one is fed when, and if, it was accepted
                logits = self._scorer.feed([token])[-1]
                self.num_steps += 1
                self._held.append(token)
        return Proposal(tokens, torch.stack(drawn_from) if drawn_from else None)


class PromptLookup:
    """The free draft: what followed the last few tokens when they stood here before."""

    def __init__(self, longest: int = 3) -> None:
        self._longest, self.num_steps = longest, 0

    def propose(self, sequence: Sequence[int], num_tokens: int) -> Proposal:
        """The tokens after the latest earlier place of the longest ending that has one."""
        whole = list(sequence)
        for length in range(min(self._longest, len(whole) - 1), 0, -1):
            ending = whole[-length:]
            for start in range(len(whole) - length - 1, -1, -1):
                if whole[start : start + length] == ending:
                    return Proposal(whole[start + length : start + length + num_tokens])
        return Proposal([])


def speculate(
    target: Scorer,
    draft: Draft,
    prompt: Sequence[int],
    num_tokens: int,
    *,
    num_drafted: int,
    sampling: Sampling = GREEDY,
    generator: torch.Generator | None = None,
    num_held: int = 0,
) -> Speculated:
    """Generate with a draft of `num_drafted` tokens a round (g).

    `num_held`: tokens of the prompt that the target holds already; all but the last at most. Afterwards it holds
    all tokens but the last. With sampling, a draft must say which distributions it really drew from.
    """
    if generator is None:
        generator = torch.Generator().manual_seed(sampling.seed)
    sequence, found = list(prompt), Speculated()
    if missing := sequence[num_held:-1]:
        target.feed(missing)
    while len(found.tokens) < num_tokens:
        # One place is left for the token that the pass itself gives.
        room = min(num_drafted, num_tokens - len(found.tokens) - 1)
        proposal = draft.propose(sequence, room) if room else Proposal([])
        logits = target.feed([sequence[-1], *proposal.tokens])  # (g + 1, V)
        num_accepted, following = verify(logits, proposal, sampling, generator)
        target.forget(len(proposal.tokens) - num_accepted)
        new = [*proposal.tokens[:num_accepted], following]
        sequence += new
        found.tokens += new
        found.rounds.append((len(proposal.tokens), num_accepted))
    return found


def verify(
    logits: torch.Tensor, proposal: Proposal, sampling: Sampling, generator: torch.Generator
) -> tuple[int, int]:
    """How many drafted tokens stand, and the token after them, for the target's logits (g + 1, V).

    Greedy: those that the target would have chosen. Sampling: x ~ q stands with probability min(1, p(x) / q(x));
    the first that does not gives way to a draw from max(0, p - q), normalised; after the last, p is drawn from.
    """
    if sampling.is_greedy:
        chosen = logits.argmax(1).tolist()
        num_accepted = 0
        while num_accepted < len(proposal.tokens) and proposal.tokens[num_accepted] == chosen[num_accepted]:
            num_accepted += 1
        return num_accepted, chosen[num_accepted]
    for index, token in enumerate(proposal.tokens):
        p = probabilities(logits[index].cpu(), sampling)
        q = torch.zeros_like(p).index_fill_(0, torch.tensor([token]), 1.0)
        if proposal.drawn_from is not None:
            q = proposal.drawn_from[index]
        if float(torch.rand((), generator=generator, dtype=torch.float64)) * float(q[token]) < float(p[token]):
            continue
        rest = (p - q).clamp_(min=0)
        # p = q leaves nothing, and rejects nothing but by rounding.
        return index, int(torch.multinomial(rest if float(rest.sum()) > 0 else p, 1, generator=generator))
    return len(proposal.tokens), int(
        torch.multinomial(probabilities(logits[-1].cpu(), sampling), 1, generator=generator)
    )


def expected_tokens(acceptance: float, num_drafted: int) -> float:
    """Tokens that a pass over the target gives: (1 - a^(g + 1)) / (1 - a), the one of its own included."""
    if acceptance == 1:
        return num_drafted + 1.0
    return float((1 - acceptance ** (num_drafted + 1)) / (1 - acceptance))


def expected_speedup(acceptance: float, num_drafted: int, cost: float, verification: float = 1.0) -> float:
    """Over plain decoding: E(a, g) / (g c + v).

    cost: c, a drafted token in steps of the target. verification: v, a pass over g + 1 tokens in such steps; the
    chapter and the paper take it for 1.
    """
    return expected_tokens(acceptance, num_drafted) / (num_drafted * cost + verification)
