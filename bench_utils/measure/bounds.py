"""What bounds a result, and whether it can be true at all: both against the measured roofline."""

from dataclasses import dataclass

from bench_utils.measure.measurement import Bound, Validity
from bench_utils.measure.roofline import Roofline

# Below half of every limit, neither memory nor arithmetic explains the time.
BOUND_SHARE = 0.5


@dataclass(frozen=True)
class Work:
    """What one run must do: bytes that must move, multiply-accumulates, and the memory it walks over."""

    moved_bytes: int = 0
    macs: int = 0
    working_set_bytes: int = 0
    dtype: str = "float32"


def shares(work: Work, seconds: float, roofline: Roofline) -> tuple[float | None, float | None]:
    """(share of the bandwidth, share of the peak) that the work reaches in this time; None: no limit known."""
    bandwidth = roofline.bandwidth(work.working_set_bytes)
    peak = roofline.peak(work.dtype)
    of_bandwidth = work.moved_bytes / seconds / bandwidth if bandwidth and work.moved_bytes else None
    of_peak = 2 * work.macs / seconds / peak if peak and work.macs else None
    return of_bandwidth, of_peak


def classify(work: Work, seconds: float, roofline: Roofline) -> Bound:
    """'memory' or 'compute' where that limit is at least half reached, else 'overhead'."""
    of_bandwidth, of_peak = shares(work, seconds, roofline)
    known = {"memory": of_bandwidth or 0.0, "compute": of_peak or 0.0}
    if of_bandwidth is None and of_peak is None:
        return Bound("not assessed")
    kind = max(known, key=lambda name: known[name])
    return Bound(kind if known[kind] >= BOUND_SHARE else "overhead", of_bandwidth, of_peak)


def judge(work: Work, seconds: float, roofline: Roofline) -> Validity:
    """Invalid where a result is faster than the machine was ever seen to be."""
    of_bandwidth, of_peak = shares(work, seconds, roofline)
    for share, limit in ((of_bandwidth, "bandwidth"), (of_peak, f"{work.dtype} peak")):
        if share is not None and share > 1.0:
            return Validity("above-roofline", f"{share:.2f} times the measured {limit}: not possible as counted")
    return Validity()
