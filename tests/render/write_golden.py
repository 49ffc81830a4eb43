"""Writes tests/golden anew: `python -m tests.render.write_golden`. Read the difference before committing it."""

import shutil

from tests.render.sites import GOLDEN, PHASES, RUNS, rendered, texts


def main():
    """One folder for each site and phase."""
    for run in RUNS:
        for phase in PHASES:
            settings, _, job = rendered(run, phase)
            folder = GOLDEN / settings.site.site / phase
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name, text in texts(job).items():
                (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
