"""Turns a job script into a run file by running it in a sandbox.

The tool also reports the settings that could not be carried over, and the known errors in the
script.
"""
