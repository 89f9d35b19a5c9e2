"""What `claims doctor` says: the machine, its limits, its noise, the GPU, the assets, and what would be skipped."""

import statistics
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench_utils import devices
from bench_utils.discovery import NoBenchmarksError, find_claims
from bench_utils.lab import Lab, open_lab
from bench_utils.measure import machine, overhead
from bench_utils.measure import statistics as spread
from bench_utils.measure.clock import wall_clock_for
from bench_utils.measure.reading import Reading
from bench_utils.measure.sampler import QUICK, sample
from bench_utils.models import assets, catalog, conversion, facts, loading, sources
from bench_utils.models.cache_layout import UnknownCacheError
from bench_utils.progress import FetchProgress, steps
from bench_utils.settings import Settings
from bench_utils.verdict import case_key

_NUM_STEPS = 2


def examine(settings: Settings, console: Console, benchmarks: Path = Path("benchmarks")) -> None:
    """Print everything; needs the model's assets for the decode figure and fetches nothing without saying so.

    Raises:
        ChoiceError, AssetError, ModelLoadError, MemoryError: as loading a model does.
    """
    catalog.resolve(settings.model)  # a mistyped name is told at once
    with ExitStack() as stack:
        with steps(console, "reading this machine and its limits") as report:
            lab = open_lab(settings, stack, limits="fresh", report=report)
        _show(console, "machine", _machine_rows(lab))
        _show(console, "limits, best seen (shares are of these)", _limit_rows(lab))
        with steps(console, "looking at noise"):
            noise = _noise_rows(lab)
        _show(console, "noise", noise)
        _show(console, "GPU, memory and energy", _gpu_rows(lab))
        _show(console, "assets", _asset_rows())
        sources.prepare(settings.model, FetchProgress(console))
        with steps(console, "measuring the harness itself"):
            rows = _harness_rows(settings, lab)
        _show(console, "the harness", rows)
        _show(console, "what would be skipped", _skip_rows(settings, lab, benchmarks))


def _show(console: Console, title: str, rows: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    console.print(Text(f"\n{title}", style="underline"))
    console.print(table)


def _machine_rows(lab: Lab) -> dict[str, str]:
    this, now = lab.machine, machine.state(lab.gpu)
    gpu = f"{this.gpu.name}, driver {this.gpu.driver}" if this.gpu else "none in use"
    return {
        "name": this.name,
        "CPU": f"{this.cpu}, {this.num_cores} cores, {this.num_usable_cpus} usable, {this.num_threads} threads",
        "memory": f"{this.memory_bytes / 2**30:.1f} GiB",
        "GPU": gpu,
        "system": f"{this.os} {this.architecture}, container: {this.container}",
        "torch": devices.what_torch_sees(),
        "placement": f"{lab.placement.dtype_name} on {lab.placement.device} ({lab.placement.why})",
        "load": _shown(now.load_average_1min, ".2f"),
        "CPU clock": _shown(now.cpu_mhz, ",.0f", " MHz"),
    }


def _limit_rows(lab: Lab) -> dict[str, str]:
    rows = {}
    for size, read in lab.roofline.read_bytes_per_s.items():
        copy = lab.roofline.copy_bytes_per_s[size]
        rows[f"{size / 2**20:g} MiB"] = f"read {read / 1e9:.1f} GB/s, copy {copy / 1e9:.1f} GB/s"
    for dtype, peak in lab.roofline.peak_flop_per_s.items():
        ridge = lab.roofline.ridge_flop_per_byte(dtype)
        rows[dtype] = f"{peak / 1e9:,.0f} GFLOP/s" + (f", ridge at {ridge:.1f} FLOP/B" if ridge else "")
    return rows


def _noise_rows(lab: Lab) -> dict[str, str]:
    import torch

    a = torch.ones(512, 512, device=lab.placement.device)
    taken = sample(lambda: a @ a, lab.clock, QUICK).samples_s
    share = spread.iqr(taken) / statistics.median(taken)
    verdict = "noisy: expect wide intervals" if spread.is_noisy(taken) else "quiet enough"
    return {"IQR of a fixed product": f"{share:.1%} of the median over {len(taken)} samples ({verdict})"}


def _gpu_rows(lab: Lab) -> dict[str, str]:
    source = lab.energy_source
    rows = {
        "NVML": "answers" if lab.gpu is not None else lab.gpu_reason,
        "energy": f"none: {source.reason}" if isinstance(source, Reading) else f"from {source.name}",
    }
    if lab.gpu is not None:
        for name, value in vars(lab.gpu.state()).items():
            is_reading = isinstance(value, Reading)
            rows[name.replace("_", " ")] = _shown(value, ",.0f") if is_reading else ", ".join(value) or "none"
    return rows


def _asset_rows() -> dict[str, str]:
    rows = {}
    for asset in assets.ASSETS:
        state = "intact" if assets.is_intact(asset) else "not there: `claims fetch` gets it"
        rows[asset.name] = f"{state} ({asset.member_bytes:,} B, {asset.license})"
    folder = conversion.folder_of(assets.path_of(assets.SMOLLM2), assets.SMOLLM2.member_sha256[:12])
    if conversion.is_whole(folder):
        intact = conversion.is_intact(folder)
        rows["converted model"] = "intact" if intact else f"damaged: delete {folder}"
    else:
        rows["converted model"] = "not made yet (once, half a minute)"
    return rows


def _harness_rows(settings: Settings, lab: Lab) -> dict[str, str]:
    from bench_utils.inference.decode import greedy_cached
    from bench_utils.models.prompts import prompt_ids

    loaded = loading.load(settings)
    generate = partial(greedy_cached, loaded.model, prompt_ids(loaded, 1), _NUM_STEPS)
    cost = overhead.cost_per_sample_s()
    wall = wall_clock_for(lab.placement.device.type)
    rate = overhead.reported_over_bare(generate, lab.clock, wall)
    seconds = sample(generate, lab.clock, QUICK).samples_s
    return {
        "cost per sample over a bare loop": f"{cost.value * 1e6:.2f} us",
        "decode, as reported": f"{_NUM_STEPS / statistics.median(seconds):.1f} tok/s",
        "reported over a bare loop": rate.format(".3f"),
    }


def _skip_rows(settings: Settings, lab: Lab, benchmarks: Path) -> dict[str, str]:
    rows: dict[str, str] = {}
    try:
        facts.decoder_shape(loading.load(settings).config)
    except UnknownCacheError as error:
        rows["claims on this model's cache and MACs"] = str(error)
    try:
        claims, broken = find_claims(benchmarks)
    except NoBenchmarksError as error:
        return {**rows, "the claims' own cases": str(error)}
    for claim_class in claims:
        claim = claim_class()
        claim._lab = lab
        for case in claim.cases():
            if reason := claim.skip_reason(*case):
                rows[case_key(claim.id, case)] = reason
    rows.update({module.module: module.error for module in broken})
    return rows or {"nothing": "everything runs here"}


def _shown(reading: Reading, spec: str, unit: str = "") -> str:
    return f"unknown ({reading.reason})" if reading.value is None else f"{reading.value:{spec}}{unit}"
