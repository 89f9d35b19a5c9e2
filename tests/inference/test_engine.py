"""The engine: every request's tokens as alone, its bookkeeping as simulated, on rows and on pages."""

import random
from dataclasses import astuple

import pytest
import torch

from bench_utils.inference import decode
from bench_utils.inference.engine import Engine
from bench_utils.inference.paged_cache import PagedStore
from bench_utils.inference.requests import all_at_once
from bench_utils.inference.sampling import GREEDY, Sampling
from bench_utils.inference.scheduling import CONTINUOUS, STATIC
from bench_utils.inference.simulator import StepCosts, simulate
from bench_utils.inference.stores import RowStore
from tests.conftest import VOCAB

PLACE = {"dtype": torch.float64, "device": "cpu"}


def rows(tiny, num_rows=4, max_tokens=64):
    return RowStore(tiny.config, num_rows=num_rows, max_tokens=max_tokens, **PLACE)


def pages(tiny, num_blocks=40, block_size=4):
    return PagedStore(tiny.config, num_blocks=num_blocks, block_size=block_size, **PLACE)


def workload(num_requests=14, seed=0, prefix=()):
    """Prompts and lengths, seeded; some prompts begin alike."""
    generator = random.Random(seed)
    prompts = [
        [*(prefix if i % 2 else ()), *(generator.randrange(VOCAB) for _ in range(generator.randint(1, 9)))]
        for i in range(num_requests)
    ]
    return prompts, [generator.randint(1, 12) for _ in range(num_requests)]


def alone(tiny, prompt, num_tokens):
    return decode.greedy_cached(tiny.model, torch.tensor([prompt]), num_tokens)[0].tolist()


def served(engine, prompts, lengths, samplings=None):
    samplings = samplings or [GREEDY] * len(prompts)
    generations = [engine.submit(p, n, s) for p, n, s in zip(prompts, lengths, samplings, strict=True)]
    engine.run()
    return generations


@pytest.mark.parametrize("policy", [CONTINUOUS, STATIC])
@pytest.mark.parametrize("num_seats", [1, 3])
def test_every_request_gets_the_tokens_it_would_get_alone(tiny, policy, num_seats):
    prompts, lengths = workload()
    engine = Engine(tiny.model, rows(tiny, num_seats), num_seats, policy=policy)
    found = served(engine, prompts, lengths)
    assert [each.tokens for each in found] == [alone(tiny, p, n) for p, n in zip(prompts, lengths, strict=True)]
    assert {each.finish for each in found} == {"length"}


def test_pages_give_the_same_tokens_and_the_prefix_is_computed_once(tiny):
    prompts, lengths = workload(prefix=tuple(range(9)))
    store = pages(tiny)
    engine = Engine(tiny.model, store, 3)
    found = served(engine, prompts, lengths)
    assert [each.tokens for each in found] == [alone(tiny, p, n) for p, n in zip(prompts, lengths, strict=True)]
    assert engine.totals.num_reused >= 6 * 8, "two whole blocks for each but the first"
    assert engine.totals.num_reused + engine.totals.num_prefilled == sum(map(len, prompts))
    assert store.manager.num_free == 40


@pytest.mark.parametrize("num_blocks", [5, 6, 8])
def test_where_blocks_run_out_somebody_gets_up_and_nothing_is_lost(tiny, num_blocks):
    prompts, lengths = workload()
    store = pages(tiny, num_blocks)
    engine = Engine(tiny.model, store, 4)
    found = served(engine, prompts, lengths)
    assert engine.totals.num_preemptions > 0
    assert [each.tokens for each in found] == [alone(tiny, p, n) for p, n in zip(prompts, lengths, strict=True)]
    assert store.manager.num_free == num_blocks


def test_the_last_to_sit_down_gets_up_and_is_the_first_to_sit_down_again(tiny):
    """Two seats, four blocks of four, and three requests of 5 + 7 tokens that want three blocks each, step by step.

    Both sit down with two blocks and room for eight tokens. At the ninth the first to sit takes the second's, who
    comes back with its 5 + 4 tokens once the first is done, before the third.
    """
    engine = Engine(tiny.model, pages(tiny, 4), 2)
    generations = [engine.submit([key + 1] * 5, 7) for key in range(3)]
    finished = []
    while engine.has_work:
        engine.step()
        finished += [each.id for each in generations if each.finish and each.id not in finished]
    assert [each.num_preemptions for each in generations] == [0, 1, 0]
    assert finished == [0, 1, 2]
    assert engine.totals.num_prefilled + engine.totals.num_reused == 3 * 5 + 9
    assert [each.tokens for each in generations] == [alone(tiny, [key + 1] * 5, 7) for key in range(3)]


def test_a_request_that_must_wait_for_blocks_is_not_overtaken(tiny):
    """The second wants more than what the first leaves; the third would fit, and waits behind it all the same."""
    engine = Engine(tiny.model, pages(tiny, 6), 3)
    long, longer, short = (engine.submit([1] * n, m) for n, m in ((10, 4), (14, 2), (1, 2)))
    engine.step()
    assert engine.holds(long)
    assert not engine.holds(longer)
    assert not engine.holds(short)
    engine.run()
    assert [len(each.tokens) for each in (long, longer, short)] == [4, 2, 2]


@pytest.mark.parametrize("num_blocks", [6, 8, 12])
def test_nobody_gets_up_in_the_step_in_which_they_sat_down(tiny, num_blocks):
    prompts, lengths = workload(20)
    engine = Engine(tiny.model, pages(tiny, num_blocks), 6)
    generations = [engine.submit(p, n) for p, n in zip(prompts, lengths, strict=True)]
    while engine.has_work:
        before = {each: (engine.holds(each), each.num_preemptions) for each in generations}
        engine.step()
        for each, (sat, num_preemptions) in before.items():
            assert sat or each.num_preemptions == num_preemptions


def test_a_static_batch_computes_every_row_until_its_longest_is_done(tiny, monkeypatch):
    from bench_utils.inference import engine as module

    computed = []
    honest = module.ragged_step

    def watched(model, tokens, cache):
        computed.append(len(tokens))
        return honest(model, tokens, cache)

    monkeypatch.setattr(module, "ragged_step", watched)
    engine = Engine(tiny.model, rows(tiny, 3), 3, policy=STATIC)
    generations = [engine.submit([1, 2], n) for n in (2, 5, 9)]
    while engine.has_work:
        engine.step()
        if engine.has_work:
            assert all(engine.holds(each) for each in generations), "nobody leaves before the longest is done"
    assert computed == [3] * 8


def test_what_was_sampled_survives_getting_up(tiny):
    """The generator goes on where it stood: a request sent back to the queue draws each number once."""
    prompts, lengths = workload()
    samplings = [Sampling(temperature=1.5, top_k=20, seed=i) for i in range(len(prompts))]
    plenty, scarce = Engine(tiny.model, rows(tiny), 4), Engine(tiny.model, pages(tiny, 6), 4)
    calm, hurried = (served(engine, prompts, lengths, samplings) for engine in (plenty, scarce))
    assert scarce.totals.num_preemptions > 0
    assert [each.tokens for each in calm] == [each.tokens for each in hurried]


def test_a_seed_gives_the_same_tokens_whoever_sits_beside(tiny):
    prompts, lengths = workload()
    samplings = [Sampling(temperature=1.0, seed=i) for i in range(len(prompts))]
    together = served(Engine(tiny.model, rows(tiny), 4), prompts, lengths, samplings)
    each_alone = [
        served(Engine(tiny.model, rows(tiny, 1), 1), [p], [n], [s])[0].tokens
        for p, n, s in zip(prompts, lengths, samplings, strict=True)
    ]
    assert [each.tokens for each in together] == each_alone
    assert each_alone != [alone(tiny, p, n) for p, n in zip(prompts, lengths, strict=True)]


@pytest.mark.parametrize("policy", [CONTINUOUS, STATIC])
def test_the_engine_keeps_the_simulators_books_to_the_last_seat_step(tiny, policy):
    lengths = [1, 7, 3, 1, 1, 9, 2, 12, 1, 5, 4]
    engine = Engine(tiny.model, rows(tiny, 3), 3, policy=policy)
    served(engine, [[1, 2]] * len(lengths), lengths)
    expected = simulate(all_at_once(lengths, 2), policy, 3, StepCosts([1.0] * 3, prefill_s=lambda _n: 1.0))
    assert astuple(engine.totals)[:4] == (
        expected.num_steps,
        expected.useful_seat_steps,
        expected.padded_seat_steps,
        expected.idle_seat_steps,
    )


def test_a_stop_token_ends_a_generation_and_belongs_to_it(tiny):
    whole = alone(tiny, [5, 6, 7], 12)
    stop = whole[4]
    engine = Engine(tiny.model, rows(tiny), 2, stop_tokens=[stop])
    (found,) = served(engine, [[5, 6, 7]], [12])
    assert found.tokens == whole[: whole.index(stop) + 1]
    assert found.finish == "stop"


@pytest.mark.parametrize("make_store", [rows, pages])
def test_a_seat_is_given_on_at_once(tiny, make_store):
    """Ten requests of one length over two seats: nobody waits for a neighbour, so no seat is ever idle."""
    engine = Engine(tiny.model, make_store(tiny), 2)
    served(engine, [[1, 2, 3]] * 10, [4] * 10)
    assert (engine.totals.idle_seat_steps, engine.totals.padded_seat_steps) == (0, 0)
    assert engine.totals.num_steps == 5 * 3


def test_transformers_own_continuous_batching_gives_the_same_tokens(tiny_folder):
    """An independent engine, on the same weights in float32."""
    from transformers import GenerationConfig

    from bench_utils.models import loading
    from bench_utils.settings import Settings

    loaded = loading.load(Settings(model=str(tiny_folder), device="cpu", dtype="float32"))
    prompts, _ = workload(8, prefix=tuple(range(9)))
    config = GenerationConfig(max_new_tokens=10, do_sample=False, eos_token_id=-1, pad_token_id=0)
    theirs = transformers_batch(loaded.model, prompts, config)
    store = PagedStore(loaded.config, num_blocks=64, block_size=4, dtype=torch.float32, device="cpu")
    ours = served(Engine(loaded.model, store, 3), prompts, [10] * 8)
    assert [each.tokens for each in ours] == theirs


def transformers_batch(model, prompts, config):
    from transformers import ContinuousBatchingConfig

    pages_of_16 = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=64)
    outputs = model.generate_batch(
        inputs=prompts, generation_config=config, continuous_batching_config=pages_of_16, progress_bar=False
    )
    return [outputs[key].generated_tokens for key in sorted(outputs, key=lambda key: int(key.split("_")[-1]))]


@pytest.mark.parametrize(
    ("prompt", "num_tokens", "message"),
    [
        ([], 4, "an empty prompt"),
        ([1, 2], 0, "0 tokens asked for"),
        ([1, 2], -1, "-1 tokens asked for"),
        ([1, VOCAB], 3, "tokens from 1 to 640, and the vocabulary has 640"),
        ([-1, 2], 3, "tokens from -1 to 2"),
        ([1] * 1000, 25, r"1000 \+ 25 = 1025 tokens, and the model's context is 1024"),
        ([1] * 60, 6, "65 tokens to keep, and the whole cache holds 64"),
    ],
)
def test_what_can_never_be_served_is_refused_with_its_numbers(tiny, prompt, num_tokens, message):
    engine = Engine(tiny.model, rows(tiny), 2)
    with pytest.raises(ValueError, match=message):
        engine.submit(prompt, num_tokens)
    assert not engine.has_work


def test_more_than_all_blocks_is_refused(tiny):
    with pytest.raises(ValueError, match="21 tokens to keep, and the whole cache holds 20"):
        Engine(tiny.model, pages(tiny, 5), 2).submit([1] * 20, 2)


def test_exactly_all_blocks_is_served(tiny):
    (found,) = served(Engine(tiny.model, pages(tiny, 5), 2), [[1] * 18], [3])
    assert found.tokens == alone(tiny, [1] * 18, 3)


def test_exactly_the_context_is_served(tiny):
    (found,) = served(Engine(tiny.model, rows(tiny, 1, 1023), 1), [[1] * 1020], [4])
    assert len(found.tokens) == 4


def occupied(tiny):
    store = pages(tiny)
    store.admit(0, [1, 2])
    return store


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda tiny: Engine(tiny.model, rows(tiny), 0), "0 seats"),
        (lambda tiny: rows(tiny, 0), "0 rows of 64"),
        (lambda tiny: pages(tiny, 0), "0 blocks of 4"),
        (lambda tiny: Engine(tiny.model, pages(tiny), 2, policy=STATIC), "it needs a RowStore"),
        (lambda tiny: Sampling(temperature=-1.0), "temperature -1.0 must be 0, or from 0.001 on"),
        (lambda tiny: Sampling(temperature=float("nan")), "temperature nan"),
        (lambda tiny: Sampling(temperature=1e-320), "temperature 1e-320"),
        (lambda tiny: Sampling(top_k=-1), "top_k -1 must not be negative"),
        (lambda tiny: pages(tiny, 5).admit(0, [1] * 21), "21 tokens, and all blocks together hold 20"),
        (lambda tiny: Engine(tiny.model, occupied(tiny), 2), "the store holds 1 sequences"),
    ],
)
def test_what_makes_no_sense_is_refused(tiny, make, message):
    with pytest.raises(ValueError, match=message):
        make(tiny)
