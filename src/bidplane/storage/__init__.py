"""
SQLite and PostgreSQL, the hash chain, and encryption at rest. The only importer of the databases.
"""
