"""Experiment file -> plan -> observations -> verdicts -> records -> tables and figures. Imports no engine.

experiment.py   the TOML file, checked
plan.py         cells, grouped so that an engine starts once per configuration
runner.py       starts engines, runs cells, survives what fails
cell.py         one cell: verified reset, requests, control arm
judge.py        observation against law: ledger and findings
records.py      what is written down (schema)
store.py        where it is written: flushed lines, atomic manifests
resume.py       may a run be gone on with, and if not, what differs
interrupt.py    signals
table.py, figures.py, report.py    readers of records
doctor.py       what is installed and whether it can be trusted
cli.py          the command
"""
