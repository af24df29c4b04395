"""Conversations: what was asked and answered, kept in a database, and sent along with the next question."""
