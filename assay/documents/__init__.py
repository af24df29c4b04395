"""Documents over HTTP: uploads that become jobs, what the index holds, and how it is read."""
