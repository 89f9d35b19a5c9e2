"""Distillation: soft labels of a teacher, the two losses, and a student small enough to train in seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from bench_utils.inference.decode import full_pass

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_ROWS = 64


def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """softmax(logits / T) over the last dimension, in float64."""
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} must be above 0")
    return (logits.double() / temperature).softmax(-1)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that a student tells apart, by the teacher's ids; all others are one class, the last."""

    kept: torch.Tensor  # (C - 1,)
    num_tokens: int

    @classmethod
    def of(cls, ids: torch.Tensor, num_tokens: int, num_classes: int) -> "Vocabulary":
        """The most frequent tokens of a text."""
        counts = torch.bincount(ids.flatten().cpu(), minlength=num_tokens)
        return cls(counts.argsort(descending=True, stable=True)[: num_classes - 1], num_tokens)

    @property
    def num_classes(self) -> int:
        """With the class of all others."""
        return len(self.kept) + 1

    def classes(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids as classes, of the same shape."""
        table = torch.full((self.num_tokens,), len(self.kept))
        table[self.kept] = torch.arange(len(self.kept))
        return table[ids.cpu()]

    def merge(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Distributions (..., V) over classes (..., C): what the others have is added up."""
        own = probabilities[..., self.kept.to(probabilities.device)]
        return torch.cat([own, (probabilities.sum(-1) - own.sum(-1)).clamp(min=0)[..., None]], dim=-1)


@torch.inference_mode()
def labels_of(teacher: Any, ids: torch.Tensor, vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor]:
    """What the teacher says after every token of windows (B, T), over classes.

    Its distribution (B, T, C) in float32, and the class (B, T) of its first choice among all tokens.
    """
    soft, hard = [], []
    for window in ids.split(1):
        logits = full_pass(teacher, window)[0]
        merged = [vocabulary.merge(part.float().softmax(-1)) for part in logits.split(_ROWS)]
        soft.append(torch.cat(merged).float().cpu())
        hard.append(vocabulary.classes(logits.argmax(-1)))
    return torch.stack(soft), torch.stack(hard)


def hard_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits (B, T, C) against the teacher's first choice (B, T)."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def soft_loss(temperature: float) -> Loss:
    """T^2 KL(p_T | q_T) against the teacher's distribution p (B, T, C) (Hinton et al., arXiv 1503.02531).

    p_T is p tempered as it is, over the student's classes: to temper tokens first and to merge them then would be
    another distribution, which no logits of the student's have at temperature 1. The factor keeps the size of the
    gradient, which shrinks as 1 / T^2.
    """

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        target = labels ** (1 / temperature)
        target = target / target.sum(-1, keepdim=True)
        own = (logits / temperature).log_softmax(-1).flatten(0, -2)
        return temperature**2 * functional.kl_div(own, target.flatten(0, -2), reduction="batchmean")

    return loss


def small_student(num_classes: int, *, seed: int, hidden: int = 64, num_layers: int = 2) -> Any:
    """A llama of a few hundred thousand parameters, the same for the same seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=num_classes,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def train(
    student: Any,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    loss: Loss,
    *,
    num_steps: int,
    batch: int,
    seed: int,
    rate: float = 3e-3,
) -> int:
    """Adam over windows (B, T) drawn by a seed, against their labels; the tokens that were seen."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(student.parameters(), lr=rate)
    student.train()
    for _ in range(num_steps):
        chosen = torch.randint(len(inputs), (batch,), generator=generator)
        found = loss(student(inputs[chosen]).logits, labels[chosen])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
    student.eval()
    return num_steps * batch * inputs.shape[1]


@torch.inference_mode()
def divergence(student: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """KL(teacher | student) at temperature 1, in float64: of every place (B, T)."""
    return divergence_of(student(inputs).logits.double().log_softmax(-1), labels)


def divergence_of(own: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The same of log probabilities (..., C), against labels (B, T, C)."""
    p = labels.double()
    return torch.where(p > 0, p * (p.clamp(min=torch.finfo(torch.float64).tiny).log() - own), 0.0).sum(-1)
