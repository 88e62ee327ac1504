"""`ampd sim`: run, sweep, report."""
