"""Section B of the ledger: prefill and decode, two phases."""
