"""Differential fuzzing: random request sequences asked of a law and of the engine's own code together.

configurations.py   the named configurations, as data
sequences.py        random sequences: what is drawn, and at which lengths
duel.py             one sequence, both sides: the first answer that differs
shrink.py           the smallest sequence that still differs
campaign.py         many sequences of one configuration, counted
page.py             results as the table of docs/fuzz.md
"""
