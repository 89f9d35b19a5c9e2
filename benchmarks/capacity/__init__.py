"""Section H of the ledger: does it fit."""
