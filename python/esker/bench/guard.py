# SPDX-License-Identifier: MIT
"""The guard: watches memory while a bench runs, and stops it before the machine suffers.

Skeleton; the interface stands:

    limits = GuardLimits.for_machine()
    with Guard(limits, on_stop=...) as guard:          # in-process: check guard.stopped, or
        ...                                            # guard.check() raises PlanError
    with Guard(limits, child=process) as guard:        # a child (subprocess.Popen): is killed
        process.wait()
    run["guard"] = guard.report()
    run["memory"] = guard.memory()                     # before, during (sampled), after
"""
