"""The tables of jobs in PostgreSQL, and the statements that change them.

    chainrule_jobs              a row per job; small bodies and answers in it
    chainrule_jobs_waiting      the jobs that no server has taken: what is taken is looked for here only
    chainrule_jobs_log          what components printed, in pieces
    chainrule_jobs_tally        how many jobs there are of each state, counted by a trigger
    chainrule_jobs_servers      which servers run jobs of a component
    chainrule_jobs_format       the version of these tables
    chainrule_jobs_store        the id of these jobs
    chainrule_jobs_place        the name of what marks the place of large bodies, once there is one

What a server changes of a job that it holds is fenced: the statement names the owner, so that it changes
nothing after the job was taken away. Times are those of the database (`now()`).

Every statement may be repeated. So when a connection breaks, and it is not known whether the statement before
was done, it is done again on the next connection.
"""

from __future__ import annotations

from chainrule.serve._jobs._store import COLUMNS, MAX_ATTEMPTS

VERSION = 2
CHANNEL = "chainrule_jobs"
WORK = "work"
_TYPES = {
    "is_idempotent": "boolean NOT NULL",
    "attempts": "integer NOT NULL",
    "fraction": "double precision",
    "submitted_at": "double precision NOT NULL",
    "started_at": "double precision",
    "finished_at": "double precision",
    "result_status": "integer",
    "result_bytes": "bigint",
}
NOW = "extract(epoch FROM now())::double precision"
# What the second version adds.
SECOND = """
CREATE TABLE chainrule_jobs_servers (
    component text, owner text, alive_until timestamptz NOT NULL, PRIMARY KEY (component, owner)
);
CREATE INDEX chainrule_jobs_by_component ON chainrule_jobs (component, number);
CREATE INDEX chainrule_jobs_by_component_and_state ON chainrule_jobs (component, state, number);
"""
SCHEMA = f"""
CREATE TABLE chainrule_jobs (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    {", ".join(f"{name} {_TYPES.get(name, 'text')}" for name in COLUMNS)},
    owner text, lease_until timestamptz, cancel_asked boolean NOT NULL DEFAULT false,
    request bytea, request_object text, result bytea, result_object text
);
CREATE UNIQUE INDEX chainrule_jobs_by_id ON chainrule_jobs (id);
CREATE UNIQUE INDEX chainrule_jobs_by_key ON chainrule_jobs (component, endpoint, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX chainrule_jobs_by_state ON chainrule_jobs (state, number);
CREATE INDEX chainrule_jobs_by_lease ON chainrule_jobs (lease_until) WHERE owner IS NOT NULL;
CREATE INDEX chainrule_jobs_by_end ON chainrule_jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX chainrule_jobs_by_result ON chainrule_jobs (number) WHERE result_bytes IS NOT NULL;
CREATE TABLE chainrule_jobs_waiting (
    component text, number bigint, PRIMARY KEY (component, number)
);
CREATE TABLE chainrule_jobs_log (
    number bigint REFERENCES chainrule_jobs ON DELETE CASCADE, part bigint, content bytea NOT NULL,
    PRIMARY KEY (number, part)
);
-- Each connection counts in rows of its own (`shard`): no two transactions wait for one counter.
CREATE TABLE chainrule_jobs_tally (
    shard integer, component text, name text, n bigint NOT NULL, PRIMARY KEY (shard, component, name)
);
CREATE FUNCTION chainrule_jobs_count() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before record; afterwards record;
BEGIN
    IF TG_OP <> 'INSERT' THEN before := OLD; ELSE before := NEW; END IF;
    IF TG_OP <> 'DELETE' THEN afterwards := NEW; ELSE afterwards := OLD; END IF;
    INSERT INTO chainrule_jobs_tally AS t (shard, component, name, n)
        SELECT pg_backend_pid(), before.component, change.name, sum(change.n) FROM (VALUES
            (before.state, CASE WHEN TG_OP = 'INSERT' THEN 0 ELSE -1 END),
            (afterwards.state, CASE WHEN TG_OP = 'DELETE' THEN 0 ELSE 1 END),
            ('bytes', CASE WHEN TG_OP = 'INSERT' THEN 0 ELSE -coalesce(before.result_bytes, 0) END),
            ('bytes', CASE WHEN TG_OP = 'DELETE' THEN 0 ELSE coalesce(afterwards.result_bytes, 0) END)
        ) AS change (name, n) GROUP BY change.name HAVING sum(change.n) <> 0
        ON CONFLICT (shard, component, name) DO UPDATE SET n = t.n + EXCLUDED.n;
    RETURN NULL;
END $$;
CREATE TRIGGER chainrule_jobs_counted AFTER INSERT OR DELETE OR UPDATE OF state, result_bytes
    ON chainrule_jobs FOR EACH ROW EXECUTE FUNCTION chainrule_jobs_count();
{SECOND}
CREATE TABLE chainrule_jobs_format (version integer NOT NULL);
INSERT INTO chainrule_jobs_format VALUES ({VERSION});
"""
# Of names of bodies, those that their rows do not have.
UNNAMED = """
SELECT name FROM unnest(%s::text[]) AS name WHERE NOT EXISTS (
    SELECT 1 FROM chainrule_jobs
    WHERE id = split_part(name, '-', 1) AND name IN (request_object, result_object))
"""

FIELDS = ", ".join(f"chainrule_jobs.{name}" for name in COLUMNS)
ADD = f"""
WITH job AS (
    INSERT INTO chainrule_jobs (request, request_object, {", ".join(COLUMNS)})
    VALUES (%(request)s, %(request_object)s,
            {", ".join(NOW if name == "submitted_at" else f"%({name})s" for name in COLUMNS)})
    ON CONFLICT DO NOTHING RETURNING number, component
), waits AS (INSERT INTO chainrule_jobs_waiting (component, number) SELECT component, number FROM job)
SELECT pg_notify('{CHANNEL}', '{WORK}') FROM job
"""
# In a table of its own: on the table of jobs, the planner prefers to walk through all that are over.
TAKE = f"""
WITH taken AS (
    DELETE FROM chainrule_jobs_waiting WHERE (component, number) = (
        SELECT component, number FROM chainrule_jobs_waiting WHERE component = %(component)s
        ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING number)
UPDATE chainrule_jobs SET owner = %(owner)s, lease_until = now() + make_interval(secs => %(lease)s)
    FROM taken WHERE chainrule_jobs.number = taken.number RETURNING {FIELDS}
"""
QUEUES = f"""
SELECT queue.component, queue.waiting, {NOW} - chainrule_jobs.submitted_at, (
    SELECT count(*) FROM chainrule_jobs_servers AS server
    WHERE server.component = queue.component AND alive_until > now())
FROM (
    SELECT component, count(*) AS waiting, min(number) AS number
    FROM chainrule_jobs_waiting GROUP BY component) AS queue
JOIN chainrule_jobs ON chainrule_jobs.number = queue.number
"""
LIVE = """
INSERT INTO chainrule_jobs_servers (component, owner, alive_until)
    SELECT component, %(owner)s, now() + make_interval(secs => %(lease)s)
    FROM unnest(%(components)s::text[]) AS component
    ON CONFLICT (component, owner) DO UPDATE SET alive_until = EXCLUDED.alive_until
"""
WITHDRAW = f"""
WITH taken AS (
    DELETE FROM chainrule_jobs_waiting
    WHERE number = (SELECT number FROM chainrule_jobs WHERE id = %(id)s)
        AND component = (SELECT component FROM chainrule_jobs WHERE id = %(id)s)
    RETURNING number)
UPDATE chainrule_jobs SET owner = %(owner)s, lease_until = now() + make_interval(secs => %(lease)s),
    cancel_asked = true
    FROM taken WHERE chainrule_jobs.number = taken.number RETURNING {FIELDS}
"""
FORGET = """
WITH taken AS (
    DELETE FROM chainrule_jobs_waiting
    WHERE number = (SELECT number FROM chainrule_jobs WHERE id = %(id)s)
        AND component = (SELECT component FROM chainrule_jobs WHERE id = %(id)s)
    RETURNING number)
DELETE FROM chainrule_jobs USING taken WHERE chainrule_jobs.number = taken.number
    RETURNING chainrule_jobs.request_object
"""
GIVE_BACK = f"""
WITH given AS (
    UPDATE chainrule_jobs SET owner = NULL, lease_until = NULL
    WHERE id = ANY(%(ids)s) AND owner = %(owner)s RETURNING component, number
), waits AS (INSERT INTO chainrule_jobs_waiting (component, number) SELECT component, number FROM given)
SELECT pg_notify('{CHANNEL}', '{WORK}') FROM given LIMIT 1
"""
# Repeated, it counts one attempt too many; that is only a bound.
START = f"""
WITH job AS (
    UPDATE chainrule_jobs SET state = 'running', started_at = {NOW}, attempts = attempts + 1
    WHERE id = %(id)s AND owner = %(owner)s AND NOT state = ANY(%(final)s)
    RETURNING started_at, attempts)
SELECT started_at, attempts, pg_notify('{CHANNEL}', %(id)s) FROM job
"""
ENDED = (
    "state", "fraction", "message", "error_code", "error_message", "result_status", "result_type",
    "result_bytes", "result_digest",
)  # fmt: skip
FINISH = f"""
WITH job AS (
    UPDATE chainrule_jobs SET {", ".join(f"{name} = %({name})s" for name in ENDED)},
        finished_at = {NOW}, lease_until = NULL, request = NULL, request_object = NULL,
        result = %(result)s, result_object = %(result_object)s
    WHERE id = %(id)s AND owner = %(owner)s AND NOT state = ANY(%(final)s)
    RETURNING finished_at)
SELECT finished_at, pg_notify('{CHANNEL}', %(id)s) FROM job
"""
RENEW = """
UPDATE chainrule_jobs SET lease_until = now() + make_interval(secs => %(lease)s)
    WHERE id = ANY(%(ids)s) AND owner = %(owner)s AND NOT state = ANY(%(final)s) RETURNING id
"""
REPORT = f"""
WITH job AS (
    UPDATE chainrule_jobs SET fraction = %(fraction)s, message = %(message)s
    WHERE id = %(id)s AND owner = %(owner)s AND state = 'running' RETURNING id)
SELECT pg_notify('{CHANNEL}', id) FROM job
"""
APPEND = """
INSERT INTO chainrule_jobs_log (number, part, content)
    SELECT number, %(part)s, %(content)s FROM chainrule_jobs WHERE id = %(id)s ON CONFLICT DO NOTHING
"""
LOG = """
SELECT content, first FROM (
    SELECT part, content,
        (sum(octet_length(content)) OVER (ORDER BY part) - octet_length(content))::bigint AS first
    FROM chainrule_jobs_log WHERE number = (SELECT number FROM chainrule_jobs WHERE id = %s)) AS pieces
WHERE first + octet_length(content) > %s ORDER BY part
"""
# Leases that are over. A job whose cancellation was asked for is cancelled. What has not been started, or may
# run twice, waits again at its old place; all else may have run, and has failed.
EXPIRED = f"""
WITH lost AS (
    SELECT number, CASE WHEN cancel_asked THEN 'cancelled'
        WHEN state = 'queued' OR is_idempotent AND attempts < {MAX_ATTEMPTS} THEN 'waits'
        ELSE 'failed' END AS becomes
    FROM chainrule_jobs WHERE owner IS NOT NULL AND lease_until < now() AND NOT state = ANY(%(final)s)
    FOR UPDATE SKIP LOCKED
), ended AS (
    UPDATE chainrule_jobs SET state = lost.becomes, finished_at = {NOW}, lease_until = NULL,
        owner = NULL, request = NULL,
        error_code = CASE WHEN lost.becomes = 'failed' THEN 'server_stopped' END,
        error_message = CASE WHEN lost.becomes = 'failed' THEN %(stopped)s END
    FROM lost WHERE chainrule_jobs.number = lost.number AND lost.becomes <> 'waits'
    RETURNING id, request_object
), again AS (
    UPDATE chainrule_jobs SET owner = NULL, lease_until = NULL
    FROM lost WHERE chainrule_jobs.number = lost.number AND lost.becomes = 'waits'
    RETURNING chainrule_jobs.component, chainrule_jobs.number
), waits AS (INSERT INTO chainrule_jobs_waiting (component, number) SELECT component, number FROM again)
SELECT pg_notify('{CHANNEL}', id), request_object FROM ended
UNION ALL (SELECT pg_notify('{CHANNEL}', '{WORK}'), NULL FROM again LIMIT 1)
"""
# A place in the queue: counted for one job, numbered in one pass for a list.
PLACE = """
CASE WHEN state = 'queued' AND owner IS NULL THEN (
    SELECT count(*) FROM chainrule_jobs_waiting AS before
    WHERE before.component = chainrule_jobs.component AND before.number < chainrule_jobs.number) END
"""
PLACES = """
(SELECT number, row_number() OVER (PARTITION BY component ORDER BY number) - 1 AS place
    FROM chainrule_jobs_waiting)
"""
