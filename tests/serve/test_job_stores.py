"""What every store of jobs promises: for one server in files, for several in a database."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from chainrule.errors import ChainruleError, DefinitionError, StorageError
from chainrule.serve._jobs._files import FileJobStore
from chainrule.serve._jobs._store import JobRecord, LeaseLostError, body_digest

LARGE = 100_000  # bytes that do not travel in a row


class Heard:
    """What a store has told its server."""

    def __init__(self):
        self.told = []
        self._came = threading.Condition()

    def _tell(self, *what):
        with self._came:
            self.told.append(what)
            self._came.notify_all()

    def work_came(self):
        self._tell("work")

    def job_changed(self, job_id):
        self._tell("changed", job_id)

    def cancel_asked(self, job_id):
        self._tell("cancel", job_id)

    def lease_lost(self, job_id):
        self._tell("lost", job_id)

    def wait_for(self, *what):
        with self._came:
            assert self._came.wait_for(lambda: what in self.told, timeout=300)


@pytest.fixture(params=["files", "database", "database and folder"])
def make_store(request, tmp_path):
    """Makes stores of the same jobs; those that are open are closed at the end."""
    opened = []
    if request.param == "files":

        def make(**settings):
            return FileJobStore(tmp_path / "jobs", **settings)

    else:
        pytest.importorskip("psycopg")
        url = request.getfixturevalue("postgres").new_schema()
        objects = str(tmp_path / "bodies") if "folder" in request.param else None

        def make(**settings):
            from chainrule.serve._jobs._postgres import PostgresJobStore

            return PostgresJobStore(url, objects=objects, **{"lease_s": 30, **settings})

    def open_store(**settings):
        store = make(**{"retention_s": 3600, "max_bytes": 1 << 30, **settings})
        store.heard = Heard()
        store.open(store.heard, {"c"})
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        with suppress(OSError):  # a test closed it
            store.close()


@pytest.fixture
def store(make_store):
    return make_store()


def record_of(body, **facts):
    given = {"component": "c", "endpoint": "apply", "run_id": "r", "content_type": "t", **facts}
    return JobRecord(**given, body_digest=body_digest(body))


def add(store, body=b"body", max_waiting=1000, **facts):
    return store.add(record_of(body, **facts), body, max_waiting=max_waiting)


def end(store, record, result=b"result", state="succeeded", **facts):
    record = replace(
        record, state=state, result_status=200, result_type="t", result_bytes=len(result), **facts
    )
    return store.finish(record, [result[:3], result[3:]])


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_a_job_from_its_queue_to_its_result(store, size):
    body, result = b"b" * size, b"r" * size
    added = add(store, body, accept="a", traceparent="p", idempotency_key="k")
    assert (added.state, added.queue_position, store.get(added.id)) == ("queued", 0, added)
    taken = store.take("c")
    assert taken == added
    assert store.get(added.id).queue_position is None
    assert store.take("c") is None
    assert store.body(taken) == body
    running = store.start(taken)
    assert store.get(added.id) == running
    assert (running.state, running.attempts) == ("running", 1)
    ended = end(store, running, result, fraction=1.0, message="half a pair \udc00\0")
    assert store.get(added.id) == replace(ended, message="half a pair ?\ufffd")
    ended = store.get(added.id)
    assert ended.submitted_at <= ended.started_at <= ended.finished_at
    assert store.result(ended) == result
    assert store.newest(10) == store.newest(10, state="succeeded") == [ended]
    assert store.newest(10, state="queued") == []


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_a_job_is_forgotten_while_it_waits_and_not_later(store, size):
    waits, taken, over = (add(store, b"b" * size, idempotency_key=k) for k in "abc")
    end(store, store.start(store.take("c")))
    assert store.forget(taken.id)
    assert store.get(taken.id) is None
    assert add(store, b"b" * size, idempotency_key="b").id != taken.id, "its key is new again"
    assert store.take("c") == over
    for job in (waits, over):
        assert not store.forget(job.id)
    assert not store.forget("unknown")
    assert store.counts()["succeeded"] == 1
    assert store.counts()["queued"] == 2
    assert store.body(over) == b"b" * size


def test_the_jobs_have_an_id_of_their_own(make_store, tmp_path):
    """The next server with these jobs knows their keys, and so does one that shares them."""
    first = make_store()
    if first.is_shared:
        assert make_store().id == first.id
    first.close()
    assert make_store().id == first.id
    other = FileJobStore(tmp_path / "other", retention_s=1, max_bytes=1)
    assert other.id != first.id
    other.close()


def test_jobs_of_a_component_run_in_their_order(store):
    ids = [add(store, component=c).id for c in "abaabb"]
    queues = store.queues()
    assert {name: queue.waiting for name, queue in queues.items()} == {"a": 3, "b": 3}
    assert all(0 <= queue.oldest_s < 3600 for queue in queues.values())
    places = {job.id: job.queue_position for job in store.newest(10)}
    assert [places[i] for i in ids] == [0, 0, 1, 2, 1, 2]
    assert [store.get(i).queue_position for i in ids] == [0, 0, 1, 2, 1, 2]
    first = store.take("a")
    assert first.id == ids[0]
    assert store.withdraw(ids[2]).id == ids[2]
    store.give_back(first)
    assert [store.take("a").id for _ in range(2)] == [ids[0], ids[3]]
    assert store.take("a") is None
    assert [store.take("b").id for _ in range(3)] == [ids[1], ids[4], ids[5]]
    assert store.queues() == {}


def test_the_list_by_component_and_state(store):
    ids = [add(store, component=c).id for c in "abab"]
    store.start(store.take("a"))

    def listed(**wanted):
        return [ids.index(job.id) for job in store.newest(10, **wanted)]

    assert listed(component="a") == [2, 0]
    assert listed(component="b", state="queued") == [3, 1]
    assert listed(component="a", state="running") == [0]
    assert listed(component="c") == listed(component="\0") == []
    assert len(store.newest(1, component="b")) == 1


def test_a_key_belongs_to_one_job(store):
    first = add(store, idempotency_key="k")
    assert add(store, b"another body", idempotency_key="k") == first
    assert add(store, idempotency_key="k", endpoint="jacobian").id != first.id
    assert add(store, idempotency_key="k", component="d").id != first.id
    ended = end(store, store.start(store.take("c")))
    assert add(store, idempotency_key="k") == ended
    assert store.counts()["queued"] == 2


def test_a_full_queue_knows_its_keys(store):
    known = add(store, max_waiting=1, idempotency_key="k")
    with pytest.raises(ChainruleError, match="1 jobs wait already") as full:
        add(store, max_waiting=1)
    assert (full.value.code, full.value.http_status) == ("queue_full", 503)
    assert add(store, max_waiting=1, idempotency_key="k").id == known.id
    assert add(store, max_waiting=1, component="d").component == "d"


def test_counts_are_those_of_a_scan(store):
    for _ in range(6):
        add(store)
    taken = [store.take("c") for _ in range(4)]
    started = [store.start(job) for job in taken[:3]]
    end(store, started[0])
    end(store, started[1], state="failed", error_code="e", error_message="m")
    end(store, taken[3], state="cancelled")
    store.sweep()
    expected = {"queued": 2, "running": 1, "succeeded": 1, "failed": 1, "cancelled": 1}
    assert store.counts() == expected
    other = add(store, component="d")
    store.withdraw(other.id)
    assert {key: n for key, n in store.tally().items() if n} == {
        **{("c", state): n for state, n in expected.items()}, ("d", "queued"): 1,
    }  # fmt: skip
    end(store, other, state="cancelled")
    assert store.tally()["d", "cancelled"] == 1
    expected = {**expected, "cancelled": 2}
    assert store.counts() == expected
    assert {s: len(store.newest(100, state=s)) for s in expected} == expected


def test_a_job_that_is_cancelled_while_another_thread_holds_it(store):
    job = add(store)
    held = store.take("c")
    assert store.withdraw(job.id) is None
    store.heard.wait_for("cancel", job.id)
    end(store, held, state="cancelled")
    assert store.withdraw(job.id) is None
    assert store.get(job.id).state == "cancelled"


def test_a_log_is_read_from_anywhere(store):
    job = add(store)
    log = store.log_writer(store.take("c"))
    assert store.log(job.id) == b""
    for piece in (b"one\n", b"tw", b"o\nthree"):
        log.write(piece)
        log.flush()
    whole = b"one\ntwo\nthree"
    assert [store.log(job.id, n) for n in range(15)] == [whole[n:] for n in range(15)]


class _BreaksAfterwards:
    """A connection that does what it is told, and breaks before it can say so."""

    def __init__(self, connection, error):
        self._connection, self._error = connection, error

    def execute(self, *statement):
        self._connection.execute(*statement)
        raise self._error


def test_a_log_is_whole_though_a_connection_broke(request):
    psycopg = pytest.importorskip("psycopg")
    from chainrule.serve._jobs._postgres import PostgresJobStore

    url = request.getfixturevalue("postgres").new_schema()
    facts = {"objects": None, "lease_s": 30, "retention_s": 3600, "max_bytes": 1 << 30}
    with closing(PostgresJobStore(url, **facts)) as store:
        job = add(store)
        log = store.log_writer(store.take("c"))
        log.write(b"one\n")
        error = psycopg.OperationalError("the server closed the connection unexpectedly")
        with (
            psycopg.connect(url, autocommit=True) as connection,
            pytest.raises(psycopg.OperationalError),
        ):
            log.flush_with(_BreaksAfterwards(connection, error))
        log.write(b"two\n")
        log.flush()
        assert store.log(job.id) == b"one\ntwo\n"


@pytest.mark.parametrize("size", [100, LARGE], ids=["small", "large"])
def test_the_oldest_results_go_first(make_store, size):
    store = make_store(max_bytes=2 * size + 50)
    jobs = []
    for _ in range(4):
        add(store)
        jobs.append(end(store, store.start(store.take("c")), b"x" * size))
    assert [store.result(job) for job in jobs] == [b"x" * size] * 4
    store.sweep()
    kept = [store.result(store.get(job.id)) is not None for job in jobs]
    assert kept == [False, False, True, True]
    assert store.counts()["succeeded"] == 4


def test_results_and_records_have_their_time(make_store):
    store = make_store(retention_s=0)
    job = add(store, b"b" * LARGE)
    log = store.log_writer(held := store.take("c"))
    log.write(b"line\n")
    log.flush()
    end(store, store.start(held), b"r" * LARGE)
    waiting = add(store)
    store.sweep()
    assert store.get(job.id) is None
    assert store.log(job.id) == b""
    assert store.get(waiting.id) == waiting
    assert store.counts() == {
        "queued": 1, "running": 0, "succeeded": 0, "failed": 0, "cancelled": 0,
    }  # fmt: skip


def test_what_is_not_what_was_stored_is_not_used(store):
    job = add(store)
    with pytest.raises(StorageError, match="was changed on disk") as damaged:
        store.body(replace(store.take("c"), body_digest="0"))
    assert damaged.value.code == "job_request_damaged"
    ended = end(store, store.start(job))
    with pytest.raises(StorageError) as damaged:
        store.result(replace(ended, result_digest="0"))
    assert damaged.value.code == "job_result_damaged"


def test_the_next_server(make_store):
    """It finds what waits; what may have run has failed, unless it may run twice, and that three times."""
    body = b"b" * LARGE
    store = make_store()
    jobs = {"done": add(store, body)}
    end(store, store.start(store.take("c")), b"r" * LARGE)
    for name, facts in {"ran": {}, "may run twice": {"is_idempotent": True}}.items():
        jobs[name] = add(store, body, **facts)
        store.start(store.take("c"))
    jobs["held"], jobs["waits"] = add(store, body), add(store, body)
    assert store.take("c").id == jobs["held"].id
    store.close()
    store = make_store()
    states = {name: store.get(job.id).state for name, job in jobs.items()}
    assert states == {
        "done": "succeeded", "ran": "failed", "may run twice": "running",
        "held": "queued", "waits": "queued",
    }  # fmt: skip
    failed = store.get(jobs["ran"].id)
    assert failed.error_code == "server_stopped"
    assert failed.finished_at is not None
    for attempt in (2, 3):
        again = store.take("c")
        assert again.id == jobs["may run twice"].id
        assert store.body(again) == body
        assert store.start(again).attempts == attempt
        store.close()
        store = make_store()
    assert store.get(jobs["may run twice"].id).error_code == "server_stopped"
    assert [store.take("c").id for _ in range(2)] == [jobs["held"].id, jobs["waits"].id]
    assert store.take("c") is None
    assert store.counts() == {
        "queued": 2, "running": 0, "succeeded": 1, "failed": 2, "cancelled": 0,
    }  # fmt: skip
    assert store.result(store.get(jobs["done"].id)) == b"r" * LARGE


def test_the_same_key_at_the_same_time(store):
    """Of eight threads as many as the store takes ask at the same time; all get one job."""
    found, gate = [], threading.Semaphore(store.threads)

    def ask():
        with gate:
            found.append(add(store, b"b" * LARGE, idempotency_key="k"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job in found}) == 1
    assert len(found) == 8
    assert store.counts()["queued"] == 1
    assert store.body(store.take("c")) == b"b" * LARGE


# Of files only


def test_what_a_killed_server_left_behind_is_removed(tmp_path):
    settings = {"retention_s": 3600, "max_bytes": 1000}
    store = FileJobStore(tmp_path, **settings)
    store.open(Heard(), {"c"})
    running, queued = (add(store, b"b" * LARGE) for _ in range(2))
    store.start(store.take("c"))
    store.close()
    (tmp_path / "unknown.request").write_bytes(b"never acknowledged")
    (tmp_path / ".half.result.partial").write_bytes(b"hal")
    store = FileJobStore(tmp_path, **settings)
    store.open(Heard(), {"c"})
    assert store.get(running.id).error_code == "server_stopped"
    assert store.body(queued) == b"b" * LARGE
    assert [path.name for path in tmp_path.glob("*.request")] == [f"{queued.id}.request"]
    assert not list(tmp_path.glob(".*.partial"))
    store.close()


def test_no_statement_of_a_folder_reads_all_jobs(tmp_path):
    """But of those that a server makes once, when it starts."""
    store = FileJobStore(tmp_path, retention_s=0, max_bytes=0)
    store.open(Heard(), {"c"})
    statements = []
    store._database.set_trace_callback(statements.append)
    job = add(store, idempotency_key="k")
    end(store, store.start(store.take("c")))
    store.counts()
    store.queues()
    store.newest(5), store.newest(5, state="failed"), store.get(job.id)
    store.newest(5, component="c"), store.newest(5, component="c", state="failed")
    store.sweep()
    store._database.set_trace_callback(None)
    asked = [s for s in statements if not s.startswith(("--", "EXPLAIN"))]
    assert len(asked) > 10
    for statement in asked:
        for *_, plan in store._database.execute(f"EXPLAIN QUERY PLAN {statement}"):
            is_bounded = "ORDER BY number DESC LIMIT" in statement
            assert not plan.startswith("SCAN jobs") or is_bounded, (plan, statement)
    store.close()


@pytest.mark.parametrize("version", [1, 2, 4])
def test_jobs_of_earlier_versions(tmp_path, version):
    """The first has no digest of results, the second counts nothing, the fourth counts without components."""
    store = FileJobStore(tmp_path, retention_s=3600, max_bytes=1000)
    store.open(Heard(), {"c"})
    for _ in range(3):
        add(store)
    job = end(store, store.start(store.take("c")))
    counts = store.counts()
    store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)) as database:
        for trigger in ("job_added", "job_moved", "result_kept", "job_removed"):
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("DROP TABLE tally")
        database.execute("DROP TABLE store")
        if version == 4:
            database.execute("CREATE TABLE tally (name TEXT PRIMARY KEY, n INTEGER NOT NULL)")
            database.execute(
                "CREATE TRIGGER job_added AFTER INSERT ON jobs BEGIN "
                "UPDATE tally SET n = n + 1 WHERE name = NEW.state; END"
            )
        else:
            later = ("jobs_by_component", "jobs_by_component_and_state")
            for index in ("jobs_by_end", "jobs_by_result", *later):
                database.execute(f"DROP INDEX {index}")
            gone = ("is_idempotent", "attempts", *(("result_digest",) if version == 1 else ()))
            for column in gone:
                database.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        database.execute(f"PRAGMA user_version = {version}")
    store = FileJobStore(tmp_path, retention_s=3600, max_bytes=1000)
    store.open(Heard(), {"c"})
    assert store.counts() == counts
    assert store.result(store.get(job.id)) == b"result"
    end(store, store.start(store.take("c")))
    assert store.counts()["succeeded"] == 2
    store.close()


def test_jobs_of_a_later_version(tmp_path):
    FileJobStore(tmp_path, retention_s=3600, max_bytes=1000).close()
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="format 99") as refused:
        FileJobStore(tmp_path, retention_s=3600, max_bytes=1000)
    assert refused.value.code == "jobs_folder_format"


# Of a database only


@pytest.fixture
def two_stores(postgres):
    """Two servers with the same jobs; the leases of the first end when a test says so."""
    from chainrule.serve._jobs._postgres import PostgresJobStore

    url = postgres.new_schema()
    stores = []
    for _ in range(2):
        store = PostgresJobStore(url, objects=None, lease_s=3600, retention_s=60, max_bytes=1 << 30)
        store.heard = Heard()
        store.open(store.heard, {"c"})
        store.heard.wait_for("work")  # it listens; what was said before is not heard
        stores.append(store)
    stores[0].url = url
    yield stores
    for store in stores:
        store.close()


def end_leases(postgres, store):
    postgres.execute(
        "UPDATE chainrule_jobs SET lease_until = now() - interval '1 s' WHERE owner IS NOT NULL", store.url
    )  # fmt: skip


def take_over(store):
    store._do(store._take_over)


def test_a_server_that_is_late_changes_nothing(postgres, two_stores):
    """Its job runs elsewhere, or has failed: it may not start it, nor end it."""
    late, other = two_stores
    started, held = add(late), add(late)
    running = late.start(late.take("c"))
    late_held = late.take("c")
    end_leases(postgres, late)
    take_over(other)
    other.heard.wait_for("work")
    with pytest.raises(LeaseLostError):
        end(late, running)
    with pytest.raises(LeaseLostError):
        late.start(late_held)
    assert late.get(started.id).error_code == "server_stopped"
    assert late.result(late.get(started.id)) is None
    mine = other.start(other.take("c"))
    assert mine.id == held.id
    with pytest.raises(LeaseLostError):
        end(late, late_held)
    ended = end(other, mine)
    assert late.get(held.id) == other.get(held.id) == ended
    assert late.counts() == other.counts()


def test_a_server_hears_that_it_lost_a_job(postgres, two_stores):
    late, other = two_stores
    job = add(late)
    late.start(late.take("c"))
    end_leases(postgres, late)
    take_over(other)
    late._do(late._renew)
    late.heard.wait_for("lost", job.id)


def test_cancellation_reaches_the_server_that_holds_the_job(postgres, two_stores):
    one, other = two_stores
    job = add(one)
    running = one.start(one.take("c"))
    assert other.withdraw(job.id) is None
    one.heard.wait_for("cancel", job.id)
    end(one, running, state="cancelled")
    other.heard.wait_for("changed", job.id)
    assert other.get(job.id).state == "cancelled"


def test_a_job_to_cancel_whose_server_died_is_cancelled(postgres, two_stores):
    dead, other = two_stores
    for facts in ({}, {"is_idempotent": True}):
        job = add(dead, **facts)
        dead.start(dead.take("c"))
        other.withdraw(job.id)
        end_leases(postgres, dead)
        take_over(other)
        assert other.get(job.id).state == "cancelled"
    assert other.take("c") is None


def test_many_takers_take_each_job_once(two_stores):
    store, _ = two_stores
    ids = {add(store).id for _ in range(60)}
    taken = []

    def take_all(store):
        while (job := store.take("c")) is not None:
            taken.append(job.id)

    threads = [threading.Thread(target=take_all, args=(store,)) for store in two_stores * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(ids)


def test_a_database_that_is_restarted(postgres, two_stores):
    """What is asked meanwhile waits; nothing is lost, and the same connections are used again."""
    store, other = two_stores
    job = add(store)
    running = store.start(store.take("c"))
    postgres.stop()
    answers = []
    asked = [
        threading.Thread(target=lambda: answers.append(add(store, idempotency_key="k").id)),
        threading.Thread(target=lambda: answers.append(end(store, running).id)),
    ]
    for thread in asked:
        thread.start()
    postgres.start()
    for thread in asked:
        thread.join()
    assert len(answers) == 2
    assert store.get(job.id).state == "succeeded"
    assert store.counts()["queued"] == 1
    store.heard.told.clear()
    add(other)
    store.heard.wait_for("work")  # it listens again


def test_a_database_that_is_away_does_not_fill_the_log(postgres, two_stores, caplog):
    """A job that ends meanwhile asks four times per second; it does not say so each time."""
    store, _ = two_stores
    add(store)
    running = store.start(store.take("c"))
    postgres.stop()
    ending = threading.Thread(target=end, args=(store, running))
    ending.start()
    ending.join(2)
    assert ending.is_alive()
    postgres.start()
    ending.join()
    said = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) <= 2  # one in 15 seconds
    assert store.get(running.id).state == "succeeded"


def test_no_statement_of_a_database_reads_all_jobs(postgres, two_stores):
    """Planned for 20 000 jobs that are over, and a few that wait."""
    from chainrule.serve._jobs import _statements as sql

    store, _ = two_stores
    postgres.execute(
        "INSERT INTO chainrule_jobs (id, component, endpoint, run_id, content_type, state, submitted_at, "
        "finished_at, is_idempotent, attempts) SELECT 'old' || n, 'c', 'apply', 'r', 't', 'succeeded', 0, "
        "extract(epoch from now()), false, 1 FROM generate_series(1, 20000) AS n",
        store.url,
    )  # fmt: skip
    add(store)
    postgres.execute("ANALYZE", store.url)
    values = {
        "component": "'c'", "owner": "'o'", "lease": "30", "id": "'old7'", "final": "ARRAY['succeeded']",
        "stopped": "'s'", "state": "'queued'",
    }  # fmt: skip
    for statement in (
        sql.TAKE, sql.WITHDRAW, sql.START, sql.EXPIRED,
        "SELECT * FROM chainrule_jobs WHERE state = %(state)s ORDER BY number DESC LIMIT 5",
        "SELECT * FROM chainrule_jobs WHERE component = 'd' ORDER BY number DESC LIMIT 5",
        "SELECT * FROM chainrule_jobs WHERE component = %(component)s AND state = %(state)s "
        "ORDER BY number DESC LIMIT 5",
    ):  # fmt: skip
        plan = postgres.execute("EXPLAIN " + statement % values, store.url)
        assert not any("Seq Scan on chainrule_jobs " in line for (line,) in plan), plan
    assert store.counts()["succeeded"] == 20_000


def refusal(postgres, url, **settings):
    from chainrule.serve._jobs._postgres import PostgresJobStore

    with pytest.raises(ChainruleError) as refused:
        PostgresJobStore(
            url, **{"objects": None, "lease_s": 30, "retention_s": 1, "max_bytes": 1, **settings}
        )
    assert "secret" not in str(refused.value)
    return refused.value


def test_bodies_that_no_job_has_are_removed_from_a_folder(postgres, tmp_path):
    """Those of servers that were killed: only old ones, and nothing else that is there."""
    from chainrule.serve._jobs._postgres import PostgresJobStore

    store = PostgresJobStore(
        postgres.new_schema(),
        objects=str(tmp_path),
        lease_s=3600,
        retention_s=60,
        max_bytes=1 << 30,
    )
    (mark,) = tmp_path.iterdir()
    add(store, b"b" * LARGE)
    (kept,) = set(tmp_path.iterdir()) - {mark}
    orphan = tmp_path / f"{'0' * 24}-{'1' * 24}.result"
    half = tmp_path / f".{orphan.name}.abcd1234.partial"
    new, other = tmp_path / f"{'2' * 24}-{'1' * 24}.result", tmp_path / "notes.result"
    for path in (orphan, half, new, other):
        path.write_bytes(b"")
    for path in (mark, kept, orphan, half, other):
        os.utime(path, (0, 0))
    store.sweep()
    assert set(tmp_path.iterdir()) == {mark, kept, new, other}
    store.close()


def test_a_server_with_another_place_for_large_bodies_does_not_start(postgres, tmp_path):
    """It would take jobs whose requests it cannot find, such as before a folder is mounted."""
    from chainrule.serve._jobs._postgres import PostgresJobStore

    url, first, other = postgres.new_schema(), tmp_path / "first", tmp_path / "other"
    bounds = {"lease_s": 3600, "retention_s": 60, "max_bytes": 1 << 30}
    PostgresJobStore(url, objects=None, **bounds).close()
    PostgresJobStore(url, objects=str(first), **bounds).close()
    said = refusal(postgres, url, objects=str(other))
    assert said.code == "jobs_objects_other"
    PostgresJobStore(url, objects=str(first), **bounds).close()
    # The message names the way out for bodies that were moved, or are lost.
    (mark,) = first.iterdir()
    assert mark.name in said.message
    (other / mark.name).touch()
    PostgresJobStore(url, objects=str(other), **bounds).close()


def test_databases_that_cannot_be_used(postgres, tmp_path):
    url = postgres.url
    said = refusal(postgres, postgres.url_of("absent"))
    assert said.code == "jobs_database_unreachable"
    assert "does not exist" in said.message
    unknown = url.replace("chainrule@", "stranger:secret@")
    assert refusal(postgres, unknown).code == "jobs_database_unreachable"
    closed = url.replace(str(postgres.port), "1").replace("chainrule@", "u:secret@")
    assert "Check that it runs" in refusal(postgres, closed).message
    wrong = refusal(postgres, "postgresql://u:sec/ret@secret:port/x")
    assert (wrong.code, type(wrong)) == ("bad_jobs_url", DefinitionError)
    postgres.execute("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", url)
    said = refusal(postgres, url.replace("chainrule@", "reader:secret@"))
    assert said.code == "jobs_database_refused"
    assert "right to create tables" in said.message
    (tmp_path / "file").touch()
    said = refusal(postgres, url, objects=str(tmp_path / "file"))
    assert said.code == "jobs_objects_unreachable"
    assert refusal(postgres, url, objects="http://x/y").code == "bad_jobs_objects"


def test_a_database_of_a_later_version(postgres, two_stores):
    store, _ = two_stores
    postgres.execute("UPDATE chainrule_jobs_format SET version = 3", store.url)
    said = refusal(postgres, store.url)
    assert said.code == "jobs_database_format"
    assert "Update Chainrule" in said.message


def test_a_database_of_the_version_before_is_brought_up_to_date(postgres, two_stores):
    from chainrule.serve._jobs._postgres import PostgresJobStore

    store, _ = two_stores
    postgres.execute("DROP TABLE chainrule_jobs_servers", store.url)
    for index in ("by_component", "by_component_and_state"):
        postgres.execute(f"DROP INDEX chainrule_jobs_{index}", store.url)
    postgres.execute("UPDATE chainrule_jobs_format SET version = 1", store.url)
    with closing(
        PostgresJobStore(store.url, objects=None, lease_s=30, retention_s=60, max_bytes=1 << 30)
    ) as later:
        add(later)
        assert later.queues()["c"].waiting == 1


def test_the_servers_of_a_component_share_the_jobs_that_wait(two_stores, wait_until):
    one, other = two_stores
    for _ in range(3):
        add(one)
    wait_until(lambda: one.queues()["c"].servers == 2)
    assert [store.queues()["c"].share for store in two_stores] == [1.5, 1.5]
    other.close()
    assert one.queues()["c"].share == 3.0


def test_a_body_that_is_too_large_for_a_row(monkeypatch, two_stores):
    from chainrule.serve._jobs import _postgres

    monkeypatch.setattr(_postgres, "_MAX_ROW_BYTES", 10)
    store, _ = two_stores
    with pytest.raises(StorageError, match="--jobs-objects") as refused:
        add(store, b"more than ten bytes")
    assert refused.value.code == "job_too_large"
    assert store.counts()["queued"] == 0
