"""inference-claims: the claims about cheap LLM inference, each as one executable benchmark.

Importing this package is cheap and loads no torch; see the README for the house and its arrows.
"""

__version__ = "0.1.0"
