"""Makes transformers-5.19.0.json: run with a Python that has transformers.

python render_with_transformers.py MODEL_FOLDER < {"template": ..., "bodies": [...]} > transformers-VERSION.json
"""

import json
import sys

from transformers import AutoTokenizer

given = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
found = []
for body in json.loads(json.dumps(given["bodies"])):
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    text = tokenizer.apply_chat_template(
        body["messages"],
        chat_template=given["template"],
        tools=body.get("tools"),
        tokenize=False,
        add_generation_prompt=body.get("add_generation_prompt", True),
    )
    found.append(tokenizer.encode(text, add_special_tokens=False))
json.dump(given | {"ids": found}, sys.stdout)
