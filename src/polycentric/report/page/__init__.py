"""A report: one page on one run or several, in one file that opens without a network.

seen.py       what is looked at: runs by label, their files, and one opened run of each
parts.py      what a page is made of, as JSON: charts, tables, switches, panels
answer.py  learning.py  clients.py  topology.py  models.py  groups.py  nodes.py  made.py     panels, or nothing
write.py      the file: page.html, style.css and page.js, plotly's script packed, and the data
"""

from .seen import Seeds as Seeds, Sight as Sight, looked_at as looked_at, of_run as of_run
from .write import (
    html_of as html_of,
    page_of as page_of,
    page_path as page_path,
    report_of as report_of,
    write_page as write_page,
    write_report as write_report,
)
