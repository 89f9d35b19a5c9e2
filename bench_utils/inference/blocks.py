"""The bookkeeping of a paged cache: block tables, reference counts, shared prefixes, copy-on-write, eviction.

No tensors: this says which block holds what. Source: Kwon et al., PagedAttention (SOSP 2023).
"""

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """Where a new token goes: a block and an offset in it. `copied_from` must be copied onto the block first."""

    block: int
    offset: int
    copied_from: int | None = None


@dataclass
class _Table:
    tokens: list[int]
    blocks: list[int]
    num_published: int = 0
    chain: bytes = b""  # the digest of all published blocks


@dataclass
class Figures:
    """What happened since the start, in blocks."""

    num_shared: int = 0
    num_copied: int = 0
    num_evicted: int = 0


class BlockManager:
    """Blocks of `block_size` tokens, shared where sequences begin alike, and kept for reuse until room is needed.

    A full block whose tensors are written is published under the chained hash of all tokens up to its end; a new
    sequence takes published blocks for its prefix, but never for the whole of it: something must be computed.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens; at least one of one is needed")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.figures = Figures()
        self._tables: dict[int, _Table] = {}
        self._references = [0] * num_blocks
        self._unused = deque(range(num_blocks))
        self._reusable: OrderedDict[int, None] = OrderedDict()  # published, referenced by none: oldest first
        self._by_digest: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that no sequence refers to."""
        return len(self._unused) + len(self._reusable)

    @property
    def num_wasted_tokens(self) -> int:
        """Slots of all tables that hold no token: sum of ceil(n / b) b - n, less than a block a sequence."""
        tables = self._tables.values()
        return sum(len(table.blocks) * self.block_size - len(table.tokens) for table in tables)

    @property
    def held(self) -> list[int]:
        """The sequences held, oldest first."""
        return list(self._tables)

    def num_settled(self, key: int) -> int:
        """How many of a sequence's first tokens lie in blocks written for good: taken from others, or published."""
        return self._tables[key].num_published * self.block_size

    def length(self, key: int) -> int:
        """How many tokens a sequence holds."""
        return len(self._tables[key].tokens)

    def blocks(self, key: int) -> list[int]:
        """A sequence's block table."""
        return list(self._tables[key].blocks)

    def references(self, block: int) -> int:
        """How many sequences refer to a block."""
        return self._references[block]

    def num_needed(self, num_tokens: int) -> int:
        """ceil(n / b)."""
        return -(-num_tokens // self.block_size)

    def admit(self, key: int, tokens: Sequence[int], *, spare_tokens: int = 0) -> int | None:
        """A table for a sequence; how many of its first tokens are there already. None: too few blocks are free.

        `spare_tokens` more must fit, and are not taken.
        """
        if not tokens or key in self._tables:
            raise ValueError(f"sequence {key} is {'empty' if not tokens else 'held already'}")
        shared, chain = self._published_prefix(tokens)
        num_idle = sum(self._references[block] == 0 for block in shared)
        if self.num_needed(len(tokens) + spare_tokens) - len(shared) > self.num_free - num_idle:
            return None
        for block in shared:
            self._refer(block)
        fresh = [self._take() for _ in range(self.num_needed(len(tokens)) - len(shared))]
        self._tables[key] = _Table(list(tokens), [*shared, *fresh], len(shared), chain)
        self.figures.num_shared += len(shared)
        return len(shared) * self.block_size

    def publish(self, key: int) -> None:
        """Let others share a sequence's full blocks: their tensors are written."""
        table = self._tables[key]
        for index in range(table.num_published, len(table.tokens) // self.block_size):
            table.chain = self._digest(table.chain, table.tokens, index)
            block = table.blocks[index]
            # Another sequence may have computed the same block meanwhile: then this one stays its own.
            if block not in self._digest_of and table.chain not in self._by_digest:
                self._by_digest[table.chain] = block
                self._digest_of[block] = table.chain
            table.num_published = index + 1

    def append(self, key: int, token: int) -> Slot | None:
        """Room for one more token; None: a block is needed and none is free.

        A full last block is published by then: the step that wrote it is over.
        """
        table = self._tables[key]
        offset = len(table.tokens) % self.block_size
        last = table.blocks[-1]
        copied_from = last if offset and self._references[last] > 1 else None
        if offset == 0 or copied_from is not None:
            if not self.num_free:
                return None
            if copied_from is None:
                self.publish(key)
                table.blocks.append(self._take())
            else:
                self._references[last] -= 1
                table.blocks[-1] = self._take()
                self.figures.num_copied += 1
        table.tokens.append(token)
        return Slot(table.blocks[-1], offset, copied_from)

    def fork(self, parent: int, child: int) -> None:
        """A second sequence with the same tokens so far, in the same blocks: it costs none."""
        if child in self._tables:
            raise ValueError(f"sequence {child} is held already")
        table = self._tables[parent]
        for block in table.blocks:
            self._refer(block)
        self._tables[child] = _Table(list(table.tokens), list(table.blocks), table.num_published, table.chain)

    def release(self, key: int) -> None:
        """Let a sequence go; its published blocks stay reusable, the end of the prefix to be evicted first."""
        for block in reversed(self._tables.pop(key).blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._digest_of:
                self._reusable[block] = None
            else:
                self._unused.append(block)

    def _published_prefix(self, tokens: Sequence[int]) -> tuple[list[int], bytes]:
        shared: list[int] = []
        chain = b""
        for index in range((len(tokens) - 1) // self.block_size):  # the last token is always computed
            digest = self._digest(chain, tokens, index)
            if digest not in self._by_digest:
                break
            shared.append(self._by_digest[digest])
            chain = digest
        return shared, chain

    def _digest(self, chain: bytes, tokens: Sequence[int], index: int) -> bytes:
        own = array("q", tokens[index * self.block_size : (index + 1) * self.block_size])
        return hashlib.sha256(chain + own.tobytes()).digest()

    def _refer(self, block: int) -> None:
        self._references[block] += 1
        self._reusable.pop(block, None)

    def _take(self) -> int:
        """A block for new content: an unused one, else the one that was reusable for the longest time."""
        if self._unused:
            block = self._unused.popleft()
        else:
            block, _ = self._reusable.popitem(last=False)
            del self._by_digest[self._digest_of.pop(block)]
            self.figures.num_evicted += 1
        self._references[block] = 1
        return block
