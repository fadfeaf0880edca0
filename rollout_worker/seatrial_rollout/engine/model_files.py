"""The model's folder on this machine."""

from pathlib import Path

from seatrial_api.errors import InvalidInputError
from seatrial_api.pods import pvc_folder
from seatrial_api.spec.model import S3Source, Source


def find_model(source: Source, base_dir: Path) -> Path:
    """The folder, downloaded from the hub or S3 if need be.

    Raises:
        InvalidInputError: it is not there, or is not a model in Hugging Face layout.
        StoreUnavailableError: S3 does not answer.
    """
    if source.path is not None:
        folder = (base_dir / source.path).absolute()
    elif source.pvc is not None:
        folder = Path(pvc_folder(source.pvc.claim, source.pvc.path))
    elif source.s3 is not None:
        folder = _from_s3(source.s3, base_dir / ".cache")
    elif source.hf is not None:
        folder = _from_hub(source.hf.repo, source.hf.revision)
    else:
        raise InvalidInputError("spec.model.source is empty; set path, hf, s3 or pvc")
    if not folder.is_dir():
        raise InvalidInputError(f"spec.model.source: {folder} does not exist; correct it or create the model")
    if not (folder / "config.json").exists() or not list(folder.glob("*.safetensors")):
        raise InvalidInputError(f"spec.model.source: {folder} holds no config.json with safetensors beside it")
    return folder


def _from_s3(source: S3Source, cache_dir: Path) -> Path:
    from seatrial_rollout.object_store.source import fetch_source  # noqa: PLC0415  boto3, which few need

    return fetch_source(source, cache_dir)


def _from_hub(repo: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  only a hub model pays for the import
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(repo, revision=revision))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as exc:
        raise InvalidInputError(
            f"spec.model.source.hf: {repo}@{revision} is neither in the local cache nor to be had from the hub ({exc})"
        ) from exc
