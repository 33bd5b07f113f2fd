"""Logs of served traffic as requests with token IDs.

base.py       one logged request, and the order of arrival
vllm.py       vLLM's request logger
sglang.py     SGLang's request logger, text or JSON
llama_cpp.py  llama-server's slot log: lengths and what slots kept, no IDs
openai.py     bodies of the OpenAI API, tokenised with a model's own tokenizer and chat template
hashing.py    IDs replaced under a key
"""
