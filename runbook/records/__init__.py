"""Stores executed notebooks as records with checksums, and builds pages from these records.

Nothing is imported here, so that papermill starts as fast with our engine as without it. In the
kernel, `session` collects results and checks and writes the `phase_record`. Outside the kernel,
`engine` executes and files notebooks, `pages` builds the reports, and `manifest` detects later
edits.
"""
