"""Recorded traffic as requests: readers of public trace formats, and token IDs that share what a trace says is shared.

base.py        one request of a trace, and what every reader has in common
chain.py       block IDs that stand for their whole prefix
token_form.py  block IDs to token IDs
mooncake.py    512-token block IDs
"""
