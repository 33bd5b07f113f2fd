"""One folder per engine: how to start it, speak to it and read it. Adapters encode and decode; they never judge."""
