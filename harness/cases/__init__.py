"""Golden cases: requests on an empty cache with the hits a source states, one case a line of a JSON Lines file.

format.py     what a case is
reading.py    case files and shipped sets to cases; every error names file and line
subjects.py   what answers: a law, an engine's own lookup code, an engine that runs a model
served.py     a case on a tiny model: its model, its IDs in that vocabulary
evaluate.py   answers against the stated hits: differences and findings
check.py      many cases in the order that starts fewest engines
show.py       a difference as two ledgers
"""
