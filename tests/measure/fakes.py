"""Stand-ins for the outside: a clock that is told the time, CUDA's events, and NVIDIA's library."""

from types import SimpleNamespace


class FakeTime:
    """Time that moves only when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


class FakeCuda:
    """torch.cuda's events and synchronisation over a fake time; the device runs behind the host."""

    def __init__(self, time):
        self.time = time
        self.num_synchronized = 0

    def synchronize(self):
        self.num_synchronized += 1

    def Event(self, enable_timing):
        assert enable_timing
        return FakeEvent(self.time)


class FakeEvent:
    def __init__(self, time):
        self.time = time
        self.at_s = None

    def record(self):
        self.at_s = self.time()

    def elapsed_time(self, other):
        return (other.at_s - self.at_s) * 1e3  # milliseconds, as CUDA has it


class FakeGraphs:
    """torch.cuda as far as capturing goes: a graph replays what was run while it was open."""

    def __init__(self):
        self.log = []

    def Stream(self):
        return self

    current_stream = Stream

    def wait_stream(self, _other):
        self.log.append("wait")

    def stream(self, _stream):
        return self

    def CUDAGraph(self):
        return self

    def graph(self, _graph):
        self.log.append("capture")
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        return False

    def replay(self):
        self.log.append("replay")


class NvmlError(Exception):
    pass


class FakeNvml:
    """pynvml as far as it is used: one GPU, some of whose figures may be withheld."""

    NVMLError = NvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksEventReasonGpuIdle = 1
    nvmlClocksEventReasonSwPowerCap = 4
    nvmlClocksEventReasonHwSlowdown = 8
    nvmlClocksEventReasonAll = 13

    def __init__(self, uuid="GPU-1", withheld=()):
        self.uuid = uuid
        self.withheld = set(withheld)
        self.energy_mj = 5_000
        self.processes = [SimpleNamespace(pid=42, usedGpuMemory=7_000)]
        self.reasons = 1 | 4
        self.__dict__.update(
            {name: value for name, value in vars(type(self)).items() if name.startswith("nvmlClocksEventReason")}
        )

    def _give(self, name, value):
        if name in self.withheld:
            raise NvmlError("Not Supported")
        return value

    def nvmlInit(self):
        self._give("init", None)

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != self.uuid:
            raise NvmlError("Not Found")
        return "handle"

    def nvmlSystemGetDriverVersion(self):
        return self._give("driver", "580.1")

    def nvmlDeviceGetMemoryInfo(self, _handle):
        return self._give("memory", SimpleNamespace(used=9_000))

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):
        return self._give("processes", self.processes)

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle):
        return self._give("energy", self.energy_mj)

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle):
        return self._give("power", 700_000)

    def nvmlDeviceGetClockInfo(self, _handle, which):
        return self._give("clocks", {1: 1_980, 2: 3_201}[which])

    def nvmlDeviceGetTemperature(self, _handle, _sensor):
        return self._give("temperature", 35)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle):
        return self._give("reasons", self.reasons)
