"""The agent's loop in several systems: ``steps`` are the same for all, a module is a system, ``worker`` runs one."""
