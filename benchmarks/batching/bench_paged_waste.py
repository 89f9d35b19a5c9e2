"""C4. A paged cache wastes less than one block a sequence, where reserving the maximum wastes most of it.

Exact: over the chapter's requests, each with a prompt of 64 tokens, the slots that hold no token at every step of
every request, by the block manager; and a step through block tables, whose logits are the contiguous cache's.
Timed: that step over eight requests halfway, on rows and on pages in turn. Pages are gathered into a copy here,
which a kernel that follows the block table would not need.
"""

import torch

from bench_utils.claim import Claim, Mapping, Outcome, Results, Verdict, Work
from bench_utils.inference import agreement
from bench_utils.inference.blocks import BlockManager
from bench_utils.inference.decode import prefill
from bench_utils.inference.paged_cache import PagedStore
from bench_utils.inference.requests import CHAPTER_LENGTHS, CHAPTER_PROMPT
from bench_utils.inference.row_cache import ragged_step
from bench_utils.inference.stores import RowStore
from bench_utils.models import facts, loading, prompts
from bench_utils.step_work import decode_work

BLOCK_SIZES = [16, 64, 256]
NUM_SEATS = 8
LONGEST = CHAPTER_PROMPT + max(CHAPTER_LENGTHS)
ROWS, PAGES = "rows", "pages"


class ClaimPagedWaste(Claim):
    id = "C4"
    title = "a paged cache wastes less than a block a sequence"
    kind = "exact"
    chapter = "reserving wastes most (published: 60-80 %, under 4 % paged)"
    tracked = {"wasted_slot_steps": "slot-steps"}

    param_names = ["block_size"]
    params = [BLOCK_SIZES]

    @torch.inference_mode()
    def setup(self, block_size):
        self.loaded = loading.load(self.lab.settings)
        facts.cache_shape(self.loaded.config)  # only a cache that is understood
        lengths = [CHAPTER_PROMPT + length // 2 for length in CHAPTER_LENGTHS[:NUM_SEATS]]
        ids = prompts.prompt_ids(self.loaded, max(lengths) + 1, batch=NUM_SEATS).tolist()
        self.sequences = [row[: length + 1] for row, length in zip(ids, lengths, strict=True)]
        self.stores = {ROWS: self._rows(), PAGES: self._pages(block_size)}
        for key, sequence in enumerate(self.sequences):
            _, cache = prefill(self.loaded.model, self._ids([sequence[:-1]]), last_logits_only=True)
            for store in self.stores.values():
                store.admit(key, sequence[:-1])
                store.fill(key, cache)
                store.append(key, sequence[-1])
        self.newest = self._ids([sequence[-1] for sequence in self.sequences])

    def _ids(self, ids):
        return torch.tensor(ids, device=self.loaded.placement.device)

    def _rows(self):
        placement = self.loaded.placement
        return RowStore(
            self.loaded.config,
            num_rows=NUM_SEATS,
            max_tokens=LONGEST,
            dtype=placement.dtype,
            device=placement.device,
        )

    def _pages(self, block_size):
        placement = self.loaded.placement
        return PagedStore(
            self.loaded.config,
            num_blocks=NUM_SEATS * -(-LONGEST // block_size),
            block_size=block_size,
            dtype=placement.dtype,
            device=placement.device,
        )

    @torch.inference_mode()
    def run(self, block_size):
        logits = {}
        for name, store in self.stores.items():
            with self.lab.laps.lap(name):
                logits[name] = ragged_step(self.loaded.model, self.newest, store.step())
        return logits

    def check(self, output, block_size):
        longest = self._ids([max(self.sequences, key=len)])
        own = agreement.own_logits(self.loaded.model, longest)
        tolerance = agreement.rounding_tolerance(self.loaded.model, longest, own)
        difference = float((output[ROWS] - output[PAGES]).abs().max())
        assert difference <= tolerance, f"pages differ from rows by {difference:.2g}, rounding is {tolerance:.2g}"
        self.served = waste_over_time(block_size)

    def counters(self, output, block_size) -> Mapping[str, int]:
        used, paged = self.served
        reserved = LONGEST * sum(CHAPTER_LENGTHS)
        return {
            "used_slot_steps": used,
            "wasted_slot_steps": paged - used,
            "paged_slot_steps": paged,
            "reserved_slot_steps": reserved,
        }

    def lap_work(self, output, block_size) -> Mapping[str, Work]:
        work = decode_work(self.loaded, [len(sequence) - 1 for sequence in self.sequences])
        return dict.fromkeys((ROWS, PAGES), work) if work is not None else {}

    def teardown(self, block_size):
        self.stores = {}

    def verdict(self, results: Results) -> Verdict:
        parts, slower = [], {}
        for (block_size,), found in results.usable().items():
            used, paged = (found.counters[f"{name}_slot_steps"] for name in ("used", "paged"))
            parts.append(f"{1 - used / paged:.1%} of blocks of {block_size}")
            if found.laps:
                slower[block_size] = results.paired_ratio(PAGES, ROWS, block_size)
        wasted = 1 - used / found.counters["reserved_slot_steps"]
        assert wasted > 0.5, f"{wasted:.1%} of reserved rows is empty: not most of it"
        times = ", ".join(f"{ratio.format('.2f', 'x')} at {size}" for size, ratio in slower.items())
        return Verdict(
            Outcome.HOLDS,
            measured=f"over the chapter's requests {wasted:.1%} of reserved rows is empty, {', '.join(parts)}"
            + (f"; a gathered step takes {times}" if times else ""),
            predicted="under a block a sequence, a smaller share the longer they are",
            figures={f"pages_over_rows_{size}": ratio for size, ratio in slower.items()},
        )


def waste_over_time(block_size: int) -> tuple[int, int]:
    """(tokens held, slots taken), summed over every step of every request of the chapter's set.

    Raises:
        AssertionError: a sequence that takes other than ceil(n / b) blocks, or blocks that stay taken.
    """
    manager = BlockManager(-(-LONGEST // block_size), block_size)
    used = taken = 0
    for key, length in enumerate(CHAPTER_LENGTHS):
        manager.admit(key, [key] * CHAPTER_PROMPT)
        for _ in range(length):
            manager.append(key, key)
            num_tokens, num_blocks = manager.length(key), len(manager.blocks(key))
            wasted = num_blocks * block_size - num_tokens
            assert wasted == manager.num_wasted_tokens == -(-num_tokens // block_size) * block_size - num_tokens
            assert 0 <= wasted < block_size, f"{wasted} slots wasted of a block of {block_size}"
            used, taken = used + num_tokens, taken + num_blocks * block_size
        manager.release(key)
        assert manager.num_free == manager.num_blocks, f"{manager.num_free} of {manager.num_blocks} blocks free"
    return used, taken
