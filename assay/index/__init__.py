"""The index: what is stored, how it is searched, and how documents get into it. Heavy libraries load on first use."""
