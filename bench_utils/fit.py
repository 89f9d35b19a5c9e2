"""What `claims fit` answers: with how much context, for how many users at once, in which format."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench_utils import devices
from bench_utils.inference.capacity import BLOCK, CHAPTER_CLASSES, FORMATS, Capacity, Format, ModelSize, size_of
from bench_utils.measure import nvml
from bench_utils.models import configs
from bench_utils.settings import ChoiceError, Settings, unknown_choice
from bench_utils.sizes import in_gib, is_decimal

_OTHER_NAMES = {"bf16": "fp16", "bfloat16": "fp16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True)
class Memory:
    """How much there is, as it was asked for, and who says so."""

    num_bytes: int
    source: str


@dataclass(frozen=True)
class Load:
    """So many users at once with so many tokens each (None: any context at all is enough).

    A server without paging reserves `reserved` tokens for each user (None: all that the model was made for).
    """

    num_users: int = 1
    context: int | None = None
    reserved: int | None = None
    block: int = BLOCK

    @property
    def num_tokens(self) -> int:
        """Of one user."""
        return self.context or 1

    def __str__(self) -> str:
        each = f"{self.context:,} tokens each" if self.context else "at least one token each"
        return f"{self.num_users:,} user{'s' * (self.num_users > 1)} with {each}, in blocks of {self.block}"


@dataclass(frozen=True)
class Row:
    """One format's answer; None where there is no such number.

    `num_tokens` is over all users, and none where a layer forgets: then it depends on how they are divided.
    """

    format: str
    weight_bytes: int
    cache_bytes: int
    token_bytes: int
    num_tokens: int | None
    longest_context: int | None
    longest_context_each: int | None
    num_users_paged: int
    num_users_reserving: int | None
    fits: bool
    limit: str


def model_of(name: str) -> ModelSize:
    """One of the chapter's classes, or any model whose config can be had.

    Raises:
        ChoiceError, ModelLoadError, UnknownCacheError: saying what is wrong with the name or the config.
    """
    if known := CHAPTER_CLASSES.get(name.lower()):
        return known
    found = configs.config_of(name, also=tuple(CHAPTER_CLASSES))
    return size_of(found.config, found.name, found.most_positions, found.packed_in)


def formats_of(names: Sequence[str]) -> list[Format]:
    """The formats of these names; all of them where none is named."""
    if not names:
        return list(FORMATS.values())
    meant = [_OTHER_NAMES.get(name.lower(), name.lower()) for name in names]
    for name, given in zip(meant, names, strict=True):
        if name not in FORMATS:
            raise unknown_choice("format", given, FORMATS)
    return [FORMATS[name] for name in dict.fromkeys(meant)]


def gpu_memory(settings: Settings) -> Memory:
    """What is free on the GPU that the settings mean: by NVML, which needs no context of its own, else by torch.

    Raises:
        ChoiceError: there is none, and what torch sees.
    """
    import torch

    device = devices.device_named(settings.device)
    if device.type == "cuda":
        index = device.index or 0
        name = torch.cuda.get_device_name(index)
        gpu, _ = nvml.find("cuda", index)
        if gpu and (free := gpu.free_bytes().value) is not None:
            return Memory(int(free), f"{name}, free by NVML")
        return Memory(devices.free_bytes(device), f"{name}, free by torch")
    if device.type == "mps":
        return Memory(devices.free_bytes(device), "MPS, free of what macOS recommends at most")
    raise ChoiceError(f"--gpu: {devices.what_torch_sees()}, and {device} is used; give --memory instead")


def answer(
    model: ModelSize, memory_bytes: int, overhead_bytes: int, formats: Sequence[Format], load: Load
) -> list[Row]:
    """A row for each format.

    Raises:
        ChoiceError: more tokens are wanted than are reserved.
    """
    reserved = load.reserved or model.most_positions
    if load.reserved and load.reserved < load.num_tokens:
        raise ChoiceError(
            f"{load.num_tokens:,} tokens a user are more than the {load.reserved:,} reserved for each"
        )
    return [_row(model, memory_bytes, overhead_bytes, stored, load, reserved) for stored in formats]


def _row(
    model: ModelSize, memory_bytes: int, overhead_bytes: int, stored: Format, load: Load, reserved: int | None
) -> Row:
    weight_bytes = model.weights.num_bytes(stored)
    capacity = Capacity(memory_bytes, weight_bytes, model.layout, stored.element_bytes, overhead_bytes)
    paged = capacity.num_users(load.num_tokens, load.block)
    limit, fits = _limit(capacity, model, load)
    return Row(
        format=stored.name,
        weight_bytes=weight_bytes,
        cache_bytes=capacity.cache_bytes,
        token_bytes=model.layout.token_bytes(stored.element_bytes),
        num_tokens=capacity.num_tokens if model.layout.depends_on_total_only else None,
        longest_context=_at_most(capacity.longest_context(load.block), model.most_positions),
        longest_context_each=_at_most(capacity.longest_context(load.block, load.num_users), model.most_positions),
        num_users_paged=paged,
        num_users_reserving=capacity.num_users(reserved) if reserved else None,
        fits=fits,
        limit=limit,
    )


def _at_most(num_tokens: int | None, most: int | None) -> int | None:
    return most if num_tokens is None else min(num_tokens, most or num_tokens)


def _limit(capacity: Capacity, model: ModelSize, load: Load) -> tuple[str, bool]:
    """What stands against the load, or against more of it; whether the load fits."""
    # Who says how much is reserved for each has no paging.
    each = capacity.sequence_bytes(load.reserved or load.num_tokens, 1 if load.reserved else load.block)
    if capacity.cache_bytes < 0:
        return f"weights and overhead: {in_gib(-capacity.cache_bytes)} too much", False
    if model.most_positions and load.num_tokens > model.most_positions:
        return f"the model: made for {model.most_positions:,} positions", False
    if (missing := load.num_users * each - capacity.cache_bytes) > 0:
        return f"{'reserved ' if load.reserved else ''}cache: {in_gib(missing)} too much", False
    longest = capacity.longest_context(load.block, load.num_users)
    if model.most_positions and (longest is None or longest >= model.most_positions):
        return f"the model's {model.most_positions:,} positions", True
    return "memory", True


def as_json(
    model: ModelSize, memory: Memory, overhead_bytes: int, load: Load, rows: Sequence[Row]
) -> dict[str, Any]:
    """The same as a document for scripts; every size in bytes, every context in tokens."""
    return {
        "model": model.name,
        "num_parameters": model.weights.num,
        "most_positions": model.most_positions,
        "memory_bytes": memory.num_bytes,
        "memory_source": memory.source,
        "overhead_bytes": overhead_bytes,
        "load": asdict(load),
        "formats": [asdict(row) for row in rows],
        "fits": any(row.fits for row in rows),
    }


def show(
    model: ModelSize, memory: Memory, overhead_bytes: int, load: Load, rows: Sequence[Row], console: Console
) -> None:
    """The answer as a table, with what was counted above it and the decision below."""
    token_bytes = model.layout.token_bytes(FORMATS["fp16"].element_bytes)
    beyond = "" if model.layout.depends_on_total_only else " beyond the windows"
    made_for = f"; made for {model.most_positions:,} positions" if model.most_positions else ""
    lines = [
        f"model     {model.name}: {model.weights.num:,} parameters; "
        f"a token's cache is {token_bytes:,} B in 16 bit{beyond}{made_for}",
        f"memory    {memory.source} = {memory.num_bytes:,} B ({in_gib(memory.num_bytes)})"
        + ("; a card sold by this number holds as many GiB" if is_decimal(memory.source) else ""),
        f"overhead  {overhead_bytes:,} B ({in_gib(overhead_bytes)}) besides weights and cache",
    ]
    if model.packed_in:
        lines.append(f"its file   has weights in {model.packed_in}, which is none of the formats below")
    if any(layer.most_tokens is not None for layer in model.layout.layers):
        lines.append("windows   hold a whole prompt until the step after it, where it is not fed in pieces")
    for line in (*lines, ""):
        console.print(Text(line), soft_wrap=True)
    console.print(_table(model, load, rows))
    fitting = [row.format for row in rows if row.fits]
    console.print(Text(f"\n{load}: " + (f"fits in {', '.join(fitting)}" if fitting else "does not fit")))


def _table(model: ModelSize, load: Load, rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    reserved = load.reserved or model.most_positions
    columns: dict[str, Callable[[Row], str]] = {
        "weights": lambda row: in_gib(row.weight_bytes),
        "left for\nthe cache": lambda row: in_gib(max(row.cache_bytes, 0)),
    }
    if model.layout.depends_on_total_only:
        columns["tokens over\nall users"] = lambda row: _count(row.num_tokens)
    columns["longest context,\none user"] = lambda row: _count(row.longest_context)
    if load.num_users > 1:
        columns[f"each of\n{load.num_users:,} users"] = lambda row: _count(row.longest_context_each)
    if load.context:
        columns[f"users with\n{load.context:,}, paged"] = lambda row: _count(row.num_users_paged)
    if reserved and (load.context or load.reserved):
        columns[f"reserving\n{reserved:,} each"] = lambda row: _count(row.num_users_reserving)
    table.add_column("format", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("limited by", overflow="fold")
    for row in rows:
        cells = [cell(row) for cell in columns.values()]
        table.add_row(row.format, *cells, Text(row.limit), style="" if row.fits else "dim")
    return table


def _count(num: int | None) -> str:
    return "any" if num is None else f"{num:,}" if num else "none"
