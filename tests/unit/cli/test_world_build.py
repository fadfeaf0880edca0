import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from seatrial.main import app
from seatrial.world_build import Order, build_image
from seatrial_api.errors import InvalidInputError


@pytest.fixture
def order(tmp_path: Path) -> Order:
    files = tmp_path / "files"
    (files / "finance").mkdir(parents=True)
    (files / "finance/a.csv").write_text("a,b\n")
    (files / "run.sh").write_text("#!/bin/sh\n")
    (files / "run.sh").chmod(0o700)
    return Order(files, "/srv/office", "registry.test/office:v1", "amd64")


def parts(path: Path) -> dict[str, bytes]:
    """Every member of an archive; blobs are held to their digests."""
    with tarfile.open(path) as tar:
        found = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]  # all files
    for name, content in found.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    return found


def image(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[bytes]]:
    """Manifest, configuration and unpacked layers of an archive."""
    found = parts(path)
    assert json.loads(found["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (named,) = json.loads(found["index.json"])["manifests"]

    def blob(descriptor: dict[str, Any]) -> bytes:
        content = found["blobs/" + descriptor["digest"].replace(":", "/")]
        assert len(content) == descriptor["size"]
        return content

    manifest = json.loads(blob(named))
    config = json.loads(blob(manifest["config"]))
    layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    return named, config, layers


def contents(layer: bytes) -> dict[str, tuple[int, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert {(member.uid, member.gid, member.mtime) for member in tar} == {(0, 0, 0)}
        return {
            member.name: (member.mode, content.read() if (content := tar.extractfile(member)) else b"")
            for member in tar.getmembers()
        }


def test_a_folder_becomes_an_image_that_names_itself(order: Order, tmp_path: Path) -> None:
    digest = build_image(order, tmp_path / "out/office.tar")
    named, config, (layer,) = image(tmp_path / "out/office.tar")
    assert named["digest"] == digest
    assert named["annotations"]["io.containerd.image.name"] == "registry.test/office:v1"
    assert (config["os"], config["architecture"], config["config"]["WorkingDir"]) == ("linux", "amd64", "/srv/office")
    assert contents(layer) == {
        "srv": (0o755, b""),
        "srv/office": (0o755, b""),
        "srv/office/finance": (0o755, b""),
        "srv/office/finance/a.csv": (0o644, b"a,b\n"),
        "srv/office/run.sh": (0o755, b"#!/bin/sh\n"),
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["office.tar"]


def test_equal_folders_make_equal_images(order: Order, tmp_path: Path) -> None:
    build_image(order, tmp_path / "one.tar")
    (order.folder / "finance/a.csv").touch()
    build_image(order, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    (order.folder / "finance/a.csv").write_text("a,c\n")
    before = image(tmp_path / "one.tar")[0]["digest"]
    assert build_image(order, tmp_path / "two.tar") != before


def test_an_image_upon_another_keeps_what_that_one_has(order: Order, tmp_path: Path) -> None:
    build_image(order, tmp_path / "base.tar")
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "b.txt").write_text("b")
    build_image(replace(order, folder=upper, workdir="/work", base=tmp_path / "base.tar"), tmp_path / "top.tar")
    _, config, layers = image(tmp_path / "top.tar")
    assert config["config"]["WorkingDir"] == "/work"
    assert [sorted(contents(layer)) for layer in layers][1] == ["work", "work/b.txt"]
    assert layers[0] == image(tmp_path / "base.tar")[2][0]


def test_what_cannot_be_a_world_is_refused_and_leaves_nothing(order: Order, tmp_path: Path) -> None:
    (order.folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(InvalidInputError, match="link is a link or a special file"):
        build_image(order, tmp_path / "out/a.tar")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(InvalidInputError, match="nowhere is not a folder"):
        build_image(replace(order, folder=tmp_path / "nowhere"), tmp_path / "a.tar")


def test_a_base_of_another_kind_or_platform_is_refused(order: Order, tmp_path: Path) -> None:
    (tmp_path / "base.tar").write_bytes(b"no archive")
    with pytest.raises(InvalidInputError, match=r"base.tar is not an OCI archive \(ReadError\)"):
        build_image(replace(order, base=tmp_path / "base.tar"), tmp_path / "a.tar")
    build_image(order, tmp_path / "base.tar")
    with pytest.raises(InvalidInputError, match="holds 0 images for arm64, not one; it has: amd64"):
        build_image(replace(order, architecture="arm64", base=tmp_path / "base.tar"), tmp_path / "a.tar")


def test_the_command_tells_the_digest(order: Order, tmp_path: Path) -> None:
    out = tmp_path / "office.tar"
    done = CliRunner().invoke(app, ["world", "build", str(order.folder), str(out), "--name", "registry.test/office:v1"])
    assert done.exit_code == 0, done.output
    named, config, _ = image(out)
    assert named["digest"] in done.output
    assert config["config"]["WorkingDir"] == "/workspace"
