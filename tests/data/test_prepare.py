"""A data set is made complete, or the error tells how to."""

import hashlib
import shutil
import socket
import tarfile
import zipfile
from dataclasses import replace

import pytest
from loopback import Site, serving
from miniature import write_cars_new, write_cub, write_inshop

from weiss._base import downloads
from weiss._base.downloads import Checksum, DownloadError
from weiss.data.official_sets import OFFICIAL
from weiss.data.prepare import prepare

CUB, CARS, INSHOP = OFFICIAL["cub"], OFFICIAL["cars"], OFFICIAL["inshop"]
MINI_COUNTS = {"train": (6, 2), "test": (6, 2)}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(downloads.time, "sleep", lambda _: None)


@pytest.fixture(scope="module")
def tgz(tmp_path_factory):
    """The bytes of a miniature CUB_200_2011.tgz."""
    root = tmp_path_factory.mktemp("origin")
    write_cub(root)
    with tarfile.open(root / "CUB.tgz", "w:gz") as file:
        file.add(root / "CUB_200_2011", "CUB_200_2011")
    return (root / "CUB.tgz").read_bytes()


def md5(data):
    return Checksum("md5", hashlib.md5(data).hexdigest(), "the test")


def mini_cub(url, data, counts=MINI_COUNTS):
    archive = replace(CUB.archives[0], url=url, checksum=md5(data))
    return replace(CUB, archives=(archive,), counts=counts)


def test_a_data_set_is_downloaded_unpacked_and_read(tmp_path, tgz):
    said = []
    with serving(Site(tgz, cuts=[1000])) as site:
        table = prepare(mini_cub(site.url, tgz), tmp_path / "new", say=said.append)
    assert table.sizes() == MINI_COUNTS
    assert site.first_bytes == [0, 1000]
    assert said[0].startswith(f"Fetching {site.url} to {tmp_path / 'new' / 'CUB_200_2011.tgz'}")
    assert "Unpacking" in said[1]
    assert "complete" in said[2]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "CUB_200_2011",
        "CUB_200_2011.tgz",
    ]


def test_what_is_complete_is_left_alone(tmp_path, capsys):
    write_cub(tmp_path)
    prepare(mini_cub("http://nowhere.invalid/", b""), tmp_path)
    assert "complete in" in (said := capsys.readouterr().out)
    assert "nothing to do" in said
    assert [path.name for path in tmp_path.iterdir()] == ["CUB_200_2011"]


def test_a_wrong_archive_put_there_is_fetched_again_and_kept_aside(tmp_path, tgz):
    (tmp_path / "CUB_200_2011.tgz").write_bytes(tgz[:100])
    with serving(Site(tgz)) as site:
        prepare(mini_cub(site.url, tgz), tmp_path)
    assert (tmp_path / "CUB_200_2011.tgz.wrong").read_bytes() == tgz[:100]


def test_incomplete_data_is_repaired_from_its_archive(tmp_path, tgz):
    (tmp_path / "CUB_200_2011.tgz").write_bytes(tgz)
    folder = write_cub(tmp_path)
    shutil.rmtree(folder / "images" / "002.Bird_1")
    (folder / "images.txt").write_text("damaged")
    assert len(prepare(mini_cub("http://nowhere.invalid/", tgz), tmp_path)) == 12


def test_without_network_the_error_explains_the_way_by_hand(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/CUB_200_2011.tgz"
    with pytest.raises(DownloadError) as caught:
        prepare(mini_cub(url, b""), tmp_path)
    for said in (
        url,
        "https://data.caltech.edu/records/65de6-vp158",
        f"put it into {tmp_path}",
        f"weiss data prepare cub --root {tmp_path}",
    ):
        assert said in str(caught.value)


def test_other_counts_than_published_are_refused(tmp_path, tgz):
    counts = {"train": (7, 2), "test": (6, 2)}
    with (
        serving(Site(tgz)) as site,
        pytest.raises(ValueError, match="train must hold 7 images of 2 classes; got 6 of 2"),
    ):
        prepare(mini_cub(site.url, tgz, counts), tmp_path)


def test_nothing_is_unpacked_inside_the_official_folder(tmp_path, tgz):
    folder = write_cub(tmp_path)
    shutil.rmtree(folder / "images")
    with (
        serving(Site(tgz)) as site,
        pytest.raises(ValueError, match=f"official folder .*itself.* --root {tmp_path}$"),
    ):
        prepare(mini_cub(site.url, tgz), folder)
    assert site.asked == []


@pytest.mark.parametrize("name", ["cars", "inshop_joined"])
def test_without_an_address_the_error_explains_the_way_by_hand(tmp_path, name):
    with pytest.raises(FileNotFoundError) as caught:
        prepare(name, tmp_path)
    said = str(caught.value)
    assert str(tmp_path) in said
    assert "https://" in said
    assert f"weiss data prepare {name} --root {tmp_path}" in said


def cars_archives(root):
    """Put the archives of a miniature Cars-196 into a folder; return the set that fits them."""
    write_cars_new(root / "origin")
    root.joinpath("cars_test_annos_withlabels.mat").write_bytes(
        (root / "origin" / "cars_test_annos_withlabels.mat").read_bytes()
    )
    for name, folder in (
        ("car_devkit.tgz", "devkit"),
        ("cars_train.tgz", "cars_train"),
        ("cars_test.tgz", "cars_test"),
    ):
        with tarfile.open(root / name, "w:gz") as file:
            file.add(root / "origin" / folder, folder)
    shutil.rmtree(root / "origin")
    archives = tuple(
        replace(archive, checksum=md5((root / archive.name).read_bytes()))
        for archive in CARS.archives[:4]
    )
    return replace(CARS, archives=archives + CARS.archives[4:], counts=MINI_COUNTS)


def test_archives_of_one_form_suffice(tmp_path):
    assert prepare(cars_archives(tmp_path), tmp_path).sizes() == MINI_COUNTS


def test_an_archive_by_hand_that_is_not_the_published_one_is_refused(tmp_path):
    official = cars_archives(tmp_path)
    (tmp_path / "cars_test.tgz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="cars_test.tgz must have the md5 .*unpack it yourself"):
        prepare(official, tmp_path)


def test_some_archives_by_hand_are_used_and_the_rest_asked_for(tmp_path):
    official = cars_archives(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(FileNotFoundError, match="What was found: .*cars_test_annos_withlabels"):
        prepare(official, tmp_path)
    assert (tmp_path / "cars_train").is_dir()


def test_the_zip_and_the_list_of_inshop_suffice(tmp_path):
    write_inshop(tmp_path, list_in=".")
    with zipfile.ZipFile(tmp_path / "img.zip", "w") as file:
        for path in sorted((tmp_path / "img").rglob("*.jpg")):
            file.write(path, path.relative_to(tmp_path))
    shutil.rmtree(tmp_path / "img")
    official = replace(INSHOP, counts={"train": (8, 2), "query": (4, 2), "gallery": (4, 2)})
    assert len(prepare(official, tmp_path)) == 16


def test_an_unknown_name_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="one of 'cub', 'cars', 'sop', .*Did you mean 'cub'"):
        prepare("cubs", tmp_path)
