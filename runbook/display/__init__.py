"""Shows output while a cell runs: in JupyterLab, a terminal, a log or a saved notebook.

    show_text(text)                         a line or paragraph
    show_table(rows, title="", notes=())    rows are dictionaries; column names contain units
    show_checks(checks)                     rows of `core.checks.Check`; verdict by word and symbol
    show_figure(figure, caption)            a drawing, and its numbers in words
    Formula(latex, words)                   a formula with its numbers, drawn where possible
    View([table, (figure, caption), text])  the output at the end of a cell; each part can be used
    show_html(html, text)                   HTML, and the equivalent text
    Progress(title, total=None, unit="")    .update(done=..., **facts)   .finish(**facts)
    sparkline(values)                       a curve in one word: ▁▃▅█

Importing this package imports neither pandas nor matplotlib nor IPython.
"""

from runbook.core.curves import sparkline as sparkline
from runbook.core.table import Table as Table
from runbook.display.output_place import CheckTable as CheckTable
from runbook.display.output_place import Formula as Formula
from runbook.display.output_place import Place as Place
from runbook.display.output_place import View as View
from runbook.display.output_place import show_checks as show_checks
from runbook.display.output_place import show_figure as show_figure
from runbook.display.output_place import show_html as show_html
from runbook.display.output_place import show_table as show_table
from runbook.display.output_place import show_text as show_text
from runbook.display.output_place import where_we_are as where_we_are
from runbook.display.progress import Progress as Progress
