"""What is left of an executed notebook: the notebook, its report, its machine-readable twin, and their checksums.

Nothing is imported here, so that papermill starts as fast with our engine as without. The modules:

- `session`: inside the kernel; a phase collects results and checks, the twin is written.
- `execute`: run a notebook as a phase of a run, or file one that another tool executed.
- `engine`: the papermill engine `runbook`, which says what stopped a notebook.
- `twin`, `html`, `index`: the three forms of a record; `manifest`, `verify`: that nobody changed them.
"""
