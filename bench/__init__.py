"""Measurements: ``python -m bench.NAME [--data DIR] [--json FILE] [--quick]``. Each prints a table and can write its rows."""
