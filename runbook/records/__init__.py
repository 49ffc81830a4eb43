"""Executed notebooks as records with checksums, and the pages made from them.

Nothing is imported here, so that papermill starts as fast with our engine as without it. In the
kernel, `session` collects results and checks and writes the `phase_record`. Outside it, `engine`
executes and files notebooks, `pages` makes the reports, and `manifest` detects later edits.
"""
