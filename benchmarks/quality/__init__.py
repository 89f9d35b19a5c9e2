"""Section E of the ledger: outliers and quality."""
