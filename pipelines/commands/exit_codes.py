"""Names the exit codes of commands, beside 0, 1 after an error and 2 after wrong usage."""

NOTHING_PUSHED = 3
FINDINGS = 4  # of `preflight`; of `shadow`: a bound is missed
PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: try again
STOPPED = 130  # as shells report Ctrl-C
