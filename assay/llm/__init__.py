"""Language models over HTTP, and what every engine shares: reasoning kept apart, tool calls checked, unicode made whole."""
