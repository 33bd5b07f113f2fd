"""`hitparity explain`: why a hit is not longer, in a picture, a sentence and what could be changed.

picture.py       a ledger as one line of characters
counterfactual.py  the same sequence asked of fresh copies of a law, with one thing changed
levers.py        options that may lift a constraint, per system, with their cost
explanation.py   one request by one law: ledger, depths, sentence, levers
sequence.py      prompts from lengths and a relation, a case, or a recorded run
show.py          side by side in the terminal, or as JSON
"""
