"""The project's claims."""
