"""The yardstick: one folder for each section of the chapter, one bench_<claim>.py for each claim."""
