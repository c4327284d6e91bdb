"""Commands of people who operate the fleet: users, proposals, the audit, the pilot."""
