"""The user's own texts and questions, and ours: what is wrong with one is said before anything is measured."""

import json

import pytest
import torch

from bench_utils.models import battery, corpus, loading
from bench_utils.models.battery import QUESTIONS, Question, QuestionError, chat_ids, ends, read_file
from bench_utils.models.corpus import Corpus, CorpusError, first_ids
from bench_utils.settings import NotApplicableError, Settings
from tests.words import Words

# --- corpus


def of(path):
    return Settings(corpus=str(path))


def test_a_file_is_read_without_its_mark(tmp_path):
    (tmp_path / "mine.txt").write_text("\ufeffOnce upon a time", encoding="utf-8")
    assert corpus.read(of(tmp_path / "mine.txt")) == Corpus("mine.txt", "Once upon a time")


def test_another_text_has_another_digest():
    assert Corpus("a", "one").digest != Corpus("a", "two").digest


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "mine.txt is empty"), (b" \n", "is empty"), (b"ab\xff", "not UTF-8: byte 2 cannot")],
)
def test_a_text_that_cannot_be_read_is_named(tmp_path, content, message):
    (tmp_path / "mine.txt").write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        corpus.read(of(tmp_path / "mine.txt"))


def with_words(tiny, **changes):
    tokenizer = Words()
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return loading.LoadedModel(tiny.identity, tiny.model, tokenizer, tiny.placement)


def test_the_first_tokens_are_taken_and_nothing_is_put_before_them(tiny):
    ids = first_ids(with_words(tiny), Corpus("mine", "a bb ccc dddd eeeee"), 3)
    assert torch.equal(ids, torch.tensor([[1, 2, 3]]))


def test_long_words_do_not_make_a_text_too_short(tiny):
    assert first_ids(with_words(tiny), Corpus("mine", f"{'a' * 100} bb ccc"), 3).shape == (1, 3)


def test_a_text_that_is_too_short_says_by_how_much(tiny):
    with pytest.raises(CorpusError, match="corpus mine has 3 tokens, and 512 are scored"):
        first_ids(with_words(tiny), Corpus("mine", "a bb ccc"), 512)


def test_without_a_tokenizer_no_text_is_scored(tiny):
    with pytest.raises(NotApplicableError, match="no tokenizer"):
        first_ids(tiny, Corpus("mine", "a bb ccc"), 2)


# --- questions


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("It is Paris.", True),
        ("PARIS", True),
        ("the city of paris, France", True),
        ("Parisian", False),
        ("", False),
        ("Lyon", False),
    ],
)
def test_an_answer_counts_as_a_whole_word_in_any_case(answer, is_right):
    assert Question("?", ("Paris", "Lutetia")).is_answered_by(answer) is is_right


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("at 0 degrees", True),
        ("0°C", True),
        ("at 10 degrees", False),
        ("at 32.0 degrees", False),
        ("it is 0.", True),
    ],
)
def test_numbers_are_words(answer, is_right):
    assert QUESTIONS[-1].is_answered_by(answer) is is_right


def test_small_figures_are_figures():
    assert QUESTIONS[7].is_answered_by("H₂O")
    assert not QUESTIONS[2].is_answered_by("6.7 days")


def test_ours_are_sixteen_and_answerable():
    assert len(QUESTIONS) == len({question.text for question in QUESTIONS}) == 16
    assert all(question.is_answered_by(answer) for question in QUESTIONS for answer in question.answers)
    assert not any(question.is_answered_by(question.text) for question in QUESTIONS), "to repeat it is no answer"


def written(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_file_of_questions_is_read(tmp_path):
    line = json.dumps({"question": "How many?", "answers": ["7", "seven"]})
    path = written(tmp_path, line, "", line)
    assert read_file(path) == (Question("How many?", ("7", "seven")),) * 2
    assert battery.read(Settings(questions=str(path))) == read_file(path)


GOOD = '{"question": "a?", "answers": ["b"]}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "mine.jsonl line 2: no JSON"),
        ("[]", 'line 2: {"question"'),
        ('{"question": "a?"}', 'line 2: {"question"'),
        ('{"question": "a?", "answers": ["b"], "more": 1}', 'line 2: {"question"'),
        ('{"question": " ", "answers": ["b"]}', "line 2: the question must be a text"),
        ('{"question": 5, "answers": ["b"]}', "line 2: the question must be a text"),
        ('{"question": "a?", "answers": []}', "line 2: answers must be a list"),
        ('{"question": "a?", "answers": "b"}', "line 2: answers must be a list"),
        ('{"question": "a?", "answers": ["b", 3]}', "line 2: answers must be a list"),
        ('{"question": "a?", "answers": [""]}', "line 2: answers must be a list"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, message):
    with pytest.raises(QuestionError) as error:
        read_file(written(tmp_path, GOOD, line))
    assert message in str(error.value)


def test_a_file_without_questions_or_not_in_utf_8_is_refused(tmp_path):
    with pytest.raises(QuestionError, match="there is none"):
        read_file(written(tmp_path, "", " "))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(QuestionError, match="not UTF-8: byte 14"):
        read_file(tmp_path / "latin.jsonl")


def test_questions_are_put_as_the_chat_template_has_them(tiny):
    assert chat_ids(with_words(tiny), [Question("How many now?", ("1",))]) == [[1, 3, 4, 4, 3]]


def test_a_model_that_was_not_made_for_questions_says_so(tiny):
    with pytest.raises(NotApplicableError, match="no chat template"):
        chat_ids(with_words(tiny, chat_template=None), QUESTIONS)
    with pytest.raises(NotApplicableError, match="no tokenizer"):
        chat_ids(tiny, QUESTIONS)


@pytest.mark.parametrize(("stated", "expected"), [(None, {2}), (7, {2, 7}), ([7, 8], {2, 7, 8})])
def test_an_answer_ends_with_any_token_that_ends_one(tiny, monkeypatch, stated, expected):
    monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", stated)
    assert ends(with_words(tiny)) == expected


def test_what_a_model_gave_once_is_kept_with_it(tiny):
    loaded, made = with_words(tiny), []
    for _ in range(2):
        assert loaded.once("key", lambda: made.append(1) or "value") == "value"
    assert made == [1]
    assert with_words(tiny).once("key", lambda: "another") == "another"
