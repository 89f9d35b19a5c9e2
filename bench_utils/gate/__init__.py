"""The gate: two sides of a change, built, counted, timed against each other, and a verdict."""
