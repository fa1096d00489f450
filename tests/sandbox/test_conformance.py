"""What every driver with processes of its own keeps: reasons, limits, claims, and a clean end."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from palio.records import FaultCode
from palio.sandbox.spec import Driver
from tests.broker.conftest import Replies, completion
from tests.sandbox.conftest import Outcome
from tests.sandbox.enclosures import outcome_of, processes_of, tiny_session
from tests.waiting import wait_for

GOOD = """
def agent_main(problem):
    found = ProxyClient().get("/search/find_product", {"q": "mug"})
    said = ProxyClient().post("/inference/chat/completions",
                              {"messages": [{"role": "user", "content": "hi"}]})
    return [{"problem": problem, "found": len(found),
             "said": said["choices"][0]["message"]["content"]}]
"""


def test_a_good_agent(processed: Outcome) -> None:
    session = tiny_session(Replies(completion("hello")))
    outcome = processed(GOOD, session=session)
    assert (outcome.reason, outcome.fault, outcome.exit_code) == ("exited", None, 0)
    (step,) = outcome.claim
    assert step["problem"] == {"query": "a red mug", "category": "Product", "problem_id": "p1"}
    assert (step["found"], step["said"]) == (2, "hello")
    record = session.close(outcome.ending, outcome.fault, outcome.claim)
    assert (len(record.dispatches), len(record.inferences)) == (1, 1)
    assert outcome.usage.wall_s > 0


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("def agent_main(p):\n    1 / 0", FaultCode.agent_crashed, "ZeroDivisionError: division"),
        ("def agent_main(p):\n    return 7", FaultCode.agent_bad_return, "int, not a list"),
        ("def agent_main(p):\n    return [1]", FaultCode.agent_bad_return, "step 1"),
        ("def agent_main(p):\n    return [{'a': {1}}]", FaultCode.agent_bad_return, "JSON"),
        ("def agent(p): pass", FaultCode.agent_bad_source, "no function agent_main"),
        ("def agent_main(p:", FaultCode.agent_bad_source, "line"),
        ("import os\ndef agent_main(p):\n    os._exit(3)", FaultCode.agent_crashed, "a report"),
        ("import os\ndef agent_main(p):\n    os.kill(os.getpid(), 9)", FaultCode.agent_crashed, ""),
        ("raise SystemExit(0)", FaultCode.agent_crashed, "while loading"),
    ],
)  # fmt: skip
def test_what_agents_do_wrong(processed: Outcome, source: str, code: FaultCode, words: str) -> None:
    outcome = processed(source)
    assert outcome.reason == "exited"
    assert outcome.claim is None
    assert outcome.fault is not None
    assert outcome.fault.code == code
    assert words in outcome.fault.what


def test_no_file_is_the_agent_s_fault(process_driver: Driver, tmp_path: Path) -> None:
    from palio.sandbox.spec import SandboxSpec

    for path in (tmp_path / "none.py", tmp_path):
        outcome = process_driver.run(SandboxSpec(agent=str(path), problem={}), None)
        assert outcome.fault is not None
        assert outcome.fault.code == FaultCode.agent_bad_source


def test_a_large_claim_comes_through_and_a_larger_one_does_not(processed: Outcome) -> None:
    source = "def agent_main(p):\n    return [{'a': 'x' * 3_000_000}]"
    assert len(processed(source).claim[0]["a"]) == 3_000_000
    outcome = processed(source, result_bytes=1_000_000)
    assert outcome.fault is not None
    assert outcome.fault.code == FaultCode.agent_output_limit


def test_output_is_capped_and_a_flood_is_stopped(processed: Outcome) -> None:
    source = """
        import os, sys
        def agent_main(p):
            for _ in range(50):
                sys.stdout.buffer.write(b"\\xff\\x00" * 50_000)
                sys.stderr.buffer.write(b"e" * 100_000)
            return []
        """
    outcome = processed(source, output_bytes=1000)
    assert (outcome.reason, outcome.fault) == ("exited", None)
    assert len(outcome.stdout) == len(outcome.stderr) == 1000
    assert "\x00" not in outcome.stdout
    assert outcome.usage.output_bytes == 10_000_000
    flood = "import os\ndef agent_main(p):\n    while True:\n        os.write(1, b'x' * 100_000)"
    outcome = processed(flood, flood_bytes=5_000_000)
    assert outcome.reason == "output_limit"
    assert outcome.fault is not None
    assert "5000000 bytes of output" in outcome.fault.what
    assert outcome.usage.output_bytes < 8_000_000


def test_a_sandbox_without_a_session_has_no_door(processed: Outcome) -> None:
    source = """
        def agent_main(p):
            try:
                return [{"seen": ProxyClient(max_retries=0).get("/status")}]
            except ValueError:
                return [{"seen": None}]
        """
    assert processed(source).claim == [{"seen": None}]


def test_spinning_and_sleeping_end_in_time(processed: Outcome) -> None:
    """By who runs them: none of the two would ever end."""
    for body in ("while True: pass", "threading.Event().wait()"):
        outcome = processed(
            f"""
            import signal, threading
            def agent_main(p):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                {body}
            """,
            seconds=1.0,
        )
        assert outcome.reason == "timeout"
        assert outcome.fault is not None
        assert outcome.fault.what == "the agent was stopped after 1 s"


FAMILY = """
import os, time
def agent_main(p):
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", "{mark}"])
            os._exit(0)
        os.wait()
    ProxyClient().get("/search/find_product", {{"q": "mug"}})
    while True:
        with open("/proc/self/stat") as _:
            pass
        {then}
"""


def test_the_whole_tree_is_gone_after_a_stop(processed: Outcome) -> None:
    """Daemons included. How soon is in the benchmarks."""
    mark = f"8{time.monotonic_ns() % 10**8}"
    stop, session = threading.Event(), tiny_session()
    source = FAMILY.format(mark=mark, then="time.sleep(0.01)")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processed, source, stop=stop, session=session)
        wait_for(lambda: session.status()["left"]["calls"] < 400)
        assert processes_of(mark)
        stop.set()
        outcome = running.result()
    assert outcome.reason == "killed"
    assert outcome.fault is not None
    assert outcome.fault.code == FaultCode.run_interrupted
    assert outcome.usage.kill_s is not None
    assert not processes_of(mark)


def test_a_stop_is_noticed(processed: Outcome) -> None:
    stop = threading.Event()
    threading.Timer(0.4, stop.set).start()
    source = "def agent_main(p):\n    while True: pass"
    assert processed(source, stop=stop, seconds=1e6).reason == "killed"


def test_nothing_is_left_after_a_normal_end(processed: Outcome) -> None:
    mark = f"7{time.monotonic_ns() % 10**8}"
    outcome = processed(FAMILY.format(mark=mark, then="return []"), session=tiny_session())
    assert (outcome.reason, outcome.claim) == ("exited", [])
    assert not processes_of(mark)


def test_many_at_once_do_not_mix(process_driver: Driver, tmp_path: Path) -> None:
    def one(number: int) -> tuple[Any, int]:
        folder = tmp_path / str(number)
        folder.mkdir()
        session = tiny_session(Replies(completion(f"answer {number}")))
        outcome = outcome_of(process_driver, GOOD, folder, session=session, seconds=60.0)
        record = session.close(outcome.ending, outcome.fault, outcome.claim)
        return outcome.claim, len(record.dispatches)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(16)))
    assert [(claim[0]["said"], calls) for claim, calls in made] == [
        (f"answer {number}", 1) for number in range(16)
    ]


def test_clock_chance_and_hash_order_are_the_same_in_every_run(processed: Outcome) -> None:
    source = """
        import time, random, os, uuid, secrets, datetime, tempfile
        from datetime import datetime as dt
        def agent_main(p):
            started = time.monotonic()
            time.sleep(0.02)
            return [{
                "time": [time.time(), time.time_ns(), time.ctime(), time.strftime("%s"),
                         time.localtime()[:6], time.clock_gettime(time.CLOCK_REALTIME)],
                "date": [str(datetime.datetime.now()), str(dt.utcnow()), str(dt.today()),
                         str(datetime.date.today()), str(dt.now(datetime.timezone.utc))],
                "kinds": [isinstance(dt.now(), datetime.date), isinstance(dt.now() - dt.now(),
                          datetime.timedelta), dt(2020, 1, 2).isoformat(), str(dt.max)],
                "chance": [random.random(), random.Random().random(), random.Random(5).random(),
                           os.urandom(4).hex(), secrets.token_hex(4), str(uuid.uuid4()),
                           str(uuid.uuid1()), random.SystemRandom().random(),
                           tempfile.mktemp()[-8:]],
                "order": list({"a", "b", "c", "d", "e"}),
            }], time.monotonic() - started
        def agent_main(p, inner=agent_main):
            made, passed = inner(p)
            assert 0.02 <= passed < 10, passed
            return made
        """
    first, again, other = (processed(source, seed=seed).claim for seed in (1, 1, 2))
    assert first == again
    assert first[0]["time"] == other[0]["time"]
    assert first[0]["date"][0].startswith("2026-01-01 00:00:00")
    assert first[0]["kinds"] == [True, True, "2020-01-02T00:00:00", "9999-12-31 23:59:59.999999"]
    fixed = random_of_five = 2
    for at, (mine, theirs) in enumerate(zip(first[0]["chance"], other[0]["chance"], strict=True)):
        assert (mine == theirs) == (at == fixed == random_of_five), at
