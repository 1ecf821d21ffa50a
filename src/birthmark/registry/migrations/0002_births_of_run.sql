-- Births that no supervisor started: `birthmark run` keeps their papers as files, which are taken in here.

-- Who spawned it: 'up' or 'run'. The epoch of the latter is 0, since no supervisor had it.
ALTER TABLE births ADD COLUMN origin TEXT NOT NULL DEFAULT 'up' CHECK (origin IN ('up', 'run'));
