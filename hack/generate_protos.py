"""Python modules and type stubs of the protobuf files under `api/protos/`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SOURCES = Path("api/protos/seatrial/v1")
_PACKAGE = "seatrial_api/protos"
_TARGET = Path("api") / _PACKAGE
_GENERATORS = ("python", "grpc_python", "mypy", "mypy_grpc")


def proto_modules() -> dict[Path, str]:
    """Content of every generated module and stub, by its path from the root."""
    sources = sorted(path.name for path in (ROOT / _SOURCES).glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        _compile(sources, Path(folder))
        made = sorted(Path(folder, _PACKAGE).iterdir())
        return {_TARGET / path.name: path.read_text(encoding="utf-8") for path in made}


def _compile(sources: list[str], folder: Path) -> None:
    """Run protoc with the sources mapped into our package, so that the modules import each other from there."""
    plugins = [f"--plugin=protoc-gen-{name}={_plugin(f'protoc-gen-{name}')}" for name in ("mypy", "mypy_grpc")]
    outputs = [f"--{name}_out={folder}" for name in _GENERATORS]
    files = [f"{_PACKAGE}/{name}" for name in sources]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{_PACKAGE}={ROOT / _SOURCES}", *plugins, *outputs, *files]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"protoc refuses the sources:\n{done.stderr}")


def _plugin(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is missing; it comes with mypy-protobuf")
    return found
