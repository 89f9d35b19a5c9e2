"""The lab: where one case of a claim is measured, in separate passes, the same way for every runner."""

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from bench_utils import devices
from bench_utils.measure import bounds, energy, machine, memory, nvml, roofline, sampler
from bench_utils.measure.clock import Clock, clock_for, synchronizer
from bench_utils.measure.laps import Laps
from bench_utils.measure.measurement import Lap, Measurement, Param, Validity
from bench_utils.measure.reading import Reading, missing
from bench_utils.measure.rss_watch import RssWatch
from bench_utils.settings import NotApplicableError, Settings

if TYPE_CHECKING:
    from bench_utils.claim import Claim

_CUDA_WARM_S = 1.0
# Memory and energy are read in runs of their own; a very long run is not worth another one.
_LONGEST_REPEATED_S = 2.0
Limits = Literal["none", "cached", "fresh"]


@dataclass
class Lab:
    """Settings turned into instruments. `probe` is None where only times are wanted (asv)."""

    settings: Settings
    placement: devices.Placement
    budget: sampler.Budget
    clock: Clock
    machine: machine.Machine
    roofline: roofline.Roofline
    probe: memory.MemoryProbe | None = None
    energy_source: energy.EnergySource | Reading = missing("no energy pass in this runner")  # noqa: RUF009
    gpu: nvml.Nvml | None = None
    gpu_reason: str = nvml.NO_GPU
    # What the user asked of the sampler, over what the profile and the claim would choose.
    chosen: Callable[[sampler.Budget], sampler.Budget] = lambda budget: budget
    laps: Laps = field(init=False)

    def __post_init__(self) -> None:
        self.laps = Laps(self.clock)

    def measure(self, claim: "Claim", case: tuple[Param, ...]) -> tuple[Measurement, Any]:
        """Set up, time, check, count, and read memory and energy: the measurement and the last output.

        Raises:
            AssertionError: what the claim holds for exact is not.
        """
        return self._guarded(claim, case, self._passes)

    def run_once(self, claim: "Claim", case: tuple[Param, ...]) -> tuple[Measurement, Any]:
        """Run, check and count without timing: the correctness mode."""
        return self._guarded(claim, case, self._once)

    def sample(self, claim: "Claim", case: tuple[Param, ...]) -> Measurement:
        """Samples and check of a case that is set up already."""
        return self._timed(claim, case)[0]

    def _guarded(
        self,
        claim: "Claim",
        case: tuple[Param, ...],
        body: "Callable[[Claim, tuple[Param, ...]], tuple[Measurement, Any]]",
    ) -> tuple[Measurement, Any]:
        began = time.perf_counter()
        output: Any = None
        try:
            try:
                claim.setup(*case)
                measurement, output = body(claim, case)
            finally:
                claim.teardown(*case)
        except NotApplicableError as error:
            measurement = self.blank(claim, case, Validity("not-applicable", str(error)))
        except Exception as error:
            if not memory.is_out_of_memory(error):
                raise
            measurement = self.blank(claim, case, Validity("out-of-memory", first_line(error)))
        return replace(measurement, duration_s=time.perf_counter() - began), output

    def blank(self, claim: "Claim", case: tuple[Param, ...], validity: Validity) -> Measurement:
        """A measurement of this case with nothing in it yet."""
        names = dict(zip(claim.param_names, case, strict=True))
        return Measurement(claim=claim.id, case=names, version=claim.version, validity=validity)

    def _once(self, claim: "Claim", case: tuple[Param, ...]) -> tuple[Measurement, Any]:
        claim.restore(*case)
        output = claim.run(*case)
        claim.check(output, *case)
        counters = _finite(claim.counters(output, *case))
        notes = dict(claim.notes(output, *case))
        return replace(self.blank(claim, case, Validity()), counters=counters, notes=notes), output

    def _timed(self, claim: "Claim", case: tuple[Param, ...]) -> tuple[Measurement, Any]:
        taken = sampler.sample(
            lambda: claim.run(*case),
            self.clock,
            self.chosen(claim.budget(self.budget)),
            restore=(lambda: claim.restore(*case)) if claim.has_state else None,
            warmed=self.laps.clear,
        )
        laps = {name: Lap(samples_s) for name, samples_s in self.laps.read().items()}
        claim.check(taken.output, *case)
        measurement = replace(
            self.blank(claim, case, Validity()),
            samples_s=taken.samples_s,
            runs_per_sample=taken.runs_per_sample,
            laps=laps,
            counters=_finite(claim.counters(taken.output, *case)),
            notes=dict(claim.notes(taken.output, *case)),
        )
        return self._judged(measurement, claim, taken.output), taken.output

    def _judged(self, measurement: Measurement, claim: "Claim", output: Any) -> Measurement:
        """The measurement and its laps held against the limits: what bounds each, and whether it can be true."""
        lap_work = claim.lap_work(output, *measurement.key)
        timed = [(claim.work(output, *measurement.key), measurement.median_s.value)]
        timed += [(lap_work.get(name), median(lap.samples_s)) for name, lap in measurement.laps.items()]
        validity = self._validity(timed)
        if not validity.is_ok:  # the limits may have been read in a slow moment: look again before refusing
            self.roofline = roofline.measure_again(self.machine, self.placement.device.type)
            validity = self._validity(timed)
        bound, *of_laps = [bounds.classify(work, s, self.roofline) if work else None for work, s in timed]
        named = zip(measurement.laps.items(), of_laps, strict=True)
        laps = {name: replace(lap, bound=own) for (name, lap), own in named}
        return replace(measurement, validity=validity, bound=bound, laps=laps)

    def _validity(self, timed: list[tuple[bounds.Work | None, float]]) -> Validity:
        judged = (bounds.judge(work, seconds, self.roofline) for work, seconds in timed if work is not None)
        return next((validity for validity in judged if not validity.is_ok), Validity())

    def _passes(self, claim: "Claim", case: tuple[Param, ...]) -> tuple[Measurement, Any]:
        if not claim.timed:
            return self._once(claim, case)
        measurement, output = self._timed(claim, case)
        if measurement.median_s.value > _LONGEST_REPEATED_S:
            reason = missing(f"a run of more than {_LONGEST_REPEATED_S:g} s is not repeated for it")
            return replace(measurement, memory=dict.fromkeys(memory.SOURCES, reason), energy=reason), output
        if self.probe is not None:
            readings = self.probe.measure(lambda: claim.run(*case), lambda: claim.restore(*case))
            measurement = replace(measurement, memory=readings)

        def restored_run() -> None:
            claim.restore(*case)
            claim.run(*case)

        joules = energy.measure(
            restored_run, self.energy_source, synchronize=synchronizer(self.placement.device.type)
        )
        name = "" if isinstance(self.energy_source, Reading) else self.energy_source.name
        return replace(measurement, energy=joules, energy_source=name), output


def open_lab(
    settings: Settings,
    stack: ExitStack,
    *,
    with_passes: bool = True,
    limits: Limits = "cached",
    report: Callable[[str], None] = lambda _step: None,
) -> Lab:
    """A lab for these settings; `stack` closes its watching process.

    Limits 'fresh' are measured now and the best ones kept, 'cached' only where none are there, 'none' not at
    all; `with_passes` adds memory and energy.

    Raises:
        ChoiceError: the device asked for is absent.
    """
    placement = devices.place(settings)
    device = placement.device
    if device.type == "cuda":
        import torch

        torch.cuda.set_device(device)  # events, memory statistics and limits are all the current device's
    gpu, gpu_reason = nvml.find(device.type, device.index or 0)
    report("reading the machine")
    this_machine = machine.fingerprint(device.type, device.index or 0, gpu)
    measured = roofline.Roofline()
    if limits != "none":
        get = roofline.measure_again if limits == "fresh" else roofline.load_or_measure
        measured = get(this_machine, device.type, report)
    lab = Lab(
        settings=settings,
        placement=placement,
        budget=_budget(settings, device.type),
        clock=clock_for(device.type),
        machine=this_machine,
        roofline=measured,
        gpu=gpu,
        gpu_reason=gpu_reason,
    )
    if with_passes:
        lab.probe = memory.MemoryProbe(device.type, stack.enter_context(RssWatch(os.getpid())), gpu, gpu_reason)
        lab.energy_source = energy.find_source(device.type, gpu, gpu_reason)
    return lab


def _budget(settings: Settings, device_type: str) -> sampler.Budget:
    budget = sampler.QUICK if settings.is_quick else sampler.FULL
    return replace(budget, warm_time_s=_CUDA_WARM_S) if device_type == "cuda" else budget


def _finite(counters: Mapping[str, int | float]) -> dict[str, int | float]:
    for name, value in counters.items():
        if not math.isfinite(value):
            raise ValueError(f"counter {name} is {value}: no record can hold it")
    return dict(counters)


def first_line(error: BaseException) -> str:
    """An error in one line, its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
