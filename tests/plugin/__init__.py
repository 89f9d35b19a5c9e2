"""Whole pytest runs over small claims and the tiny model."""
