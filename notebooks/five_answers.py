# %% [markdown]
# # Five answers to one prompt
#
# Reads the committed example run (`results/quickstart-all/example`), or any run folder given as the first argument,
# and shows who reused what. Open it with jupytext, or run it as a script: `python notebooks/five_answers.py`.

# %%
import sys
from pathlib import Path

import pandas as pd

from harness.drawing import save_figure
from harness.figures import ledger_bars
from harness.records import Role
from harness.store import load_run

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "results" / "quickstart-all" / "example"
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLE
run = load_run(folder)
answers = [r for r in run.requests if r.role is Role.PROBE and r.workload == "five-answers"]

# %% [markdown]
# Hit length of each send. The prompts are the same token IDs for every engine.

# %%
rows = pd.DataFrame(
    [{"send": f"{r.label} #{r.repetition + 1}", "engine": r.engine_label, "hit": r.hit_len} for r in answers]
)
print(rows.pivot(index="engine", columns="send", values="hit"))

# %% [markdown]
# Why not more: tokens by cause.

# %%
causes = pd.DataFrame([{"engine": r.engine_label} | {str(c): n for c, n in r.by_cause().items()} for r in answers])
print(causes.groupby("engine").sum().astype(int))

# %%
print(*save_figure(ledger_bars(answers), Path.cwd(), "five-answers"), sep="\n")
