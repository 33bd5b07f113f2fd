# %% [markdown]
# # Why 0 % here?
#
# One prompt of 3,072 tokens, sent three times to a hybrid model in blocks of 1,536 (full attention and a recurrent
# state). Four releases, four answers: the block, the cap of the last token, the drafter's drop, where a state exists.
# Only laws are asked; nothing is started.

# %%
import pandas as pd

from harness.drawing import Inline
from harness.figures import resume_figure, resume_points
from reference_engine.laws.registry import make_law
from vocabulary.engine import TokenRequest

GROUPS = ["full:1536", "gdn:1536"]
MTP = {"method": "mtp", "num_speculative_tokens": 1}
LAWS = ("vllm@0.23", "vllm@0.26", "vllm@0.32", "vllm@0.33")


def answers(law_id: str, length: int, **options: object) -> list[str]:
    """Hit of three sends and what binds the last one."""
    law = make_law(law_id, {"groups": GROUPS, **options})
    found = []
    for number in range(3):
        request = TokenRequest(request_id=str(number), ids=tuple(range(length)))
        expectation = law.send(request)
        law.finish(request, (1,))
        unbacked = expectation.backed_len not in (None, expectation.hit_len)
        found.append(f"{expectation.hit_len}{' UNBACKED' if unbacked else ''}")
    return [*found, expectation.binding.value if expectation.binding else "-"]


# %% [markdown]
# An exact multiple of the block, one token more, and the same with a drafter.

# %%
rows = []
for law_id in LAWS:
    for what, length, options in (("3072", 3072, {}), ("3073", 3073, {}), ("3073 with MTP", 3073, MTP)):
        first, second, third, binding = answers(law_id, length, **options)
        rows.append({"law": law_id, "prompt": what, "1st": first, "2nd": second, "3rd": third, "binding": binding})
pd.DataFrame(rows).set_index(["law", "prompt"])

# %% [markdown]
# The last token has to be computed, so 3,072 tokens may reuse 3,071 at most: one block. The state of 3,072 lies behind
# that cap. A release that keeps no state at 1,536 answers 0, one that notes the junction 1,536 at the third send.
# Where could a sibling of a cached prompt of 4,000 tokens resume?

# %%
points = []
for law_id, options in (("vllm@0.32", {}), ("vllm@0.32", {"max_num_batched_tokens": 512})):
    law = make_law(law_id, {"groups": ["full:512", "gdn:512"], "prefix_cache_retention_interval": None, **options})
    request = TokenRequest(request_id="cached", ids=tuple(range(4000)))
    law.send(request)
    law.finish(request, (1,))
    name = f"{law_id}, {options.get('max_num_batched_tokens', 8192)} tokens a step"
    points.append(resume_points(name, law, range(4000), step=16))
Inline(resume_figure(points))
