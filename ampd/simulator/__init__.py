"""The same policies and cost functions on a virtual clock."""
