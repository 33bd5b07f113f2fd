"""The project's words as types: requests, replies, facts, the ledger and the errors.

Everyone may import this package; it imports nothing of ours. See docs/design.md, "Words".
"""
