"""
Bids from what agents ask for: pods, claims and annotations become asks with a price. Pure.

    asks         what a pod asks for; `claimbids` and `gpumemory`: what its claims do
    admission    refusal of what cannot be read; `annotations`: names that nothing reads
    strategy     the price of pods that name none, each round; `steady` and `pacing` are two ways
    pending      why a pod waits, for programs

The scheduler makes Bids of asks, and a plane refuses what `admission` does.
"""
