"""Section G of the ledger: distillation."""
