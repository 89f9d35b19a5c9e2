"""Soft labels, the two losses, and a student that learns."""

import pytest
import torch
from torch.nn import functional

from bench_utils.inference.distillation import (
    Vocabulary,
    divergence,
    hard_loss,
    labels_of,
    small_student,
    soft_loss,
    tempered,
    train,
)


def test_a_temperature_flattens_and_keeps_the_order():
    logits = torch.tensor([2.0, 1.0, -1.0])
    at_one, at_two = tempered(logits, 1.0), tempered(logits, 2.0)
    assert at_one.dtype is torch.float64
    assert float(at_one.sum()) == pytest.approx(1.0)
    assert (at_one[0] / at_one[2]).item() == pytest.approx((at_two[0] / at_two[2]).item() ** 2)
    assert at_two.argsort().tolist() == at_one.argsort().tolist()


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(ValueError, match="must be above 0"):
        tempered(torch.zeros(3), temperature)


# --- the student's vocabulary


def test_the_most_frequent_tokens_are_kept_and_the_rest_is_one_class():
    ids = torch.tensor([[5, 5, 5, 2, 2, 7]])
    vocabulary = Vocabulary.of(ids, 9, 3)
    assert vocabulary.num_classes == 3
    assert vocabulary.classes(torch.tensor([[5, 2, 7, 0]])).tolist() == [[0, 1, 2, 2]]


def test_what_the_others_have_is_added_up():
    vocabulary = Vocabulary(torch.tensor([5, 2]), 9)
    p = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)).double().softmax(1)
    merged = vocabulary.merge(p)
    assert torch.allclose(merged[:, :2], p[:, [5, 2]])
    assert torch.allclose(merged.sum(1), torch.ones(4, dtype=torch.float64))


def test_soft_labels_are_the_teachers_own(tiny):
    ids = torch.arange(20).view(2, 10)
    vocabulary = Vocabulary(torch.arange(30), 640)
    soft, hard = labels_of(tiny.model, ids, vocabulary)
    with torch.inference_mode():
        logits = tiny.model(ids).logits
    assert soft.shape == (2, 10, 31)
    assert torch.allclose(soft, vocabulary.merge(logits.softmax(-1)).float(), atol=1e-6)
    assert torch.equal(hard, vocabulary.classes(logits.argmax(-1)))


def test_the_first_choice_is_one_among_all_tokens():
    """A token of 0.3 against nine of 0.08: together those are more, and none of them is the choice."""

    class Teacher:
        def __call__(self, ids, **_options):
            self.logits = torch.full((*ids.shape, 10), 0.7 / 9).log()
            self.logits[..., 0] = torch.tensor(0.3).log()
            return self

    soft, hard = labels_of(Teacher(), torch.zeros(1, 4, dtype=torch.long), Vocabulary(torch.tensor([0]), 10))
    assert soft.argmax(-1).unique().tolist() == [1]
    assert hard.unique().tolist() == [0]


# --- losses


def labels_and_logits():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, 3, 5, generator=generator).softmax(-1), torch.randn(2, 3, 5, generator=generator)


def test_the_hard_loss_is_cross_entropy_with_one_label():
    labels, logits = labels_and_logits()
    first = labels.argmax(-1)
    expected = -logits.log_softmax(-1).gather(-1, first[..., None]).mean()
    assert hard_loss(logits, first).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0])
def test_the_soft_loss_is_a_divergence_with_its_factor(temperature):
    labels, logits = labels_and_logits()
    own = (logits / temperature).log_softmax(-1)
    target = (labels.log() / temperature).softmax(-1)
    expected = temperature**2 * (target * (target.log() - own)).sum(-1).mean()
    assert soft_loss(temperature)(logits, labels).item() == pytest.approx(expected.item(), rel=1e-5)
    assert soft_loss(temperature)(labels.log(), labels).item() == pytest.approx(0.0, abs=1e-5), "at any temperature"


def test_the_factor_keeps_the_size_of_the_gradient():
    """Hinton's limit: at high temperatures the gradient is that of matching logits, whatever T."""
    generator = torch.Generator().manual_seed(3)
    teacher, start = torch.randn(2, 1, 8, generator=generator)
    sizes = []
    for temperature in (20.0, 40.0):
        logits = start.clone().requires_grad_()
        labels = tempered(teacher, 1.0).float()
        soft_loss(temperature)(logits, labels).backward()
        sizes.append(float(logits.grad.norm()))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


def test_a_divergence_is_none_from_oneself_and_that_of_torch_from_others():
    class Fixed:
        def __init__(self, logits):
            self.logits = logits

        def __call__(self, _inputs):
            return self

    labels, logits = labels_and_logits()
    assert divergence(Fixed(labels.log()), None, labels).abs().max() < 1e-6
    expected = functional.kl_div(logits.double().log_softmax(-1), labels.double(), reduction="none").sum(-1)
    assert torch.allclose(divergence(Fixed(logits), None, labels), expected)


# --- students


def test_students_of_a_seed_begin_alike_and_others_do_not():
    one, same, other = (small_student(32, seed=seed, hidden=16) for seed in (1, 1, 2))
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_making_a_student_leaves_the_callers_randomness_alone():
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    small_student(32, seed=1, hidden=16)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("loss", [hard_loss, soft_loss(1.0), soft_loss(2.0)], ids=["hard", "T = 1", "T = 2"])
def test_a_student_learns_what_it_is_taught(loss):
    """A rule that is easy: after class c comes c + 1, nearly always."""
    inputs = torch.arange(64).view(8, 8) % 16
    labels = torch.full((8, 8, 16), 0.01)
    labels.scatter_(2, ((inputs + 1) % 16)[..., None], 0.85)
    student = small_student(16, seed=0, hidden=16)
    before = float(divergence(student, inputs, labels).mean())
    taught = labels.argmax(-1) if loss is hard_loss else labels
    seen = train(student, inputs, taught, loss, num_steps=120, batch=4, seed=0)
    assert seen == 120 * 4 * 8
    assert float(divergence(student, inputs, labels).mean()) < before / 2
    assert float((student(inputs).logits.argmax(-1) == (inputs + 1) % 16).float().mean()) > 0.95


def test_training_is_repeatable():
    inputs = torch.arange(64).view(8, 8) % 16
    labels = torch.rand(8, 8, 16, generator=torch.Generator().manual_seed(0)).softmax(-1)
    students = [small_student(16, seed=0, hidden=16) for _ in range(2)]
    for student in students:
        train(student, inputs, labels, soft_loss(1.0), num_steps=5, batch=4, seed=3)
    assert torch.equal(*(student(inputs).logits for student in students))
