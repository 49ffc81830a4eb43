"""Stands in for PBS on the PATH: qsub, qstat, qselect and qdel for a queue with one host, written
for these tests. No package provides PBS. This is not PBS. It answers our adapter as OpenPBS
23.06.06 did (captured on 2026-11-22; see the README for the samples), and runs jobs as plain
processes, so that scripts and mpiexec really run. Everything is in the folder PBS_STAND_IN. In it,
the file `down` makes the server unreachable, `lost` loses one answer from qsub, and `history` makes
the server remember finished jobs, which PBS does not do by default. `walltime-over` ends the
walltime of every job at once."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["PBS_STAND_IN"])
FIRST = int(os.environ["PBS_STAND_IN_FIRST"])
SERVER = "stand-in"
CHUNK = ("ncpus", "mem", "mpiprocs", "ompthreads", "ngpus", "host")
ATTRIBUTES = ("group_list", "tolerate_node_failures", "umask")
NO_HISTORY = "PBS is not configured to maintain job history"
FINISHED, FAILED, TERMINATED = "92", "93", "91"  # substates
KILL_DELAY_SECONDS = 60  # PBS waits only 10 s, too short for a slow machine
QUEUES = {"debug": {"walltime": 3600, "nodect": 2}, "prod": {"walltime": 86400, "nodect": 496}}


def say_and_end(code: int, words: str) -> None:
    print(words, file=sys.stderr)
    raise SystemExit(code)


def load(number: str) -> dict:
    return json.loads((HOME / f"{number}.json").read_text())


def save(job: dict) -> None:
    part = HOME / f"{job['number']}.{os.getpid()}.part"
    part.write_text(json.dumps(job))
    part.replace(HOME / f"{job['number']}.json")


def change(number: str, changes: dict) -> None:
    """Change some fields in a job, which another program in this stand-in may be changing too."""
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        save(load(number) | changes)


def known() -> list[dict]:
    return [
        json.loads(path.read_text())
        for path in sorted(HOME.glob("*.json"), key=lambda path: int(path.stem))
    ]


def meant(word: str) -> dict:
    number = re.match(r"\d*", word)[0]
    if not (HOME / f"{number}.json").exists():
        say_and_end(153, f"qstat: Unknown Job Id {word}")
    return load(number)


def name_of(job: dict) -> str:
    return f"{job['number']}{'[]' if job['elements'] else ''}.{SERVER}"


def qsub(words: list[str]) -> None:
    asked: dict[str, str] = {}
    variables = depend = ""
    while len(words) > 1:
        option, value, *words = words
        variables = value if option == "-v" else variables
        depend = value.partition("=")[2] if option == "-W" else depend
    script = Path(words[0]).read_text()
    for letter, value in re.findall(r"^#PBS -(\w) (\S+)$", script, re.MULTILINE):
        name, _, value = value.partition("=") if letter == "l" else (letter, "", value)
        asked[name] = value
    if asked.get("q", "debug") not in QUEUES:
        say_and_end(170, "qsub: Unknown queue")
    for word in asked.get("select", "").split(":")[1:]:
        if (name := word.partition("=")[0]) not in CHUNK:
            say_and_end(187, f"qsub: Unknown resource: {name}")
    for word in filter(None, asked.get("W", "").split(",")):
        if word.partition("=")[0] not in ATTRIBUTES:
            say_and_end(154, "qsub: Error (15002) submitting job")
    if asked.get("A") == "nobody":
        say_and_end(1, "qsub: Request rejected.  Reason: account nobody is not allowed to submit")
    number = FIRST + len(list(HOME.glob("*.json")))
    first, _, last = asked.get("J", "").partition("-")
    job = {
        "number": number,
        "state": "Q",
        "status": None,
        "substate": "",
        "asked": asked,
        "variables": variables,
        "folder": str(Path.cwd()),
        "after": [
            re.match(r"\d*", word.partition(":")[2] or word)[0]
            for word in depend.split(":")
            if word[:1].isdigit()
        ],
        "after_any_end": depend.startswith("afterany:"),
        "elements": list(range(int(first), int(last) + 1)) if first else [],
        "comment": "",
        "pids": [],
        "script": script,
    }
    save(job)
    subprocess.Popen(
        [sys.executable, __file__, "run", str(number)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if (HOME / "lost").exists():
        (HOME / "lost").unlink()
        say_and_end(1, "qsub: End of File")
    print(name_of(job))


def run(number: str) -> None:
    job = load(number)
    while any(load(other)["state"] != "F" for other in job["after"]):
        time.sleep(0.05)
    if load(number)["state"] == "F":
        return  # deleted while it was waiting
    if not job["after_any_end"] and any(load(other)["status"] for other in job["after"]):
        change(number, {"state": "F", "substate": FINISHED})  # no exit status and no comment
        return
    nodes = int(job["asked"].get("select", "1").partition(":")[0])
    nodefile = HOME / f"{number}.nodes"
    nodefile.write_text("".join(["localhost\n"] * nodes))
    script = HOME / f"{number}.sh"
    script.write_text(job["script"])
    final = Path(job["folder"])
    place = final if "d" in job["asked"].get("k", "") else HOME / f"{number}.spool"
    place.mkdir(exist_ok=True)
    running = []
    for element in job["elements"] or [None]:
        own = {
            "PBS_JOBID": f"{number}{'' if element is None else f'[{element}]'}.{SERVER}",
            "PBS_O_WORKDIR": job["folder"],
            "PBS_NODEFILE": str(nodefile),
            **({} if element is None else {"PBS_ARRAY_INDEX": str(element)}),
            **dict(pair.split("=", 1) for pair in job["variables"].split(",") if pair),
        }
        with (place / "out").open("ab") as out, (place / "err").open("ab") as err:
            running.append(
                subprocess.Popen(
                    ["bash", str(script)],
                    cwd="/",
                    env=os.environ | own,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            )
    if load(number)["state"] == "Q":
        pids = [one.pid for one in running]
        change(number, {"state": "B" if job["elements"] else "R", "pids": pids})
    is_late = wait(running, job["asked"].get("walltime", ""))
    codes = [256 - code if code < 0 else code for code in (one.wait() for one in running)]
    if place != final:
        for name in ("out", "err"):
            (final / name).write_bytes((place / name).read_bytes())
    substate = load(number)["substate"] or (FAILED if is_late or any(codes) else FINISHED)
    # The exit status for an array comes from its last element, and jobs that wait for afterok start
    # because of it.
    status = -29 if is_late else codes[-1]
    change(number, {"state": "F", "status": status, "substate": substate})


def wait(running: list[subprocess.Popen], walltime: str) -> bool:
    """Wait for the processes.

    Return whether they were ended at the walltime, by TERM and then by KILL.
    """
    hours, minutes, seconds = (int(part) for part in (walltime or "99:00:00").split(":"))
    end = time.monotonic() + 3600 * hours + 60 * minutes + seconds
    while any(one.poll() is None for one in running) and time.monotonic() < end:
        if (HOME / "walltime-over").exists():
            break
        time.sleep(0.05)
    late = [one for one in running if one.poll() is None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in late:
            if one.poll() is None:
                os.killpg(one.pid, number)
        until = time.monotonic() + KILL_DELAY_SECONDS
        while any(one.poll() is None for one in late) and time.monotonic() < until:
            time.sleep(0.05)
    return bool(late)


def qstat(words: list[str]) -> None:
    if "-Q" in words:
        for name, limits in QUEUES.items():
            print(f"Queue: {name}\n    queue_type = Execution\n    total_jobs = {len(known())}")
            print(f"    resources_max.nodect = {limits['nodect']}")
            print(f"    resources_max.walltime = {limits['walltime'] // 3600:02d}:00:00")
            print("    enabled = True\n    started = True\n")
        return
    history = (HOME / "history").exists()
    code = 0
    if "-B" in words:
        print(
            f"Server: {SERVER}\n    server_state = Active"
            + ("\n    job_history_enable = True" * history)
            + "\n"
        )
        return
    for word in (word for word in words if word[:1].isdigit()):
        number = re.match(r"\d*", word)[0]
        job = load(number) if (HOME / f"{number}.json").exists() else None
        if "-x" in words and not history:
            print(f"qstat: {NO_HISTORY} {word}", file=sys.stderr)
            continue
        if job is None or (job["state"] == "F" and not history):
            print(f"qstat: Unknown Job Id {word}", file=sys.stderr)
            code = 153
            continue
        if job["state"] == "F" and "-x" not in words:
            words_of_it = "Job has finished, use -x or -H to obtain historical job information"
            print(f"qstat: {word} {words_of_it}", file=sys.stderr)
            code = 35
            continue
        listed = f"PBS_O_WORKDIR={job['folder']},PBS_O_SYSTEM=Linux,{job['variables']}"
        print(
            f"Job Id: {name_of(job)}\n    Job_Name = {job['asked'].get('N', 'job')}\n    job_state = {job['state']}"
        )
        print(
            f"    queue = {job['asked'].get('q', 'debug')}\n    server = {SERVER}\n    exec_host = localhost/0*0"
        )
        if job["status"] is not None:
            print(f"    Exit_status = {job['status']}")
        if job["substate"]:
            print(f"    substate = {job['substate']}")
        if job["comment"]:
            print(f"    comment = {job['comment']}")
        wrapped = "\n\t".join(listed[start : start + 60] for start in range(0, len(listed), 60))
        print(f"    Variable_List = {wrapped}\n")
    raise SystemExit(code)


def qselect(words: list[str]) -> None:
    history = (HOME / "history").exists()
    if "-x" in words and not history:
        print(f"qselect: {NO_HISTORY}", file=sys.stderr)
        return
    for job in known():
        if job["state"] != "F" or "-x" in words:
            print(name_of(job))


def send(word: str, number: signal.Signals) -> None:
    job = meant(word)
    for pid in job["pids"]:
        os.killpg(pid, number)


def qdel(words: list[str]) -> None:
    job = meant(words[-1])
    if job["state"] == "F":
        history = (HOME / "history").exists()
        say_and_end(
            35 if history else 153,
            f"qdel: {'Job has finished' if history else 'Unknown Job Id'} {words[-1]}",
        )
    while load(str(job["number"]))["state"] == "Q" and not job["after"]:
        time.sleep(0.02)
    if job["after"] and job["state"] == "Q":
        change(str(job["number"]), {"state": "F", "substate": TERMINATED})
        return
    comment = "Job run and terminated"
    change(str(job["number"]), {"substate": TERMINATED, "comment": comment})
    send(words[-1], signal.SIGTERM)
    until = time.monotonic() + KILL_DELAY_SECONDS
    while time.monotonic() < until and load(str(job["number"]))["state"] != "F":
        time.sleep(0.05)
    try:
        send(words[-1], signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    program = Path(sys.argv[0]).name
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        return run(words[1])
    if (HOME / "down").exists():
        say_and_end(
            255, f"Connection refused\n{program}: cannot connect to server {SERVER} (errno=15010)"
        )
    return {"qsub": qsub, "qselect": qselect, "qstat": qstat, "qdel": qdel}[program](words)


if __name__ == "__main__":
    main()
