"""One workload family per module: a parameter model and a pure function from it to sends."""
