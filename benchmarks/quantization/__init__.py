"""Section D of the ledger: quantization of weights."""
