"""Buttons, the form and page messages, which depend on internals of JupyterLab and ipykernel.

Only two files use internals of other projects: `kernel` uses those of ipykernel and IPython, and
lab/static/watching.js uses those of JupyterLab's page. tests/display/test_jupyter_edge.py looks for
every such name in the installed versions.
"""
