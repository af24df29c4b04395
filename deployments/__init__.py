"""Where each stage runs: the Serve deployments. With ``graph.py`` the only code that imports ray."""
