"""llama.cpp's server: started from the xllamacpp wheel or a llama-server executable, or attached to by URL."""
