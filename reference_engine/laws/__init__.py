"""Laws: executable statements of each engine's lookup rule, by version. numpy only, no torch.

base.py         the interface, as predictor and as cache manager
entry.py        one registry entry, and how a law reads its options and layer groups
parts/          what several laws are built from: history, block pool, chained blocks, page radix, ...
vllm/, sglang/, llama_cpp/, ...   one folder per system; its `ENTRIES` are its laws
registry.py     law id and options to law
"""
