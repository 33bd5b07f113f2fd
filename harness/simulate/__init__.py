"""Laws at trace scale: every request of a trace through every law, with bounded pools.

numbering.py   a trace's 64-bit chain keys to dense block numbers
feed.py        a trace's requests in the form a law reads
job.py         one law on one trace: what it is, and its totals
cell.py        runs a job: streams the trace, writes requests as Parquet and totals as JSON
curve.py       hit rate over all pool sizes in one pass, where eviction is by least recent use
gains.py       what one changed option would save
sweep.py       all cells of a sweep: local processes, resumable
on_ray.py      the same on Ray
show.py        tables
"""

import os

# Nothing here multiplies matrices, and numpy's threads for that take as long to start as all the rest of it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
