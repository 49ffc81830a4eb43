"""Parts that reach into JupyterLab and ipykernel: buttons, the form, messages of a page.

The edge is `kernel` (all we use of ipykernel's inside, and of IPython's) and lab/static/watching.js
(all we use of JupyterLab's page). tests/display/test_jupyter_edge.py looks for every name in the
installed versions.
"""
