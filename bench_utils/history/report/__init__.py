"""The report: one page that opens offline, and the same in Markdown."""
