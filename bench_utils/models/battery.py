"""Short questions with known answers: sixteen of our own, or a file of the user's."""

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench_utils.models.loading import LoadedModel
from bench_utils.settings import NotApplicableError, Settings


class QuestionError(ValueError):
    """A question file that cannot be used; the message has the line's number."""


class Question(NamedTuple):
    """A question, and the answers that count: any of them, as whole words, in any case."""

    text: str
    answers: tuple[str, ...]

    def is_answered_by(self, answer: str) -> bool:
        """Whether one of the answers stands in the text."""
        # Small figures are figures (H₂O), and 6.7 does not hold a 7.
        said = unicodedata.normalize("NFKC", answer)
        return any(
            re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(accepted)}(?!\w)(?![.,]\d)", said, re.IGNORECASE)
            for accepted in self.answers
        )


QUESTIONS = (
    Question("What is the capital of France?", ("Paris",)),
    Question("What is the capital of Japan?", ("Tokyo",)),
    Question("How many days are there in a week?", ("seven", "7")),
    Question("Which planet is known as the Red Planet?", ("Mars",)),
    Question("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    Question("What is the largest ocean on Earth?", ("Pacific",)),
    Question("Which gas do plants take in from the air?", ("carbon dioxide", "CO2")),
    Question("What is the chemical formula of water?", ("H2O",)),
    Question("What language do people speak in Brazil?", ("Portuguese",)),
    Question("Which animal is called the king of the jungle?", ("lion",)),
    Question("What is the opposite of hot?", ("cold",)),
    Question("How many legs does a spider have?", ("eight", "8")),
    Question("What color is a ripe banana?", ("yellow",)),
    Question("Who painted the Mona Lisa?", ("Leonardo", "da Vinci")),
    Question("On which continent is Egypt?", ("Africa",)),
    Question("At how many degrees Celsius does water freeze?", ("0", "zero", "0°C")),
)


def read(settings: Settings) -> tuple[Question, ...]:
    """The user's questions, or ours.

    Raises:
        QuestionError: with the number of the line that is wrong.
    """
    return read_file(Path(settings.questions)) if settings.questions else QUESTIONS


def read_file(path: Path) -> tuple[Question, ...]:
    """Questions from JSON lines: {"question": "...", "answers": ["...", ...]}; empty lines are passed over.

    Raises:
        QuestionError: with the number of the line that is wrong, or that there is none.
    """
    questions = []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise QuestionError(f"questions {path.name} are not UTF-8: byte {error.start:,} cannot be read") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            questions.append(_question(line, f"questions {path.name} line {number}"))
    if not questions:
        raise QuestionError(f"questions {path.name}: there is none")
    return tuple(questions)


def _question(line: str, where: str) -> Question:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise QuestionError(f"{where}: no JSON ({error})") from error
    if not isinstance(found, dict) or sorted(found) != ["answers", "question"]:
        raise QuestionError(f'{where}: {{"question": ..., "answers": [...]}} is wanted')
    text, answers = found["question"], found["answers"]
    if not isinstance(text, str) or not text.strip():
        raise QuestionError(f"{where}: the question must be a text")
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise QuestionError(f"{where}: answers must be a list of texts, one at least")
    return Question(text, tuple(answers))


def chat_ids(loaded: LoadedModel, questions: Sequence[Question]) -> list[list[int]]:
    """Each question's tokens as the model's chat template puts it.

    Raises:
        NotApplicableError: the model has no tokenizer, or no chat template.
    """
    if loaded.tokenizer is None:
        raise NotApplicableError("the model has no tokenizer")
    if not loaded.tokenizer.chat_template:
        raise NotApplicableError("the model has no chat template, so it was not made to answer questions")
    return [
        loaded.tokenizer.apply_chat_template(
            [{"role": "user", "content": question.text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for question in questions
    ]


def ends(loaded: LoadedModel) -> frozenset[int]:
    """The tokens that end an answer, by the model's generation config and its tokenizer."""
    stated = getattr(loaded.model.generation_config, "eos_token_id", None)
    several = stated if isinstance(stated, list) else [stated]
    own = getattr(loaded.tokenizer, "eos_token_id", None)
    return frozenset(token for token in (*several, own) if token is not None)
