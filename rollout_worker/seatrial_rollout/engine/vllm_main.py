"""The vLLM server's main program: vLLM's own, with a faster start on CPUs.

vLLM spawns its engine process on CPUs, which imports everything a second time: a third of the time to the first
token. With one OpenMP thread and the worker inside the engine process there is nothing that a fork could break, so
that the engine process is forked, as vLLM does on GPUs.
"""

import os
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import uvloop
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.entry import build_and_serve, main
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from seatrial_rollout.engine.guard import end_with_parent
from seatrial_rollout.engine.launch import FORK_FLAG

_NICENESS = 5
"""Enough for the engine to wait for a batch; at 10 and more, any other load on the machine starves it."""


def _begin_engine_process() -> None:
    """End with the server, also when that is killed; and let whoever else needs the CPU go first.

    Trials share the cores here. An engine that computes each token as soon as it is asked works for one or two
    requests at a time; one that waits its turn finds more of them, and a token of a batch costs a tenth. A kernel with
    autogroups weighs sessions against each other, and niceness only within a session: both are set.
    """
    end_with_parent()
    os.nice(_NICENESS)
    with suppress(OSError):  # there are no autogroups
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


async def _serve(args: Namespace) -> None:
    listen_address, sock = setup_server(args, reuse_port=False)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    os.register_at_fork(after_in_child=_begin_engine_process)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # not before: making the config sets it to spawn
    engine = AsyncLLM.from_vllm_config(config, usage_context=UsageContext.OPENAI_API_SERVER)
    try:
        await (await build_and_serve(engine, listen_address, sock, args))
    finally:
        engine.shutdown()
        sock.close()


def _main_with_fork() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(sys.argv[2:])
    validate_parsed_serve_args(args)
    uvloop.run(_serve(args))


if __name__ == "__main__":
    if sys.argv[1:2] == [FORK_FLAG]:
        _main_with_fork()
    else:
        main()
