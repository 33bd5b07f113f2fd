"""Families of token-ID request sequences and the catalogue of ready experiments.

sequence.py    what a workload is: sends whose prompts may hold earlier outputs
lengths.py     lengths relative to an engine: "3g+1", "W-1", "0.5P"
source.py      seeded token IDs that avoid accidental common prefixes
families/      one pure function per family
registry.py    family name to function
catalogue/     ready experiment files and the text they read
"""
