"""Recorded traffic as requests: readers of trace formats, and token IDs that share what a trace says is shared.

base.py        one request of a trace, and what every reader has in common
chain.py       block IDs that stand for their whole prefix
token_form.py  block IDs to token IDs
registry.py    formats by name: mooncake, bailian, agents, counters, and own.py, which hitparity writes itself
generate.py    synthetic traffic; write.py writes it in every format
stretches.py   sequences of tokens whose IDs nobody knows
"""
