"""The suite's own promises, measured like any claim."""
