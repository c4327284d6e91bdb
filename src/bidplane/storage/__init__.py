"""
SQLite and PostgreSQL, one connection each, behind the types of `values`; the hash `chain`;
encryption at rest (`sealing`).

May touch files, databases and a key service's command; knows bytes and rows, and not whose they
are. Databases are opened here, and in `plane.storage`, whose files have their own layout.
"""
