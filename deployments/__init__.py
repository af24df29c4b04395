"""Where each stage runs: the Serve deployments. With ``graph.py`` the only code that imports ray."""

import os

# Ray asks for a token by default, and a driver must be told to send it. Ray reads this once, when it is imported, and so it
# stands here: before whatever module of this package imports ray. A cluster without tokens: RAY_AUTH_MODE=disabled.
os.environ.setdefault("RAY_AUTH_MODE", "token")
