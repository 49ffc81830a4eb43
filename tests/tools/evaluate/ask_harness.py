"""Print all harness answers on three small tasks as JSON, for a trained model or an exported
folder.
"""

import json
import sys
from pathlib import Path

from runbook import params
from runbook.plan_file.phase_names import FULL
from runbook.runs.run_files import read_plan_file
from runbook.tools.evaluate import task_scores
from runbook.tools.evaluate.trainer_model import TrainerModel

if __name__ == "__main__":
    run, tasks, exported = (Path(word) if word else None for word in sys.argv[1:])
    plan = read_plan_file(run)
    settings = params.load(str(run / "run.yaml"))
    model = "hf" if exported else TrainerModel(run, plan.phases[FULL], settings.run.data.tokenizer)
    wish = task_scores.Wish(("toy_choice", "toy_text", "toy_write"), tasks, exported=exported)
    found = task_scores.run_tasks(task_scores._task_manager(tasks), wish.tasks, model, wish)
    answers = {
        task: [each["resps"] for each in sorted(samples, key=lambda each: each["doc_id"])]
        for task, samples in found["samples"].items()
    }
    print(json.dumps(answers))
