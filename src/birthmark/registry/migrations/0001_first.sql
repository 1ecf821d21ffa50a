-- What an installation remembers between runs. Times are UTC, ISO 8601.
-- Written by the supervisor that holds the newest epoch; read by every command.

CREATE TABLE installations (
    id TEXT PRIMARY KEY,
    home TEXT NOT NULL,
    created_at TEXT NOT NULL,
    -- Grows by one with each supervisor; a write that carries an older one is refused.
    epoch INTEGER NOT NULL DEFAULT 0,
    -- Identity of the supervisor that holds the epoch, as JSON; NULL once it has left in order.
    owner TEXT,
    owned_at TEXT
);

CREATE TABLE services (
    installation TEXT NOT NULL REFERENCES installations (id),
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    desired TEXT NOT NULL,
    -- The specification as JSON, without the value of any secret.
    spec TEXT NOT NULL,
    digest TEXT NOT NULL,
    changed_at TEXT NOT NULL,
    PRIMARY KEY (installation, name)
);

CREATE TABLE births (
    id TEXT PRIMARY KEY,
    installation TEXT NOT NULL REFERENCES installations (id),
    service TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- intended -> born -> ended or lost
    state TEXT NOT NULL CHECK (state IN ('intended', 'born', 'ended', 'lost')),
    epoch INTEGER NOT NULL,
    -- Identity of the leader as JSON; NULL until it was born.
    identity TEXT,
    intended_at TEXT NOT NULL,
    born_at TEXT,
    ended_at TEXT,
    -- Exit status as JSON; NULL while it lives, and when nobody saw it end.
    exit TEXT,
    why TEXT
);

CREATE INDEX births_open ON births (installation, state) WHERE state IN ('intended', 'born');
CREATE INDEX births_of_service ON births (installation, service, intended_at);

CREATE TABLE port_leases (
    installation TEXT NOT NULL REFERENCES installations (id),
    port INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    service TEXT NOT NULL,
    leased_at TEXT NOT NULL,
    PRIMARY KEY (installation, port)
);

CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    installation TEXT NOT NULL REFERENCES installations (id),
    at TEXT NOT NULL,
    -- One signal sent or refused, or one decision, as JSON.
    entry TEXT NOT NULL
);

-- Append-only: what was asked and done stays as it was written.
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE (ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_is_never_removed BEFORE DELETE ON audit
BEGIN SELECT RAISE (ABORT, 'the audit is append-only'); END;
