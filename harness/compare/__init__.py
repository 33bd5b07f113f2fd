"""Two configurations request by request: integers exactly, latencies by paired statistics, a verdict for CI."""
