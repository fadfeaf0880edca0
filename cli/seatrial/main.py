"""The `seatrial` command."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from seatrial import evaluation_view, live, plan_advice_view, plan_view
from seatrial.cluster import view
from seatrial.cluster.runs import ClusterError, ClusterRuns
from seatrial.cluster.top import watch
from seatrial.data import contaminated, duplicates, print_data, summarize_data
from seatrial.evaluated_model import Which, checkpoint_of, complete, named_model
from seatrial.evaluation import STAGE, Question, evaluation_of
from seatrial.execution import execute
from seatrial.local import read_progress
from seatrial.manifest import load_run
from seatrial.plan import make_plan
from seatrial.plan_layout import GPU_MEMORY_GIB, LayoutInputs
from seatrial.push.command import PushOrder, push
from seatrial.run_folders import (
    check_resumable,
    evaluation_folder,
    kept_in,
    latest_run_folder,
    looked_at,
    new_run_folder,
)
from seatrial.summary import print_summary
from seatrial.traces import print_comparison, print_traces
from seatrial.validate import exit_code, print_validation
from seatrial.validate import validate as validate_files
from seatrial.world import inspect, load_world, print_inspection
from seatrial.world_build import Order, build_image
from seatrial_api.conditions import RunPhase
from seatrial_api.driver_request import DriverRequest
from seatrial_api.errors import InvalidInputError, TransientError
from seatrial_api.finding import FindingKind
from seatrial_api.outcome import Outcome
from seatrial_api.playbook import ExitCode
from seatrial_api.pods import Role
from seatrial_api.refusals import Launcher, refusals
from seatrial_api.rlrun import RLRun
from seatrial_api.spec.model import Source
from seatrial_api.status import RLRunStatus
from seatrial_operator.registry.credentials import Credentials
from seatrial_rollout.engine.model_files import find_model
from seatrial_trainer.driver.inputs import load_inputs
from seatrial_trainer.reporting.changes import changes, trials_of
from seatrial_trainer.reporting.comparison import compare
from seatrial_trainer.reporting.report import write_report
from seatrial_trainer.reporting.selection import Selection
from seatrial_trainer.scheduling.advice import advise
from seatrial_trainer.storage.run_storage import RunStorage

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
data = typer.Typer(no_args_is_help=True)
worlds = typer.Typer(no_args_is_help=True)
app.add_typer(data, name="data", help="Look into a run's task sets.")
app.add_typer(worlds, name="world", help="Build worlds, and prove that they are fit to train in.")
console = Console()
errors = Console(stderr=True)

Manifest = Annotated[Path, typer.Argument(help="An RLRun manifest.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a field: `spec.algorithm.seed=2`. May be repeated.")
]
RunFolder = Annotated[
    Path | None, typer.Option("--run", help="Folder of the run; the latest one of the manifest if empty.")
]
RunName = Annotated[str, typer.Argument(help="Name of an RLRun in the cluster.", show_default=False)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the RLRun; the context's own if empty.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; the current one if empty.")]


@app.callback()
def describe() -> None:
    """Train agents with reinforcement learning: on this machine, or on Kubernetes."""


@app.command()
def run(
    manifest: Manifest,
    overrides: Overrides = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the latest run of this manifest.")] = False,
) -> None:
    """Run a manifest on this machine, through its stages and gates.

    Exits with 0 when every gate holds, 3 when one does not or a guard fired, 2 for bad input, 130 after Ctrl-C.
    """
    wanted = load_run(manifest, overrides or [])
    base_dir = manifest.parent.absolute()
    _check_startable(wanted, base_dir)
    folder = latest_run_folder(wanted) if resume else new_run_folder(wanted)
    if resume:
        check_resumable(folder, wanted)
    stages = [stage.name for stage in wanted.spec.stages]
    kept = kept_in(wanted, folder)
    request = DriverRequest(run=wanted, base_dir=base_dir, stages=stages, resume=resume, kept_in=kept)
    again = ["seatrial", "run", str(manifest), *(f"--set={override}" for override in overrides or []), "--resume"]
    raise typer.Exit(execute(request, folder, again, console, errors))


@app.command("eval")
def evaluate(  # noqa: PLR0913  one option per condition
    manifest: Manifest,
    overrides: Overrides = None,
    *,
    model: Annotated[
        str, typer.Option(help="Model to evaluate: a folder, a checkpoint's folder, or OWNER/NAME@REVISION of the hub.")
    ] = "",
    checkpoint: Annotated[
        Which, typer.Option(help="Without --model: which weights of the manifest's latest run, or of --run.")
    ] = "Initial",
    folder: RunFolder = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="Tasks: a folder or file, as PATH or NAME=PATH. May be repeated; "
            "the manifest's held-out and regression sets if empty."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first tasks of each set.")] = None,
    harness: Annotated[
        list[str] | None, typer.Option(help="Harness to evaluate with. May be repeated; the manifest's if empty.")
    ] = None,
    passes: Annotated[int, typer.Option("--passes", "-k", min=1, help="Tries at each task.")] = 1,
    temperature: Annotated[
        list[float] | None, typer.Option(min=0, help="Temperature, 0 for greedy. May be repeated; 1 if empty.")
    ] = None,
    top_p: Annotated[float, typer.Option(max=1, help="Nucleus mass.")] = 1.0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; runs/NAME-eval/NUMBER if empty.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --out, or the latest evaluation.")] = False,
    against: Annotated[
        Path | None, typer.Option(help="Folder of another evaluation or run: tell what changed, paired by task.")
    ] = None,
) -> None:
    """Evaluate a model on task sets: pass@1 and pass@k with intervals, by domain and tool, behaviour and cost.

    Leaves results.json, trials.parquet and report.html. Exits as `seatrial run` does.
    """
    if model and checkpoint != "Initial":
        raise InvalidInputError("--model and --checkpoint both name what to evaluate; choose one")
    if against:
        trials_of(against)
    base_dir, trained = manifest.parent.absolute(), load_run(manifest, overrides or [])
    question = Question(tasks or (), harness or (), passes, temperature or (1.0,), top_p, limit)
    chosen = named_model(model) if model else checkpoint_of(trained, checkpoint, folder)
    own = trained.spec.model.source
    wanted = evaluation_of(trained, chosen if isinstance(chosen, Source) else own, question)
    _check_startable(wanted, base_dir)
    target = evaluation_folder(wanted, out, resume=resume)
    if isinstance(chosen, Path):
        wanted = evaluation_of(trained, complete(chosen, find_model(own, base_dir), target / "model"), question)
    if resume:
        check_resumable(target, wanted)
    request = DriverRequest(run=wanted, base_dir=base_dir, stages=[STAGE], resume=resume)
    again = ["seatrial", *sys.argv[1:], *([] if resume else ["--resume"])]
    code = execute(request, target, again, console, errors)
    if against and code == ExitCode.PASSED:
        console.print(evaluation_view.render_changes(f"Against {against}", "there", "here", changes(against, target)))
    raise typer.Exit(code)


@app.command()
def validate(
    manifests: Annotated[list[Path], typer.Argument(help="Manifests.", show_default=False)],
    overrides: Overrides = None,
) -> None:
    """Show every problem of manifests at once."""
    checked = validate_files(manifests, overrides or [])
    print_validation(checked, console)
    raise typer.Exit(exit_code(checked))


@app.command()
def plan(
    manifest: Manifest,
    overrides: Overrides = None,
    launcher: Annotated[Launcher, typer.Option(help="Who would start the run.")] = "local",
    *,
    model_config: Annotated[
        Path | None,
        typer.Option(help="The model's config.json, where the model is not here: what each training rank would need."),
    ] = None,
    gpu_memory_gib: Annotated[float, typer.Option(min=1, help="Memory of a training GPU.")] = GPU_MEMORY_GIB,
    simulate: Annotated[bool, typer.Option(help="Try concurrencies in virtual time; takes some seconds.")] = True,
) -> None:
    """Show what a run would make, its ceilings, its training layout and its cost, before anything is spent."""
    wanted, base_dir = load_run(manifest, overrides or []), manifest.parent.absolute()
    planned = make_plan(wanted, base_dir, launcher, layout_inputs=LayoutInputs(model_config, gpu_memory_gib))
    console.print(plan_view.render(planned))
    if simulate and any(stage.train or stage.ablate for stage in wanted.spec.stages):
        advice = advise(wanted.spec, highest=planned.ceilings.systems)
        console.print(plan_advice_view.render(advice, wanted.spec.async_.concurrency))


@app.command()
def status(
    run: Annotated[
        str, typer.Argument(help="A manifest, for its latest run here; or an RLRun's name, for one in the cluster.")
    ],
    folder: RunFolder = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Show where a run stands."""
    if not _is_file(run):
        with ClusterRuns.connect(namespace, context) as runs:
            console.print(view.render(runs.get(run)))
        return
    folder = looked_at(Path(run), folder)
    progress = read_progress(folder)
    if progress is None:
        console.print(f"no driver runs in {folder}", soft_wrap=True, highlight=False)
        print_summary(list(RunStorage(folder).reports()), console)
    else:
        console.print(live.render(progress))


@app.command()
def top(run: RunName, namespace: Namespace = None, context: Context = None) -> None:
    """Watch a run in the cluster live, from its driver, until it ends."""
    with ClusterRuns.connect(namespace, context) as runs:
        watch(runs, run, console)


@app.command()
def logs(
    run: RunName,
    role: Annotated[Role, typer.Option(help="Pods to listen to; the driver runs in the head.")] = Role.HEAD,
    namespace: Namespace = None,
    context: Context = None,
    tail: Annotated[int | None, typer.Option(help="Only the last lines of each pod.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more; of the newest pod alone.")] = False,
) -> None:
    """Print the logs of a run's pods in the cluster."""
    with ClusterRuns.connect(namespace, context) as runs:
        pods = runs.pods(run, role)
        if not pods:
            raise InvalidInputError(f"RLRun {run} has no {role.value} pods now; `seatrial status {run}` tells why")
        for pod in pods[:1] if follow else reversed(pods):
            for line in runs.log_lines(pod, follow=follow, tail=tail):
                console.print(f"{pod}  {line}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def resume(run: RunName, namespace: Namespace = None, context: Context = None) -> None:
    """Let a run in the cluster go on that was suspended, guarded, or stopped by a gate."""
    with ClusterRuns.connect(namespace, context) as runs:
        found = runs.get(run)
        phase = (found.status or RLRunStatus()).phase
        if phase is RunPhase.SUCCEEDED:
            raise InvalidInputError(f"every stage of RLRun {run} passed; there is nothing to go on with")
        if phase is RunPhase.RUNNING and not found.spec.suspend:
            raise InvalidInputError(f"RLRun {run} runs; `seatrial top {run}` shows it")
        runs.resume(run)
    console.print(f"RLRun {run} was asked to go on; `seatrial status {run}` tells how", highlight=False)


@app.command()
def report(manifest: Manifest, folder: RunFolder = None) -> None:
    """Write a run's report.html anew, whatever state the run is in."""
    folder = looked_at(manifest, folder)
    path = write_report(folder, base_dir=manifest.parent.absolute())
    console.print(f"report: {path}", soft_wrap=True, highlight=False)


@app.command()
def traces(  # noqa: PLR0913, PLR0917  one option per condition
    manifest: Manifest,
    folder: RunFolder = None,
    stage: Annotated[str, typer.Option(help="Stage, or a pattern of stages: `train`, `*`.")] = "*",
    task: Annotated[str, typer.Option(help="Part of the task's name.")] = "",
    outcome: Annotated[Outcome | None, typer.Option(help="How they ended.")] = None,
    tool: Annotated[str, typer.Option(help="A tool that was called: `sheets_lookup`.")] = "",
    max_reward: Annotated[float | None, typer.Option(help="Only trials that earned at most this.")] = None,
    show: Annotated[int, typer.Option(min=0, help="Trajectories to print turn by turn.")] = 0,
    *,
    failed_calls: Annotated[bool, typer.Option("--failed-calls", help="Only trials with a failed tool call.")] = False,
    infrastructure: Annotated[
        bool, typer.Option("--infrastructure", help="Only trials that infrastructure ended.")
    ] = False,
    finding: Annotated[FindingKind | None, typer.Option(help="What the sandbox's audit found.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Folder of another run: compare with its trajectories under the same conditions."),
    ] = None,
) -> None:
    """Summarise a run's trajectories by outcome, tool and error, or compare them with another run's."""
    folder = looked_at(manifest, folder)
    selection = Selection(
        task=task,
        outcome=outcome or "",
        tool=tool,
        failed_tool_calls=failed_calls,
        infrastructure=infrastructure,
        finding=finding or "",
        max_reward=max_reward,
    )
    chosen = list(selection.of(RunStorage(folder).trajectories(stage)))
    if against is None:
        print_traces(chosen, console, show=show)
    else:
        others = RunStorage(looked_at(manifest, against)).trajectories(stage)
        print_comparison(compare(list(selection.of(others)), chosen), console)


@data.command("inspect")
def inspect_data(
    manifest: Manifest,
    contamination_ngram: Annotated[
        int,
        typer.Option(min=0, help="Also name training tasks that share so many words in a row with others; 0: none."),
    ] = 0,
) -> None:
    """Count a run's tasks by set and domain; name those that cannot be used, and those that are one and the same.

    Exits with 0 when every task can be used, none comes twice and no words are shared, else with 2.
    """
    found = summarize_data(load_run(manifest, []), manifest.parent.absolute())
    shared = contaminated(found, contamination_ngram) if contamination_ngram else []
    print_data(found, console, shared)
    if shared or duplicates(found) or any(one.problems for one in found):
        raise typer.Exit(ExitCode.INVALID)


@worlds.command("inspect")
def inspect_world(
    manifest: Annotated[Path, typer.Argument(help="A WorldImage manifest with spec.inspection.", show_default=False)],
    name: Annotated[str, typer.Option(help="Which WorldImage, if the file holds several.")] = "",
    trials: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 4,
    report_dir: Annotated[Path, typer.Option(help="Where inspection.md and inspection.json go.")] = Path(),
) -> None:
    """Try a world's tasks, verifiers and tools on this machine: its own files in local sandboxes, not its image.

    Exits with 0 when nothing was found, 3 when the world is not fit to train in, 2 for bad input.
    """
    wanted, inspection = load_world(manifest, name)
    found = asyncio.run(inspect(wanted, inspection, manifest.parent.absolute(), trials))
    print_inspection(found, report_dir, console)
    if not found.passes(inspection.max_flakiness):
        raise typer.Exit(ExitCode.STOPPED)


@worlds.command("build")
def build_world(
    folder: Annotated[Path, typer.Argument(help="Folder with the world's files.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="OCI archive to write.", show_default=False)],
    name: Annotated[str, typer.Option(help="Name of the image, with a tag.")] = "localhost/world:latest",
    workdir: Annotated[str, typer.Option(help="Where the files lie in the image.")] = "/workspace",
    base: Annotated[Path | None, typer.Option(help="OCI archive to build upon.", show_default=False)] = None,
    architecture: Annotated[Literal["amd64", "arm64"], typer.Option(help="Of the image.")] = "amd64",
) -> None:
    """Make an image of a world's files, without a container engine; equal files make equal images."""
    digest = build_image(Order(folder, workdir, name, architecture, base), out)
    console.print(f"{out}: {name} {digest}", soft_wrap=True)


def _check_startable(run: RLRun, base_dir: Path) -> None:
    """Refuse before anything is made what this machine cannot run, or has no model or tasks for."""
    if problems := refusals(run.spec, launcher="local"):
        raise InvalidInputError("\n".join(map(str, problems)))
    load_inputs(run.spec, base_dir)


@worlds.command("push")
def push_world(
    archive: Annotated[Path, typer.Argument(help="OCI archive, as `world build` writes it.", show_default=False)],
    repository: Annotated[str, typer.Argument(help="registry/name, with a tag or the archive's.", show_default=False)],
    username: Annotated[str, typer.Option(help="Name; with --password-stdin.")] = "",
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="The registry speaks no TLS.")] = False,
    piece_mib: Annotated[int, typer.Option(min=0, help="Send blobs in pieces that can be resumed; 0: whole.")] = 0,
) -> None:
    """Push an image to any registry. What is there already is not sent; credentials are those of `docker login`."""
    if bool(username) != password_stdin:
        raise InvalidInputError("--username and --password-stdin belong together; give both or neither")
    credentials = Credentials(username, sys.stdin.readline().rstrip("\n")) if username else None
    reference, pushed = asyncio.run(
        push(PushOrder(archive, repository, credentials, plain_http, piece_mib << 20), errors)
    )
    console.print(f"{reference}: {len(pushed.sent)} sent, {len(pushed.there)} there already", soft_wrap=True)
    console.print(f"spec.image: {reference.pinned(pushed.digest)}", soft_wrap=True, highlight=False)


def _is_file(argument: str) -> bool:
    """Whether a manifest is meant and not the name of an RLRun."""
    return argument.endswith((".yaml", ".yml")) or Path(argument).is_file()


def main() -> None:
    """Entry point: bad input is one clear message and exit code 2."""
    try:
        app()
    except InvalidInputError as exc:
        errors.print(f"[red]error:[/red] {escape(str(exc))}", soft_wrap=True, highlight=False)
        sys.exit(ExitCode.INVALID)
    except (ClusterError, TransientError) as exc:
        errors.print(f"[red]error:[/red] {escape(str(exc))}", soft_wrap=True, highlight=False)
        sys.exit(ExitCode.FAILED)
