"""The audit's table, as SQLite reads it, and the triggers that keep it append-only."""

from __future__ import annotations

AUDIT_TABLE = """
CREATE TABLE IF NOT EXISTS audit (
    sequence INTEGER PRIMARY KEY, at INTEGER NOT NULL, event TEXT NOT NULL,
    subject TEXT NOT NULL, actor TEXT NOT NULL, role TEXT NOT NULL,
    action TEXT NOT NULL, target TEXT NOT NULL, digest TEXT NOT NULL,
    reason TEXT NOT NULL, message TEXT NOT NULL, policy TEXT NOT NULL,
    devices INTEGER NOT NULL, pods INTEGER NOT NULL, agents INTEGER NOT NULL,
    spend INTEGER NOT NULL, detail TEXT NOT NULL, hash BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS audit_subject ON audit (subject, sequence);
CREATE INDEX IF NOT EXISTS audit_at ON audit (at);
"""

SQLITE_TRIGGERS = """
CREATE TRIGGER IF NOT EXISTS audit_is_never_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE (ABORT, 'an entry of the audit is never changed'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_never_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE (ABORT, 'an entry of the audit is never deleted'); END;
"""

POSTGRES_TRIGGERS = """
CREATE OR REPLACE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an entry of the audit is never changed or deleted'
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
DROP TRIGGER IF EXISTS audit_is_append_only ON audit;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();
"""
