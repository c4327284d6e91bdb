"""
The simulator: the installation under a virtual clock, and weeks of jobs under several policies.

`world` is the real wiring on `loop`, an event loop in virtual time. `engine` runs jobs (`workload`,
`traces/`) on a `cluster` under one of the `policies`, of which `exchange` is our market; `metrics`
and `plot` tell how it went. `day` and `night` are scenes for benchmarks and the demo. It may use
every layer below; none of them knows that it is simulated.
"""
