#!/usr/bin/env python3
"""A worker for workflows in Python, over HTTP and with the standard library alone.

    ISLES_HTTP=http://127.0.0.1:8080 ISLES_PASSWORD=... python3 worker.py

It registers the type `greeting`, polls for runs that are due, and executes them. The code of a workflow is a
function of a context and an input; everything that must not happen twice goes through the context, which notes it in
the run's journal and reads it from there when the run is executed again.
"""

import base64
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request


class Suspended(Exception):
    """The run waits for a time or an event, and is executed again then."""


class Asked(Exception):
    """Somebody wants the run paused or terminated."""


class Lost(Exception):
    """Another executor has the run."""


class NonDeterminism(Exception):
    """The code does something else than the journal says."""


class Server:
    def __init__(self, url, user, password):
        self.url = url.rstrip("/")
        self.login = base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method, path, body):
        data = json.dumps(body).encode()
        headers = {"authorization": f"Basic {self.login}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = json.load(error)["error"]
            if said["code"] == "LEASE_LOST":
                raise Lost() from error
            raise RuntimeError(f"{said['code']}: {said['message']}") from error

    def lives(self, tasks):
        """Says that tasks are still worked on, or wait for their turn."""
        for who in tasks:
            try:
                self.task("heartbeat", who)
            except Lost:
                pass  # its next write says so
            except (OSError, RuntimeError):
                pass  # the next beat comes before the lease ends

    def task(self, action, body):
        return self.ask("POST", f"/workflows/_tasks/{action}", body)


class Context:
    """One execution of a run."""

    def __init__(self, server, task):
        self.server = server
        self.who = who_of(task)
        self.journal = {step["ordinal"]: step for step in task["journal"] if step["branch"] == ""}
        self.events = list(task["events"])
        self.event_seq = task["eventSeq"]
        self.update_seq = task["updateSeq"]
        self.control = task["control"]
        self.next = 0

    def _ask(self, kind, name):
        """The place of the next step, and what the journal has there."""
        ordinal, self.next = self.next, self.next + 1
        noted = self.journal.get(ordinal)
        if noted and (noted["name"], noted["type"]) != (name, kind):
            raise NonDeterminism(f"at {ordinal} the journal has {noted['type']} {noted['name']!r}, not {kind} {name!r}")
        if noted is None and self.control:
            raise Asked(self.control)
        return ordinal, noted

    def _note(self, ordinal, kind, name, started, **more):
        step = {"ordinal": ordinal, "name": name, "type": kind, "startedAt": started, "endedAt": now_ms(), "attempts": 1}
        with_step = {key: more.pop(key) for key in ("event", "update") if key in more}
        step.update(more)
        body = {**self.who, "step": step, "updateSeq": self.update_seq, **with_step}
        self.control = self.server.task("step", body).get("control")
        if "update" in with_step:
            self.update_seq += 1
        return step

    def step(self, name, work):
        """Does something once, and keeps its result."""
        ordinal, noted = self._ask("do", name)
        if noted is None:
            started = now_ms()
            try:
                noted = self._note(ordinal, "do", name, started, status="completed", result=work())
            except (Lost, Asked):
                raise
            except Exception as error:  # what the work raised is kept, and raised again next time
                failure = {"code": "STEP_FAILED", "message": str(error)}
                noted = self._note(ordinal, "do", name, started, status="failed", error=failure)
        if noted.get("error"):
            raise RuntimeError(noted["error"]["message"])
        return noted["result"]

    def sleep(self, name, seconds):
        """Waits for some time; the worker does other things meanwhile."""
        ordinal, noted = self._ask("sleep", name)
        wake = noted["wakeAt"] if noted else now_ms() + int(seconds * 1000)
        if wake > now_ms():
            step = {"ordinal": ordinal, "name": name, "type": "sleep", "status": "pending",
                    "startedAt": now_ms(), "wakeAt": wake}
            self._suspend("sleeping", wake, [step])

    def wait_for_event(self, name, event):
        """Takes the next event of a name from the run's queue, or waits for one."""
        ordinal, noted = self._ask("wait_for_event", name)
        if noted and noted["status"] == "completed":
            return noted["result"]
        came = next((one for one in self.events if one["name"] == event), None)
        if came is None:
            step = {"ordinal": ordinal, "name": name, "type": "wait_for_event", "status": "pending",
                    "startedAt": now_ms()}
            self._suspend("waiting", None, [step])
        self.events.remove(came)
        self._note(ordinal, "wait_for_event", name, now_ms(), status="completed", result=came["payload"],
                   event=came["seq"])
        return came["payload"]

    def emit(self, name, data):
        """Tells those who listen, once, and is kept."""
        ordinal, noted = self._ask("emit", f"{name}#{self.next}")
        if noted is None:
            self._note(ordinal, "emit", f"{name}#{ordinal}", now_ms(), status="completed",
                       update={"name": name, "data": data})

    def _suspend(self, status, due, pending):
        body = {**self.who, "status": status, "dueAt": due, "eventSeq": self.event_seq, "pending": pending}
        answer = self.server.task("suspend", body)
        if "asked" in answer:
            raise Asked(answer["asked"])
        # Where something has come meanwhile, the run is executed again at once, with what came.
        raise Suspended(answer.get("again"))


def who_of(task):
    return {name: task[name] for name in ("type", "id", "token", "attempt", "leaseMs")}


class Beat:
    """Keeps the leases of tasks while they are worked on: a step may take longer than its lease."""

    def __init__(self, server, tasks):
        self.server, self.tasks, self.done = server, [who_of(task) for task in tasks], threading.Event()
        self.pause = min((task["leaseMs"] for task in tasks), default=3000) / 3000
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self):
        while not self.done.wait(self.pause):
            self.server.lives(list(self.tasks))

    def ends(self, task):
        self.tasks = [who for who in self.tasks if who["id"] != task["id"] or who["type"] != task["type"]]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def now_ms():
    return int(time.time() * 1000)


def execute(server, code, task):
    """Executes a run until it ends, rests, or is lost."""
    context = Context(server, task)
    try:
        if context.control:
            raise Asked(context.control)
        result = code(context, task["payload"])
        server.task("finish", {**context.who, "result": result})
    except Suspended as suspended:
        if suspended.args[0]:
            execute(server, code, suspended.args[0])
    except Lost:
        pass
    except Asked:
        server.task("obey", context.who)
    except NonDeterminism as error:
        server.task("finish", {**context.who, "error": {"code": "NON_DETERMINISM", "message": str(error)}})
    except Exception as error:
        server.task("finish", {**context.who, "error": {"code": "STEP_FAILED", "message": str(error)}})


def greeting(context, payload):
    """Greets somebody, waits until it is approved, and says so."""
    def greet():
        time.sleep(payload.get("takes", 0))
        return f"Hello, {payload['name']}!"

    text = context.step("greet", greet)
    context.emit("progress", 50)
    context.sleep("a moment", payload.get("seconds", 1))
    approved = context.wait_for_event("approval", "approved")
    return context.step("answer", lambda: text if approved else "rejected")


def main():
    server = Server(os.environ.get("ISLES_HTTP", "http://127.0.0.1:8080"),
                    os.environ.get("ISLES_USER", "isles"), os.environ["ISLES_PASSWORD"])
    code = {"greeting": greeting}
    for kind in code:
        server.ask("PUT", f"/workflows/_types/{kind}", {"shards": 4, "events": ["approved"]})
    print("ready", flush=True)
    executed, limit = 0, int(os.environ.get("ISLES_WORKER_TASKS", "0"))
    while not limit or executed < limit:
        poll = {"types": list(code), "worker": f"python-{os.getpid()}", "max": 10, "waitMs": 10000,
                "leaseMs": int(os.environ.get("ISLES_WORKER_LEASE_MS", "5000"))}
        tasks = server.task("poll", poll)["tasks"]
        with Beat(server, tasks) as beat:
            for task in tasks:
                execute(server, code[task["type"]], task)
                beat.ends(task)
                executed += 1


if __name__ == "__main__":
    sys.exit(main())
