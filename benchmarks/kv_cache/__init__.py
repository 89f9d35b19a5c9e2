"""Section A of the ledger: the KV cache."""
