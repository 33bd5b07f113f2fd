# %% [markdown]
# # Five answers to one prompt
#
# The committed example run (`results/quickstart-all/example`): four prompts, the same token IDs for every engine, and
# who reused what. Any other run folder works as well.

# %%
from pathlib import Path

import harness
from harness.data import load
from harness.drawing import Inline
from harness.figures import ledger_bars, position_strip
from harness.store import load_run
from vocabulary.ledger import Cause

folder = Path(harness.__file__).parent.parent / "results" / "quickstart-all" / "example"
requests = load(folder)
answers = requests[(requests.role == "probe") & (requests.workload == "five-answers")]

# %% [markdown]
# Hit length of each send, in tokens. All are right, each by its own rule.

# %%
sends = answers.assign(send=answers.label + " #" + (answers.repetition + 1).astype(str))
sends.pivot(index="engine_label", columns="send", values="hit_len")

# %% [markdown]
# Why not more: tokens by cause, summed over the sends.

# %%
causes = [f"{cause.value}_tokens" for cause in Cause]
totals = answers.groupby("engine_label")[causes].sum()
totals.loc[:, (totals > 0).any()]

# %% [markdown]
# The same, request by request.

# %%
records = [r for r in load_run(folder).requests if r.role == "probe" and r.workload == "five-answers"]
Inline(ledger_bars(records))

# %% [markdown]
# Where each engine really started to compute: cold, at the first and at the second repeat.

# %%
Inline(position_strip(records))
