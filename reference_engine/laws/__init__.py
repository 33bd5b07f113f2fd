"""Laws: executable statements of each engine's lookup rule, by version. numpy only, no torch.

base.py             the interface, as predictor and as cache manager
history.py          everything computed since the reset: the longest common prefix any rule could reach
block_pool.py       pages with reference counts and an eviction order (part)
chained_blocks.py   blocks keyed by their whole prefix (part)
page_radix.py       radix tree whose edges are whole pages (part)
vllm.py, sglang.py, slots.py    the laws, built from the parts
registry.py         law id and options to law
"""
