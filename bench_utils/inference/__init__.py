"""The mechanisms that the claims are about: plain functions and small classes on torch, no timing, no pytest."""
