"""Measurements: ``python -m bench.NAME [--data DIR] [--json FILE] [--quick]``. Each prints a table and can write its rows."""

import os

# Ray reads it once, when it is imported: a bench that connects to the graph that it started has to send Ray's token.
os.environ.setdefault("RAY_AUTH_MODE", "token")
