"""Measuring: sampler and clocks, memory, counters, energy, machine, roofline, statistics. Knows no mechanism."""
