"""Greedy answers to several prompts at once, each as it would be alone."""

from collections.abc import Sequence
from typing import Any

import torch

from bench_utils.inference.decode import prefill
from bench_utils.inference.row_cache import RowCache, ragged_step


@torch.inference_mode()
def greedy_answers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    ends: frozenset[int] = frozenset(),
    penalty: float = 1.0,
) -> list[list[int]]:
    """Up to `num_tokens` for each prompt, to the first of `ends` and without it.

    `penalty`: of repetition; a token that stands in the prompt or the answer has its logit divided by it where it
    is positive, multiplied where it is negative. 1 is none, and what greedy means.
    """
    parameter = next(model.parameters())
    longest = max(map(len, prompts)) + num_tokens
    rows = RowCache(
        model.config, num_rows=len(prompts), max_tokens=longest, dtype=parameter.dtype, device=parameter.device
    )
    logits = []
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([list(prompt)], device=parameter.device)
        own, cache = prefill(model, ids, last_logits_only=True)
        rows.write(row, cache)
        logits.append(own[0, -1])
    newest = torch.stack(logits)  # (n, V)
    seen = torch.zeros(newest.shape, dtype=torch.bool, device=newest.device)
    for row, prompt in enumerate(prompts):
        seen[row, list(prompt)] = True
    answers: list[list[int]] = [[] for _ in prompts]
    lengths, open_rows = [len(prompt) for prompt in prompts], set(range(len(prompts)))
    for _ in range(num_tokens):
        tokens = _penalised(newest, seen, penalty).argmax(1)  # (n,)
        seen[torch.arange(len(prompts)), tokens] = True
        for row, token in enumerate(tokens.tolist()):
            if row in open_rows and token in ends:
                open_rows.discard(row)
            elif row in open_rows:
                answers[row].append(token)
        if not open_rows or len(max(answers, key=len)) == num_tokens:
            break
        newest = ragged_step(model, tokens, rows.step(lengths))
        lengths = [length + 1 for length in lengths]
    return answers


def _penalised(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    if penalty == 1.0:
        return logits
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
