"""Section C of the ledger: batching, schedulers and the paged cache."""
