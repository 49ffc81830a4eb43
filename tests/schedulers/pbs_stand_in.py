"""Stands in for PBS on the PATH: qsub, qstat, qselect, qdel and qsig of a queue with one host, written for these tests.

No package has PBS. This is not PBS: it says what OpenPBS is known to say (facts of version 23.06; see the samples'
README) to the questions our adapter asks, and runs jobs as plain processes, so that scripts and mpiexec run for real.
Everything lies in the folder PBS_STAND_IN; the file `down` in it makes the server unreachable, `lost` loses qsub's
answer once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["PBS_STAND_IN"])
SERVER = "stand-in"
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


def known() -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(HOME.glob("*.json"), key=lambda path: int(path.stem))]


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
    if asked.get("A") == "nobody":
        say_and_end(1, "qsub: Request rejected.  Reason: account nobody is not allowed to submit")
    number = len(list(HOME.glob("*.json"))) + 1700
    first, _, last = asked.get("J", "").partition("-")
    job = {
        "number": number,
        "state": "Q",
        "status": None,
        "asked": asked,
        "variables": variables,
        "folder": str(Path.cwd()),
        "after": [
            re.match(r"\d*", word.partition(":")[2] or word)[0] for word in depend.split(":") if word[:1].isdigit()
        ],
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
    if any(load(other)["status"] for other in job["after"]):
        save(load(number) | {"state": "F", "comment": "Job deleted as result of dependency on another job"})
        return
    nodes = int(job["asked"].get("select", "1").partition(":")[0])
    nodefile = HOME / f"{number}.nodes"
    nodefile.write_text("".join(["localhost\n"] * nodes))
    script = HOME / f"{number}.sh"
    script.write_text(job["script"])
    running = []
    for element in job["elements"] or [None]:
        place = f"{number}{'' if element is None else f'[{element}]'}.{SERVER}"
        own = {
            "PBS_JOBID": place,
            "PBS_O_WORKDIR": job["folder"],
            "PBS_NODEFILE": str(nodefile),
            **({} if element is None else {"PBS_ARRAY_INDEX": str(element)}),
            **dict(pair.split("=", 1) for pair in job["variables"].split(",") if pair),
        }
        place = Path(job["folder"])
        with (place / "out").open("ab") as out, (place / "err").open("ab") as err:
            running.append(
                subprocess.Popen(
                    ["bash", str(script)], cwd="/", env=os.environ | own, stdout=out, stderr=err, start_new_session=True
                )
            )
    if load(number)["state"] == "Q":
        save(load(number) | {"state": "B" if job["elements"] else "R", "pids": [one.pid for one in running]})
    codes = [one.wait() for one in running]
    status = max(256 - code if code < 0 else code for code in codes)
    save(load(number) | {"state": "F", "status": status})


def qstat(words: list[str]) -> None:
    if "-Q" in words:
        for name, limits in QUEUES.items():
            print(f"Queue: {name}\n    queue_type = Execution\n    total_jobs = {len(known())}")
            print(f"    resources_max.nodect = {limits['nodect']}")
            print(f"    resources_max.walltime = {limits['walltime'] // 3600:02d}:00:00")
            print("    enabled = True\n    started = True\n")
        return
    for word in (word for word in words if word[:1].isdigit()):
        job = meant(word)
        listed = f"PBS_O_WORKDIR={job['folder']},PBS_O_SYSTEM=Linux,{job['variables']}"
        print(f"Job Id: {name_of(job)}\n    Job_Name = {job['asked'].get('N', 'job')}\n    job_state = {job['state']}")
        print(f"    queue = {job['asked'].get('q', 'debug')}\n    server = {SERVER}\n    exec_host = localhost/0*0")
        if job["status"] is not None:
            print(f"    Exit_status = {job['status']}")
        if job["comment"]:
            print(f"    comment = {job['comment']}")
        wrapped = "\n\t".join(listed[start : start + 60] for start in range(0, len(listed), 60))
        print(f"    Variable_List = {wrapped}\n")


def send(word: str, number: signal.Signals) -> None:
    job = meant(word)
    for pid in job["pids"]:
        os.killpg(pid, number)


def qdel(words: list[str]) -> None:
    job = meant(words[-1])
    if job["state"] == "F":
        say_and_end(35, f"qdel: Job has finished {words[-1]}")
    while load(str(job["number"]))["state"] == "Q" and not job["after"]:
        time.sleep(0.02)
    if job["after"] and job["state"] == "Q":
        save(job | {"state": "F", "comment": "Job was deleted and terminated"})
        return
    send(words[-1], signal.SIGTERM)
    time.sleep(0.5)
    try:
        send(words[-1], signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    if words[:1] == ["run"]:
        return run(words[1])
    if (HOME / "down").exists():
        say_and_end(111, f"Connection refused\n{program}: cannot connect to server {SERVER} (errno=111)")
    if program == "qselect":
        return print("\n".join(name_of(job) for job in known()))
    if program == "qsig":
        return send(words[-1], signal.Signals[words[1]])
    return {"qsub": qsub, "qstat": qstat, "qdel": qdel}[program](words)


if __name__ == "__main__":
    main()
