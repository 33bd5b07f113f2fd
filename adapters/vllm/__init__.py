"""vLLM: its OpenAI server, launched or attached to, and in process; positions and prefill steps from its scheduler."""
