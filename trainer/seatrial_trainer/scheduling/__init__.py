"""Asynchronous control: which trials run when, and which groups train in which step.

    sampler ─▶ Scheduler ─▶ TrialDispatcher ─▶ trial ─▶ GroupAssembly ─▶ TrajectoryBuffer ─▶ Batch
                   ▲              ▲                                             │
                   │              └─ limit ◀── ConcurrencyGovernor ◀── load     ▼
                   └──── staleness credit ◀──── advance(version) ◀──── policy step, weight sync

Pure: `staleness`, `assembly`, `concurrency`, `sampler`. Async: `dispatcher`, `buffer`, `scheduler`, `governor`.
`simulator` drives the async ones in virtual time, with `workload` for lengths and `virtual_time` for the clock;
`simulated_figures` says what came out, `advice` what to set.
"""
