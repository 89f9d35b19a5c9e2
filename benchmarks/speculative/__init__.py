"""Section F of the ledger: speculative decoding."""
