"""The gate's nouns: the actions that it judges, `Policy`, and `Proposal`."""
