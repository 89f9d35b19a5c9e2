"""C5. Sequences that begin alike share the blocks of their beginning, and part by copying at most one.

Nothing is timed. On the model at hand n sequences with a common prefix of p tokens hold floor(p / b) blocks of it
once, and decode as each alone; a fork costs no block until it writes. Any operations in any order leave in every
sequence's blocks what a dense copy of it holds, and all blocks free at the end.
"""

import random

import torch
from transformers import DynamicCache

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict
from bench_utils.inference import agreement
from bench_utils.inference.decode import prefill
from bench_utils.inference.paged_cache import PagedStore
from bench_utils.inference.row_cache import ragged_step
from bench_utils.models import facts, loading, prompts
from bench_utils.models.shapes import chapter_config

SHARED, FORKED, RANDOM = "shared prefix", "fork", "random operations"
BLOCK_SIZE, NUM_BLOCKS = 16, 64
NUM_SEQUENCES, NUM_PREFIX, NUM_OWN = 8, 40, 9
# Blocks of two tokens out of two: whatever is mistaken for another soon is.
NUM_OPERATIONS, SMALL_BLOCK = 400, 2


class ClaimPrefixSharing(Claim):
    id = "C5"
    title = "sequences that begin alike share blocks"
    kind = "exact"
    timed = False
    tracked = {"num_blocks": "blocks", "num_prefilled": "tokens"}

    param_names = ["operation"]
    params = [[SHARED, FORKED, RANDOM]]

    def setup(self, operation):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        placement = self.loaded.placement
        # Any operations compare every sequence after each: two layers of a small cache are enough for those.
        self.config = _two_layers() if operation == RANDOM else self.loaded.config
        self.block_size = SMALL_BLOCK if operation == RANDOM else BLOCK_SIZE
        self.store = PagedStore(
            self.config,
            num_blocks=NUM_BLOCKS,
            block_size=self.block_size,
            dtype=placement.dtype,
            device=placement.device,
        )

    @torch.inference_mode()
    def run(self, operation):
        return {SHARED: self._share, FORKED: self._fork, RANDOM: self._any}[operation]()

    def _share(self):
        ids = prompts.prompt_ids(self.loaded, NUM_PREFIX + NUM_SEQUENCES * NUM_OWN)[0].tolist()
        prefix, rest = ids[:NUM_PREFIX], ids[NUM_PREFIX:]
        self.sequences = [[*prefix, *rest[i * NUM_OWN : (i + 1) * NUM_OWN]] for i in range(NUM_SEQUENCES)]
        num_prefilled = sum(self._admit(key, sequence[:-1]) for key, sequence in enumerate(self.sequences))
        return num_prefilled, self._step()

    def _fork(self):
        ids = prompts.prompt_ids(self.loaded, NUM_PREFIX + NUM_SEQUENCES)[0].tolist()
        prefix, rest = ids[:NUM_PREFIX], ids[NUM_PREFIX:]
        self.sequences = [[*prefix, own] for own in rest]
        num_prefilled = self._admit(0, prefix)
        before = self.store.manager.num_free
        for child in range(1, NUM_SEQUENCES):
            self.store.fork(0, child)
        assert self.store.manager.num_free == before, f"forks cost {before - self.store.manager.num_free} blocks"
        return num_prefilled, self._step()

    def _admit(self, key, tokens) -> int:
        """Compute what is not there yet of a sequence; how many tokens that was."""
        cache = self.store.admit(key, tokens)
        rest = tokens[cache.get_seq_length() :]
        ids = torch.tensor([rest], device=self.loaded.placement.device)
        _, cache = prefill(self.loaded.model, ids, cache=cache, last_logits_only=True)
        self.store.fill(key, cache)
        return len(rest)

    def _step(self):
        newest = [sequence[-1] for sequence in self.sequences]
        for key, token in enumerate(newest):
            assert self.store.append(key, token), "the blocks ran out"
        ids = torch.tensor(newest, device=self.loaded.placement.device)
        return ragged_step(self.loaded.model, ids, self.store.step())

    def _any(self):
        return DenseOracle(self.store, self.config, seed=0).operate(NUM_OPERATIONS), None

    def check(self, output, operation):
        manager = self.store.manager
        num_whole = NUM_PREFIX // BLOCK_SIZE
        self.num_blocks = manager.num_blocks - manager.num_free
        if operation != RANDOM:
            tables = [manager.blocks(key) for key in range(NUM_SEQUENCES)]
            beginnings = {tuple(table[:num_whole]) for table in tables}
            assert len(beginnings) == 1, f"{len(beginnings)} different tables for the same {num_whole} blocks"
            counted = {manager.references(block) for block in tables[0][:num_whole]}
            assert counted == {NUM_SEQUENCES}, (
                f"{counted} references to blocks that {NUM_SEQUENCES} sequences share"
            )
            own = [manager.num_needed(len(sequence)) - num_whole for sequence in self.sequences]
            expected = num_whole + sum(own)
            assert self.num_blocks == expected, f"{self.num_blocks} blocks held, {expected} expected"
            device = self.loaded.placement.device
            pairs = zip(self.sequences, output[1], strict=True)
            agreement.assert_as_alone(
                self.loaded.model,
                {
                    f"sequence {key}": (torch.tensor([ids], device=device), row)
                    for key, (ids, row) in enumerate(pairs)
                },
            )
        if operation == FORKED:  # the last of them to write keeps the block that was everybody's
            assert manager.figures.num_copied == NUM_SEQUENCES - 1, f"{manager.figures.num_copied} blocks copied"
        for key in manager.held:
            self.store.release(key)
        assert manager.num_free == manager.num_blocks, f"{manager.num_free} of {manager.num_blocks} blocks are free"

    def counters(self, output, operation) -> Mapping[str, int]:
        figures = self.store.manager.figures
        return {
            "num_blocks": self.num_blocks,
            "num_prefilled": output[0],
            "num_shared": figures.num_shared,
            "num_copied": figures.num_copied,
            "num_evicted": figures.num_evicted,
        }

    def teardown(self, operation):
        self.store = None

    def verdict(self, results: Results) -> Verdict:
        shared, forked = (results[(operation,)].counters for operation in (SHARED, FORKED))
        anything = results[(RANDOM,)].counters
        return Verdict(
            Outcome.HOLDS,
            measured=f"{NUM_SEQUENCES} sequences of {NUM_PREFIX + NUM_OWN} tokens, {NUM_PREFIX} alike, in "
            f"{shared['num_blocks']} blocks of {BLOCK_SIZE} ({NUM_PREFIX // BLOCK_SIZE} of them everybody's), "
            f"{shared['num_prefilled']} tokens computed; {NUM_SEQUENCES - 1} forks cost 0 blocks and copied "
            f"{forked['num_copied']} as they parted; {NUM_OPERATIONS} random operations as the dense copy has it "
            f"({anything['num_evicted']} evictions)",
        )


def _two_layers():
    config = chapter_config()
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    return config


class DenseOracle:
    """Sequences kept as plain lists beside a store, whose blocks must hold what follows from them.

    Keys and values here are not the model's: each is a checksum of all tokens up to its position, so that a block
    with the right token after the wrong prefix shows.
    """

    def __init__(self, store: PagedStore, config, *, seed: int) -> None:
        self._store = store
        self._config = config
        self._random = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._dense: dict[int, list[int]] = {}
        self._next_key = 0

    def operate(self, num_operations: int) -> int:
        """Admit, append, fork and release at random, and compare everything after each; the tokens admitted."""
        num_admitted = 0
        for _ in range(num_operations):
            operation = self._random.choice([self._admit, self._append, self._append, self._fork, self._release])
            num_admitted += operation() or 0
            self._compare()
        return num_admitted

    def _values(self, tokens: list[int]) -> torch.Tensor:
        """(1, K, T, D): the checksum of every prefix, exact in half precision."""
        checksums, state = [], 1
        for token in tokens:
            state = (31 * state + token + 7) % 251
            checksums.append(float(state))
        shape = facts.cache_shape(self._config)
        pool = self._store.keys
        column = torch.tensor(checksums, dtype=pool.dtype, device=pool.device)
        return column[None, None, :, None].expand(1, shape.num_kv_heads, -1, shape.head_dim)

    def _cache(self, tokens: list[int]) -> DynamicCache:
        cache = DynamicCache(config=self._config)
        values = self._values(tokens)
        for layer in range(len(self._store.keys)):
            cache.update(values, -values, layer)
        return cache

    def _admit(self) -> int:
        tokens = [self._random.randrange(2) for _ in range(self._random.randint(1, 16))]
        if self._store.admit(self._next_key, tokens) is None:
            return 0
        self._store.fill(self._next_key, self._cache(tokens))
        self._dense[self._next_key] = tokens
        self._next_key += 1
        return len(tokens)

    def _append(self) -> None:
        """One more token for everybody, as a step does, as far as there is room."""
        for key, tokens in self._dense.items():
            token = self._random.randrange(2)
            if self._store.append(key, token):
                tokens.append(token)
        if self._dense:
            step = self._store.step()
            newest = torch.cat([self._values(self._dense[key])[:, :, -1:] for key in self._store.order])
            for layer in range(len(self._store.keys)):
                step.update(newest, -newest, layer)

    def _fork(self) -> None:
        if self._dense and self._next_key % 3:  # now and then: forks of forks would fill everything
            parent = self._random.choice(sorted(self._dense))
            self._store.fork(parent, self._next_key)
            self._dense[self._next_key] = list(self._dense[parent])
        self._next_key += 1

    def _release(self) -> None:
        if self._dense:
            key = self._random.choice(sorted(self._dense))
            self._store.release(key)
            del self._dense[key]

    def _compare(self) -> None:
        for key, tokens in self._dense.items():
            expected = self._values(tokens)
            found = self._store.read(key, len(tokens)).layers[-1]
            assert torch.equal(found.keys, expected), f"sequence {key}: other keys than the dense copy's"
            assert torch.equal(found.values, -expected), f"sequence {key}: other values than the dense copy's"
