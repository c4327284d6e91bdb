"""
llama.cpp's server with the flags of `llama-server` that `bidplane serve` uses, from xllamacpp's
wheel: nobody publishes the program itself as one. Run by the interpreter that has xllamacpp.
"""

import argparse
import time

import xllamacpp  # type: ignore[import-not-found]

flags = argparse.ArgumentParser()
flags.add_argument("--model", required=True)
flags.add_argument("--host", required=True)
flags.add_argument("--port", type=int, required=True)
flags.add_argument("--ctx-size", type=int, default=1024)
given = flags.parse_args()
params = xllamacpp.CommonParams()
params.model.path = given.model
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = given.ctx_size, 1, 1
params.hostnames, params.port = [given.host], given.port
server = xllamacpp.Server(params)
time.sleep(86400)
