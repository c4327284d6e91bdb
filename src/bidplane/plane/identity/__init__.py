"""Authorization in a plane: roles, service accounts, client certificates."""
