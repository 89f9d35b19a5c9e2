"""NVML by UUID and energy with its reasons, through stand-ins."""

import pytest

from bench_utils.measure import energy
from bench_utils.measure.energy import NvmlEnergy, RaplEnergy, find_source, measure
from bench_utils.measure.nvml import Nvml, NvmlError, cuda_uuid
from bench_utils.measure.reading import Reading, missing
from tests.measure.fakes import FakeNvml, FakeTime


def test_a_gpu_is_found_by_uuid_and_an_unknown_one_is_an_error():
    assert Nvml("GPU-1", FakeNvml()).device_bytes() == Reading(9_000)
    with pytest.raises(NvmlError, match="Not Found"):
        Nvml("GPU-2", FakeNvml())


def test_a_library_that_does_not_start_is_an_error_with_its_words():
    with pytest.raises(NvmlError, match="Not Supported"):
        Nvml("GPU-1", FakeNvml(withheld=["init"]))


def test_every_withheld_figure_says_why():
    nvml = Nvml(
        "GPU-1", FakeNvml(withheld=["memory", "processes", "energy", "power", "clocks", "temperature", "reasons"])
    )
    state = nvml.state()
    for reading in (
        nvml.device_bytes(),
        nvml.process_bytes(42),
        nvml.energy_j(),
        state.sm_clock_mhz,
        state.power_limit_w,
        state.temperature_c,
    ):
        assert reading.value is None
        assert "Not Supported" in reading.reason
    assert state.throttle_reasons == ("unknown (NVML: Not Supported)",)


def test_the_state_is_in_plain_units_and_idleness_is_no_throttling():
    state = Nvml("GPU-1", FakeNvml()).state()
    assert state.power_limit_w == Reading(700.0)
    assert state.sm_clock_mhz == Reading(1_980)
    assert state.throttle_reasons == ("SwPowerCap",)


def test_a_function_that_this_version_lacks_is_a_reason():
    reading = Nvml("GPU-1", FakeNvml()).read("nvmlDeviceGetNothing")
    assert reading == missing("NVML: this version has no nvmlDeviceGetNothing")


def test_a_process_is_known_by_its_id():
    assert Nvml("GPU-1", FakeNvml()).process_bytes(42) == Reading(7_000)


def test_a_mig_slice_keeps_its_own_uuid():
    assert cuda_uuid(1, visible="MIG-a,MIG-b") == "MIG-b"


def test_a_reading_is_a_value_or_a_reason():
    for arguments in ((None, ""), (1, "why")):
        with pytest.raises(ValueError, match="a value or a reason"):
            Reading(*arguments)
    assert Reading(0).value == 0


# --- energy


class Counter:
    """An energy counter that rises with the runs."""

    name = "fake"

    def __init__(self, time, watts=10.0):
        self.time, self.watts, self.offset = time, watts, 0.0

    def read_j(self):
        self.time.advance(0.001)  # reading takes a moment: a counter that stands still ends the wait
        return Reading(self.time() * self.watts + self.offset)


def test_joules_a_run_are_averaged_over_a_window_of_a_second():
    time = FakeTime()
    runs = []

    def run():
        runs.append(None)
        time.advance(0.3)

    found = measure(run, Counter(time), timer=time)
    assert len(runs) == 4
    assert found.value == pytest.approx(3.0, rel=0.01)  # the readings take their millisecond


def test_a_counter_that_wraps_gives_no_figure():
    time = FakeTime()
    counter = Counter(time)

    def run():
        time.advance(2.0)
        counter.offset = -10_000.0

    assert "wrapped" in measure(run, counter, timer=time).reason


def test_without_a_counter_nothing_is_run():
    reason = missing("no counter here")
    assert measure(lambda: pytest.fail("ran"), reason) == reason


def test_nvml_is_taken_first_and_its_refusal_is_the_reason():
    assert isinstance(find_source("cuda", Nvml("GPU-1", FakeNvml())), NvmlEnergy)
    refused = find_source("cuda", Nvml("GPU-1", FakeNvml(withheld=["energy"])))
    assert refused == missing("NVML: Not Supported")


def test_a_gpu_run_is_never_given_the_cpus_joules():
    assert find_source("cuda", None, "NVML: not loaded") == missing("NVML: not loaded")


def test_a_counter_that_stands_still_gives_no_figure_and_ends():
    time = FakeTime()
    counter = Counter(time, watts=0.0)
    assert "did not move" in measure(lambda: time.advance(0.5), counter, timer=time).reason


def test_the_device_is_waited_for_before_every_reading():
    time, order = FakeTime(), []
    measure(lambda: time.advance(2.0), Counter(time), timer=time, synchronize=lambda: order.append("sync"))
    assert order == ["sync"]


def test_rapl_packages_are_summed_and_their_cores_are_not_counted_twice(tmp_path):
    for name, microjoules in (("intel-rapl:0", 3_000_000), ("intel-rapl:1", 4_000_000), ("intel-rapl:0:0", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(str(microjoules))
    source = find_source("cpu", None, powercap=tmp_path, platform="linux")
    assert isinstance(source, RaplEnergy)
    assert source.read_j() == Reading(7.0)


def test_without_rapl_or_permission_there_is_a_reason(tmp_path):
    assert find_source("cpu", None, powercap=tmp_path, platform="linux") == missing(
        "this machine shows no RAPL counter"
    )
    (tmp_path / "intel-rapl:0").mkdir()  # a zone whose counter cannot be read
    assert "not readable" in find_source("cpu", None, powercap=tmp_path, platform="linux").reason
    assert find_source("cpu", None, powercap=tmp_path, platform="darwin") == missing(
        "no energy counter is read for cpu on darwin"
    )
    assert energy.MIN_WINDOW_S >= 1.0
