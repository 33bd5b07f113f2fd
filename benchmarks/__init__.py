"""Measurements, never assertions: `make bench`, or `python -m benchmarks NAME`. Results carry the machine's facts.

Each module says in its first lines what it measures; `page.py` writes docs/measurements.md. Cold against warm on whole
engines is a command of its own: `hitparity latency`.
"""
