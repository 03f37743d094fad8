"""A live page for a folder of runs: `polycentric watch`.

runs.py      which runs there are, and how far each is: from their files, looked at again only where they changed
stream.py    lines of a run's metrics as they are written, as server-sent events
server.py    the pages: a list of runs that moves, and every run on the panels of a report
"""
