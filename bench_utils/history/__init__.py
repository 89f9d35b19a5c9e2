"""Run records: written as a run goes, read back for resuming, comparing and reporting."""
