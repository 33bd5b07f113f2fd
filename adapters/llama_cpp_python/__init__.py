"""llama-cpp-python: llama.cpp in process, with a prefix logic of its own."""
