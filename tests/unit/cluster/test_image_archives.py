import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from hack.cluster.images.archive import Image, Layer, write_archive

IMAGE = Image("localhost/some/thing:3", command=("sh",), env={"A": "1"}, folder="/work", user="5:5")


def archive_of(path: Path, fill: Any) -> dict[str, bytes]:
    write_archive(path, IMAGE, fill)
    with tarfile.open(path) as tar:
        return {member.name: content.read() for member in tar if (content := tar.extractfile(member)) is not None}


def blob(files: dict[str, bytes], reference: dict[str, Any]) -> bytes:
    content = files[f"blobs/{reference['digest'].replace(':', '/')}"]
    assert reference["size"] == len(content)
    assert reference["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    return content


def layer_of(files: dict[str, bytes]) -> tarfile.TarFile:
    manifest = json.loads(blob(files, json.loads(files["index.json"])["manifests"][0]))
    return tarfile.open(fileobj=io.BytesIO(blob(files, manifest["layers"][0])))


def test_every_part_is_found_by_its_digest(tmp_path: Path) -> None:
    files = archive_of(tmp_path / "image.tar", lambda layer: layer.text("etc/motd", "hello"))
    entry = json.loads(files["index.json"])["manifests"][0]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/some/thing:3"
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert config["config"]["Cmd"] == ["sh"]
    assert config["config"]["User"] == "5:5"
    assert "A=1" in config["config"]["Env"]


def test_folders_come_before_what_is_in_them_and_all_belongs_to_root(tmp_path: Path) -> None:
    with layer_of(archive_of(tmp_path / "image.tar", lambda layer: layer.text("a/b/c", "x"))) as layer:
        assert layer.getnames() == ["tmp", "a", "a/b", "a/b/c"]
        assert {(member.uid, member.gid) for member in layer} == {(0, 0)}


def test_a_tree_keeps_links_modes_and_times_and_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "skipped").mkdir(parents=True)
    (source / "sub" / "tool").write_text("x")
    (source / "sub" / "tool").chmod(0o755)
    (source / "link").symlink_to("sub/tool")

    def fill(layer: Layer) -> None:
        layer.tree(source, "opt", leave_out=["skipped"])

    with layer_of(archive_of(tmp_path / "image.tar", fill)) as layer:
        assert layer.getnames() == ["tmp", "opt", "opt/link", "opt/sub", "opt/sub/tool"]
        assert layer.getmember("opt/link").linkname == "sub/tool"
        tool = layer.getmember("opt/sub/tool")
        assert tool.mode == 0o755
        assert tool.mtime == int((source / "sub" / "tool").stat().st_mtime)


def test_who_takes_a_path_first_keeps_it(tmp_path: Path) -> None:
    def fill(layer: Layer) -> None:
        layer.text("etc/passwd", "ours")
        layer.text("/etc/passwd", "theirs")

    with layer_of(archive_of(tmp_path / "image.tar", fill)) as layer:
        content = layer.extractfile("etc/passwd")
        assert content is not None
        assert content.read() == b"ours"


def test_an_archive_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(_layer: Layer) -> None:
        raise FileNotFoundError("gone")

    try:
        write_archive(tmp_path / "image.tar", IMAGE, fail)
    except FileNotFoundError:
        assert list(tmp_path.iterdir()) == []
    else:
        raise AssertionError("the failure was swallowed")
