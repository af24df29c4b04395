"""The systems that ``bench.search_peers`` compares, each behind ``worker.System`` in a process of its own."""
