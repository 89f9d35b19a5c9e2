"""Requests: the chapter's set to the last token, arrivals, and traces that say where they are wrong."""

import itertools
from statistics import mean, median

import pytest

from bench_utils.inference.requests import (
    CHAPTER_LENGTHS,
    Request,
    TraceError,
    all_at_once,
    poisson,
    read_trace,
)


def test_the_chapters_set_has_the_chapters_figures():
    assert len(CHAPTER_LENGTHS) == 64
    assert (median(CHAPTER_LENGTHS), max(CHAPTER_LENGTHS), sum(CHAPTER_LENGTHS)) == (18, 231, 1_874)


def test_random_arrivals_keep_their_rate_and_their_seed():
    """Of 20,000 exponential gaps the mean errs by 0.7 %: 4 % is met with a probability of 1 - 1e-8."""
    first, again = (list(poisson([3, 5], 2.0, num_requests=20_000, seed=7)) for _ in range(2))
    assert first == again
    assert [request.num_tokens for request in first[:4]] == [3, 5, 3, 5]
    gaps = [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(first)]
    assert min(gaps) > 0
    assert mean(gaps) == pytest.approx(0.5, rel=0.04)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_prompt": 0}, "a prompt of 0 tokens"),
        ({"num_tokens": 0}, "asks for 0 tokens"),
        ({"num_tokens": -3}, "asks for -3 tokens"),
        ({"arrival_s": -1.0}, "arrives at -1.0 s"),
        ({"arrival_s": float("nan")}, "arrives at nan s"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        Request(3, 0.0, 5, 5)._replace(**change).checked()


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="must be above 0"):
        next(poisson([1], rate, num_requests=1, seed=0))


def test_a_set_with_an_impossible_length_is_refused():
    with pytest.raises(ValueError, match="request 1 asks for 0 tokens"):
        all_at_once([4, 0])


def trace(tmp_path, text):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_a_trace_reads_as_it_was_written(tmp_path, bom):
    path = trace(tmp_path, f"{bom}arrival_s, num_prompt, num_tokens\n0,5,10\n\n0.5,7,3\n")
    assert list(read_trace(path)) == [Request(0, 0.0, 5, 10), Request(1, 0.5, 7, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,5,10\n", r"mine\.csv line 1: the header must be arrival_s,num_prompt,num_tokens, not '0,5,10'"),
        ("", "line 1: the header must be"),
        ("arrival_s,num_prompt,num_tokens\n", "holds no request"),
        ("arrival_s,num_prompt,num_tokens\n0,5,1\n1,5\n", "line 3: '1,5': not enough values"),
        ("arrival_s,num_prompt,num_tokens\n0,5,1\n\n1,5,x\n", "line 4: '1,5,x': invalid literal"),
        ("arrival_s,num_prompt,num_tokens\n0,5,1.5\n", "line 2: '0,5,1.5'"),
        ("arrival_s,num_prompt,num_tokens\n0,0,1\n", "line 2: .* a prompt of 0 tokens"),
        ("arrival_s,num_prompt,num_tokens\n0,5,-1\n", "line 2: .* asks for -1 tokens"),
        ("arrival_s,num_prompt,num_tokens\nnan,5,1\n", "line 2: .* arrives at nan s"),
        ("arrival_s,num_prompt,num_tokens\n2,5,1\n1,5,1\n", "line 3: .* before the line above; sort"),
        ('arrival_s,num_prompt,num_tokens\n0,5,1\n"0"x,5,1\n', "line 3: ',' expected"),
        ("arrival_s,num_prompt,num_tokens\n0,5," + "9" * 5000, r"line 2: '0,5,9{56}\.\.\.': "),
    ],
)
def test_a_malformed_trace_says_which_line_and_why(tmp_path, text, message):
    with pytest.raises(TraceError, match=message):
        list(read_trace(trace(tmp_path, text)))


def test_a_trace_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "weights.csv"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TraceError, match=r"weights\.csv after line 0 is not text in UTF-8"):
        list(read_trace(path))


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere\.csv cannot be read"):
        list(read_trace(tmp_path / "nowhere.csv"))
