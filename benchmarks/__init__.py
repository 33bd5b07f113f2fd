"""Measurements, never assertions: `make bench`, or `python -m benchmarks NAME`. Results carry the machine's facts.

client_floor.py   time to first token of our HTTP client against a server that computes nothing
overhead.py       wall time of a run that is not spent inside an engine
ttft.py           cold and warm TTFT of all engines on SmolLM2, paired and interleaved
"""
