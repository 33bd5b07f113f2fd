# %% [markdown]
# # Is the upgrade safe?
#
# vLLM 0.23 to 0.33 on a hybrid with MTP (blocks of 1,536), from the committed baselines: what each release changed, to
# the token, for the same prompts.

# %%
from itertools import pairwise
from pathlib import Path

import pandas as pd

import harness
from harness.baseline import ABOUT, BASELINES
from harness.compare.comparison import compare
from harness.compare.show import change_groups
from harness.compare.sides import read_side
from harness.drawing import Inline
from harness.figures import ledger_difference
from harness.store import load_run

ROOT = Path(harness.__file__).parent.parent / BASELINES
RELEASES = ("0.23", "0.26", "0.30", "0.32", "0.33")

# %% [markdown]
# The verdict on each step. A longer hit is a change like a shorter one: somebody should look, and accept it.

# %%
steps = {
    f"{old} -> {new}": compare(read_side(str(ROOT / f"vllm-{old}")), read_side(str(ROOT / f"vllm-{new}")), about=ABOUT)
    for old, new in pairwise(RELEASES)
}
rows = []
for step, seen in steps.items():
    reused = [(cell.base_reused or 0, cell.candidate_reused or 0) for cell in seen.cells]
    rows.append(
        {
            "step": step,
            "verdict": seen.verdict.value,
            "changed sends": len(seen.changes),
            "reused before": sum(before for before, _ in reused),
            "reused after": sum(after for _, after in reused),
        }
    )
pd.DataFrame(rows).set_index("step")

# %% [markdown]
# What happened, in words: sends that changed alike are one line.

# %%
words = [
    {"step": step, "sends": group.sends, "hit": group.hits, "what changed": group.sentence}
    for step, seen in steps.items()
    for group in change_groups(seen.changes)
]
pd.set_option("display.max_colwidth", None)
pd.DataFrame(words).set_index("step")

# %% [markdown]
# From the first to the last release, send by send: tokens of each cause, less to the left and more to the right. What
# 0.23 "reuses" at exact multiples of the block was never backed by every layer; its records carry the finding.

# %%
first, last = (load_run(ROOT / f"vllm-{release}").requests for release in (RELEASES[0], RELEASES[-1]))
Inline(ledger_difference(first, last))
