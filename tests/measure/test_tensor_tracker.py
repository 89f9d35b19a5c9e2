"""The tensor tracker: exact on what is known by hand, and against torch's own allocator trace."""

import torch

from bench_utils.measure.tensor_tracker import TensorTracker, peak_tensor_bytes


def test_views_add_nothing_and_keep_their_storage_alive():
    with TensorTracker() as tracker:
        whole = torch.ones(1000)
        part = whole[:10]
        del whole
        assert tracker.live_bytes == 4000
        del part
        assert tracker.live_bytes == 0
    assert tracker.peak_bytes == 4000


def test_the_peak_counts_what_lives_together():
    def work():
        a = torch.ones(1000)
        b = a + 1  # two live
        del a
        return b * 2  # two live again

    assert peak_tensor_bytes(work) == 8000


def test_what_was_there_before_counts_nothing_even_through_a_view():
    weight = torch.ones(100, 100)
    with TensorTracker() as tracker:
        view = weight.t()
        product = torch.ones(3, 100) @ view
        assert tracker.live_bytes == product.nbytes
        weight.add_(1)
        assert tracker.live_bytes == product.nbytes


def test_lists_of_tensors_are_counted_once():
    with TensorTracker() as tracker:
        pieces = torch.ones(8).split(2)
        stacked = torch.stack(pieces)
        assert tracker.live_bytes == 32 + stacked.nbytes


def test_a_tensor_that_leaks_shows():
    kept = []

    def leaking():
        kept.append(torch.ones(1000))
        return torch.ones(10)

    assert peak_tensor_bytes(leaking) == 4040


def test_the_tracker_agrees_with_the_allocators_own_trace(tiny):
    """Torch's profiler sees every allocation, kernels' scratch too: its peak is the tracker's, or little
    more where a kernel wants scratch (equal to the byte where this was written).
    """
    from torch.profiler import ProfilerActivity, profile

    ids = torch.arange(24).view(1, -1)

    def work():
        with torch.inference_mode():
            return tiny.model(ids, use_cache=False).logits

    work()
    tracked = peak_tensor_bytes(work)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = work()
    live = peak = 0
    allocations = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(allocations, key=lambda e: e.start_ns()):
        live += event.nbytes()  # negative where memory is freed
        peak = max(peak, live)
    assert result is not None
    assert tracked <= peak <= 1.1 * tracked
