"""index, search, serve and export as somebody types them: right, and wrong in words."""

import json
import shutil
import signal
import sys
import urllib.request

import pytest
from glyph_catalogue import glyph_catalogue, with_other_weights, write_glyphs
from tiny import begin
from typed import refused, said, weiss

from weiss.cli.classify import print_class_report


@pytest.fixture(autouse=True, scope="module")
def always_one_thread(one_thread):
    """Compute with one thread in every test here."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run, pictures and an index of them; only to be read."""
    folder = shutil.copytree(glyph_catalogue(), tmp_path_factory.mktemp("made") / "made")
    return (folder / "characters").rename(folder / "pictures").parent


@pytest.fixture
def index(made, tmp_path):
    """A copy of the index, to be changed."""
    return shutil.copytree(made / "index", tmp_path / "index")


def test_a_search_prints_ranks_similarities_classes_and_a_verdict(made):
    picture = made / "pictures" / "U+0041" / "2.png"
    lines = said("search", made / "index", picture, "-k", 3).splitlines()
    assert lines[0].startswith(f"{picture}: ")
    assert "threshold" in lines[0]
    assert " %) of impostors reach" in lines[0]
    assert lines[1].split() == ["rank", "similarity", "distance", "class", "name"]
    assert lines[2].split() == ["*", "1", "1.0000", "0.0000", "U+0041", "U+0041/2.png"]
    assert sum(line.split()[-1].endswith(".png") for line in lines[2:]) == 3


@pytest.mark.parametrize("command", ["search", "classify"])
def test_pictures_that_cannot_be_read_are_named_and_the_others_answered(
    made, tmp_path, monkeypatch, command
):
    from weiss.catalogue import networks

    monkeypatch.setattr(networks, "AT_ONCE", 2)  # the first two of them are both unreadable
    good = [made / "pictures" / "U+0041" / f"{number}.png" for number in (1, 2, 1)]
    (tmp_path / "broken.png").write_bytes(b"no picture")
    bad = [tmp_path / "broken.png", tmp_path / "gone.png"]
    words = (command, made / "index", *bad, *good, "-k", 1)
    done = weiss(*words)
    assert done.returncode == 1
    assert [line.split(": ")[0] for line in done.stdout.splitlines() if ".png: " in line] == [
        str(path) for path in good
    ]
    assert done.stderr.splitlines() == [
        f"Error: {bad[0]}: is no image that Pillow can read",
        f"Error: {bad[1]}: cannot be opened (No such file or directory)",
    ]
    done = weiss(*words, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [answer["query"]["image"] for answer in found["answers"]] == [*map(str, good)]
    assert found["unreadable"] == [
        {"image": str(bad[0]), "error": "is no image that Pillow can read"},
        {"image": str(bad[1]), "error": "cannot be opened (No such file or directory)"},
    ]
    assert f"{bad[0]}: is no image" in refused(command, made / "index", *bad)
    assert json.loads(said(command, made / "index", *good, "--json"))["unreadable"] == []


def test_a_page_has_the_pictures_that_can_be_read(made, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    pictures = (tmp_path / "broken.png", made / "pictures" / "U+0041" / "2.png")
    done = weiss("search", made / "index", *pictures, "--html", tmp_path / "page.html")
    assert done.returncode == 1
    assert "Wrote " in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert page.count("<li class=") == 10
    assert "broken" not in page


def test_what_is_far_from_everything_is_no_match(made, tmp_path):
    import numpy as np

    from weiss._base.images import encode_png

    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 1), dtype=np.uint8)
    (tmp_path / "noise.png").write_bytes(encode_png(noise))
    lines = said("search", made / "index", tmp_path / "noise.png", "-k", 2).splitlines()
    assert "no match: the nearest has similarity" in lines[0]
    assert "* a match" not in lines


def test_json_says_the_same_for_programs(made):
    pictures = [made / "pictures" / name / "1.png" for name in ("U+0041", "U+0043")]
    found = json.loads(said("search", made / "index", *pictures, "-k", 2, "--json"))["answers"]
    assert [answer["query"] for answer in found] == [{"image": str(path)} for path in pictures]
    assert [len(answer["results"]) for answer in found] == [2, 2]
    assert 0 <= found[0]["threshold"]["false_match_rate"] <= 1
    assert found[0]["match"] is True
    first = found[0]["results"][0]
    assert (first["name"], first["classes"], first["match"]) == ("U+0041/1.png", ["U+0041"], True)


def test_a_page_of_the_hits_is_written_beside_the_table(made, tmp_path):
    picture = made / "pictures" / "U+0041" / "2.png"
    out = said("search", made / "index", picture, "--html", tmp_path / "page.html")
    assert f"Wrote {tmp_path / 'page.html'}" in out
    page = (tmp_path / "page.html").read_text()
    assert page.count("<li class=") == 10
    assert str(tmp_path) not in page
    assert str(made) not in page


def test_a_class_added_after_training_is_named_and_what_is_wrong_is_shown(made, index, tmp_path):
    kiwis = write_glyphs(tmp_path / "new", num_classes=1, per_class=8, first=60)
    (folder,) = kiwis.iterdir()
    query, wrong = (folder / "0.png").rename(tmp_path / "query.png"), folder / "wrong.png"
    shutil.copy(made / "pictures" / "U+0041" / "1.png", wrong)
    strange = tmp_path / "strange"
    strange.mkdir()
    for number in range(2):
        shutil.copy(made / "pictures" / "U+0041" / "2.png", strange / f"{number}.png")
    said("index", "--add", folder, "--class", "kiwi", "--out", index)
    assert "no class" in said("index", "--add", strange, "--out", index)
    line = said("classify", index, query)
    assert line.startswith(f"{query}: kiwi 0.")
    # A picture of the index does not vote for its own class.
    again = said("classify", index, wrong, "-k", 1)
    assert again.startswith(f"{wrong}: U+0041 ")
    assert "compared with the others" in again
    (known,) = json.loads(said("classify", index, wrong, "--json"))["answers"]
    assert known["query"]["item"]["name"] in ("kiwi/wrong.png", "U+0041/1.png")
    assert known["trained_on"] is False
    (answer,) = json.loads(said("classify", index, query, "-k", 2, "--json"))["answers"]
    assert [len(answer["classes"]), answer["classes"][0]["class"]] == [2, "kiwi"]
    lines = said("classify", index, "--html", tmp_path / "page.html")
    assert "lie nearest to their own class" in lines
    assert "kiwi/wrong.png: nearer to U+0041 (" in lines
    page = (tmp_path / "page.html").read_text()
    found = json.loads(said("classify", index, "--json"))
    assert page.count("<h2>") == len(found["doubtful"])
    doubtful = next(each for each in found["doubtful"] if each["name"] == "kiwi/wrong.png")
    assert (doubtful["nearer_to"], doubtful["classes"]) == ("U+0041", ["kiwi"])
    assert doubtful["other"] > doubtful["own"]
    assert found["accuracy"] == pytest.approx(1 - len(found["doubtful"]) / found["measured"])
    assert "Leave IMAGE out" in refused("classify", index, query, "--html", tmp_path / "p.html")


def test_an_index_is_made_added_to_and_removed_from(made, tmp_path):
    few, more, index = (tmp_path / name for name in ("few", "more", "index"))
    write_glyphs(few, num_classes=3, per_class=4)
    assert "few: 12 images of 3 classes" in said("index", made / "run", few, "--out", index)
    write_glyphs(more, num_classes=2, per_class=3, first=30)
    assert "6 images added" in said("index", "--add", more, "--out", index)
    name = sorted(path.name for path in few.iterdir())[1]
    out = said("index", "--remove", f"class:{name}", "--remove", "0", "--out", index)
    assert "5 images removed; now 13" in out
    assert "files are as they were written" in said("index", "--check", "--out", index)


def test_one_class_is_said_not_to_be_measured(made, tmp_path):
    one = write_glyphs(tmp_path / "one", num_classes=1, per_class=4)
    assert "one: 4 images of 1 class, " in said("index", made / "run", one, "--out", tmp_path / "i")
    said_of_it = said("classify", tmp_path / "i")
    assert "Nothing can be measured: there is no other class" in said_of_it
    done = weiss("evaluate", one, *PRETRAINED)
    assert "Note: the queries are of one class" in done.stderr
    assert "Note: the queries" not in weiss("evaluate", made / "pictures", *PRETRAINED).stderr
    assert "100 %" not in said_of_it


def test_confusions_that_are_not_printed_are_counted(capsys):
    pairs = [{"class": f"c{n}", "taken_for": "d", "count": 2} for n in range(12)]
    found = {"doubtful": [], "measured": 99, "accuracy": 1.0, "accuracy_interval": None}
    more = {"classes": 13, "trained_on": [], "level": None, "confusions": pairs}
    print_class_report({**found, **more})
    printed = capsys.readouterr().out
    assert "2 of c9 are nearer to d" in printed
    assert "c10" not in printed
    assert "and 4 more items: --json lists the classes" in printed


PRETRAINED = ("--backbone", "small", "--weights", "scratch")


def test_photos_alone_are_indexed_and_measured_by_a_network_that_is_not_trained(made, tmp_path):
    index, pictures = tmp_path / "index", made / "pictures"
    out = said("index", pictures, "--out", index, *PRETRAINED)
    words = "small network with random weights, not trained"
    assert f"embedded by {words}; every class counts as one that it never saw" in out
    card = (index / "card.md").read_text()
    assert f"- {words}; every class counts as one that it never saw." in card
    assert "trained with" not in card
    # The 40 classes suffice for a threshold: the network has seen none of them.
    assert "40 classes of this index that never trained" in card
    (model,) = index.glob("model-*")
    assert "model.safetensors: " in said("export", model, "--out", tmp_path / "model.safetensors")
    assert words in (tmp_path / "model.safetensors.md").read_text()
    picture = pictures / "U+0041" / "2.png"
    assert "U+0041/2.png" in said("search", index, picture, "-k", 1)
    assert "images added" in said("index", "--add", _more(tmp_path), "--out", index)
    out = said("evaluate", pictures, *PRETRAINED)
    assert out.startswith(f"320 queries of {pictures} by {words}"), out


def _more(folder):
    write_glyphs(folder / "more", num_classes=1, per_class=2, first=60)
    return folder / "more"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "run", "--backbone", "small"], "--backbone must be left out for a run"),
        (["evaluate", "picturs", *PRETRAINED], "there is no picturs. Did you mean 'pictures'?"),
        (["evaluate", "nothing"], "RUN must be the folder of a run"),
        (["evaluate", "pictures", "--data", "pictures"], "must be given once; got pictures and"),
        (["evaluate", "pictures", "--backbone", "resnet50_v1"], "--weights FILE must be given for"),
        (["index", "picturs", "--out", "new"], "there is no picturs. Did you mean 'pictures'?"),
        (["index", "pictures", "--out", "index"], "must not hold an index yet; it does"),
        (["index", "pictures", "--out", "pictures/new"], "new would lie in IMAGES, pictures"),
        (["index", "run", "pictures", "--out", "new", *PRETRAINED], "--backbone must be left out"),
        (["index", "pictures", "--out", "new", "--pooling", "mean"], "--pooling must be one of"),
        (["index", "pictures", "--out", "new", "--split", "x", *PRETRAINED], "be all for pictures"),
    ],
)
def test_a_pretrained_network_without_data_or_beside_a_run_is_refused(
    made, monkeypatch, words, message
):
    monkeypatch.chdir(made)
    assert message in refused(*words)
    assert not (made / "new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "empty", "--out", "new"], "empty must hold images (.jpg"),
        (["embed", "empty", "--out", "new"], "empty must hold images (.jpg"),
        (["evaluate", "empty"], "empty must hold images (.jpg"),
        (["evaluate", "cars"], "To read your own folder of this name: cars/"),
        (["index", "cub", "--out", "new"], "root must be the folder of cub; it was not given"),
        (["index", "pictures", "--out", "new", "--batch-size", "0"], "--batch-size must be at"),
        (["index", "pictures", "--out", "new", "--kind", "tree"], "--kind must be one of"),
        (["index", "pictures", "--out", "new", "--store", "redis"], "--store must be faiss or"),
        (["index", "pictures", "--out", "new", "--threshold", "4"], "--threshold must be a cosine"),
        (["index", "pictures", "--out", "new", "--device", "tpu"], "device must be one of"),
        (["index", "pictures", "--out", "new", "--false-match-rate", "2"], "--false-match-rate"),
    ],
)
def test_what_is_wrong_is_said_before_weights_are_downloaded(made, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cars").mkdir()
    (tmp_path / "pictures").symlink_to(made / "pictures")
    # No backbone is named: its weights would be fetched.
    assert message in refused(*words, cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "pictures"], "--out must name the index folder"),
        (["run", "--out", "new"], "RUN and IMAGES must both be given to make an index"),
        (["run", "pictures", "--add", "pictures", "--out", "new"], "got several. Do them one"),
        (["--add", "p", "--remove", "x", "--out", "index"], "got several. Do them one"),
        (["run", "pictures", "--out", "index"], "must not hold an index yet; it does"),
        (["run", "picturs", "--out", "new"], "Did you mean 'pictures'?"),
        (["run", "pictures", "--out", "new", "--store", "redis"], "--store must be faiss or"),
        (["run", "pictures", "--out", "new", "--kind", "tree"], "--kind must be one of"),
        (["run", "pictures", "--out", "new", "--batch-size", "0"], "--batch-size must be at least"),
        (["run", "pictures", "--out", "new", "--false-match-rate", "2"], "--false-match-rate must"),
        (["--remove", "nothing", "--out", "index"], "is neither a name, nor an id"),
        (["--add", "pictures", "--out", "indx"], "Did you mean 'index'?"),
        (["--add", "pictures", "--out", "index", "--kind", "ivf"], "--kind must be left out with"),
        (["--remove", "0", "--out", "index", "--split", "test"], "with --remove, which does not"),
        (["run", "--remove", "0", "--out", "index"], "RUN must be left out with --remove"),
        (["run", "--check", "--out", "index"], "RUN must be left out with --check"),
        (["--check", "--out", "index", "--device", "cpu"], "--device must be left out"),
        (["--check", "--out", "nowhere"], "INDEX must be the folder of an index"),
    ],
)
def test_an_index_that_cannot_be_is_refused_in_words(made, monkeypatch, words, message):
    monkeypatch.chdir(made)
    assert message in refused("index", *words)
    assert not (made / "new" / "index.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "pictures"], "IMAGE must be a picture; pictures is a folder"),
        (["index", "nowhere.png"], "nowhere.png: cannot be opened (No such file or directory)"),
        (["index", "run/recipe.toml"], "recipe.toml: is no image that Pillow can read"),
        (["indx", "pictures/U+0041/0.png"], "Did you mean 'index'?"),
        (["run", "pictures/U+0041/0.png"], "weiss index [RUN] IMAGES --out run.index"),
        (["none", "pictures/U+0041/0.png"], "weiss index [RUN] IMAGES --out none"),
        (["index", "pictures/U+0041/0.png", "-k", "0"], "-k must be at least 1; got 0"),
        (["index", "pictures/U+0041/0.png", "--html", "run"], "--html must name a file"),
        (["index", "pictures/U+0041/0.png", "--onnx", "x.onnx"], "there is no x.onnx"),
        (["index", "pictures/U+0041/0.png", "--where", "price"], "command line put it in quotes"),
        (["index", "pictures/U+0041/0.png", "--where", "prise<5"], "must name a column"),
    ],
)
def test_a_search_that_cannot_be_is_refused_in_words(made, monkeypatch, words, message):
    monkeypatch.chdir(made)
    assert message in refused("search", *words)


def test_a_damaged_index_is_refused_in_words(index, made):
    path = next(index.glob("vectors-*.npy"))
    path.write_bytes(path.read_bytes()[:-1])
    picture = made / "pictures" / "U+0041" / "0.png"
    assert f"{path.name} of the index must have" in refused("search", index, picture)
    assert f"{path.name} of the index must have" in refused("index", "--check", "--out", index)


def test_another_run_cannot_add(index, made, tmp_path):
    other = with_other_weights(made / "run", tmp_path / "other")
    write_glyphs(tmp_path / "more", num_classes=1, per_class=1, first=40)
    message = refused("index", other, "--add", tmp_path / "more", "--out", index)
    assert "an index must have vectors of one model; other is another" in message


@pytest.mark.parametrize("is_removal", [False, True])
def test_ctrl_c_says_how_to_go_on(made, index, tmp_path, monkeypatch, is_removal):
    from weiss.catalogue import building, embedding

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(embedding.BatchEmbedder, "embed", interrupted)
    monkeypatch.setattr(building, "complete", interrupted)
    new = (made / "run", made / "pictures", "--out", tmp_path / "new")
    removal = ("--remove", "0", "--out", index)
    message = refused("index", *(removal if is_removal else new), code=130)
    assert "is whole. " in message
    assert ("What is embedded is kept." in message) is not is_removal
    assert "Start the same command again to finish the change" in message


def test_compacting_leaves_an_index_without_remains_as_it_is(index):
    from weiss.catalogue import Catalogue

    before = Catalogue.open(index, device="cpu")
    assert "320 images in " in said("index", "--compact", "--out", index)
    assert not before.is_outdated()
    for action in ("--compact", "--check"):
        assert said("index", action, "--out", index, "--quiet") == ""
    assert "--device must be left out with --compact" in refused(
        "index", "--compact", "--out", index, "--device", "cpu"
    )


def test_pictures_are_decoded_small_and_searched_in_groups(made, tmp_path, monkeypatch):
    from PIL import Image

    from weiss.catalogue import Catalogue, networks

    monkeypatch.setattr(networks, "AT_ONCE", 2)
    shapes = []
    real = Catalogue.embed
    monkeypatch.setattr(
        Catalogue,
        "embed",
        lambda self, pixels: shapes.append([p.shape for p in pixels]) or real(self, pixels),
    )
    Image.new("RGB", (3000, 2000), "red").save(tmp_path / "large.png")
    pictures = [made / "pictures" / "U+0041" / f"{number}.png" for number in range(4)]
    words = ("search", made / "index", tmp_path / "large.png", *pictures, "-k", 1, "--json")
    found = json.loads(said(*words))["answers"]
    assert [len(group) for group in shapes] == [2, 2, 1]
    assert shapes[0][0] == (256, 384, 3)
    names = [answer["results"][0]["name"] for answer in found]
    assert names[1:] == [f"U+0041/{number}.png" for number in range(4)]


def test_names_with_control_pictures_do_not_reach_the_terminal(made, tmp_path):
    path = tmp_path / "a\x1b[2Jb.png"
    shutil.copy(made / "pictures" / "U+0041" / "0.png", path)
    out = said("search", made / "index", path, "-k", 1)
    assert "\x1b" not in out
    assert "a\ufffd[2Jb.png: " in out


def test_the_help_shows_how_an_index_is_changed():
    assert "weiss index --add more/" in " ".join(said("index", "--help").split())


@pytest.mark.slow
def test_an_export_searches_the_index_of_its_run_and_of_no_other(made, tmp_path):
    pytest.importorskip("onnxruntime")
    out = said("export", made / "run", "--out", tmp_path / "model.onnx")
    assert "embeddings as the run's network gives them" in out
    picture = made / "pictures" / "U+0041" / "2.png"
    words = ("search", made / "index", picture, "-k", 5, "--json")
    plain, by_onnx = (
        json.loads(said(*words, *more))["answers"][0]["results"]
        for more in ((), ("--onnx", tmp_path / "model.onnx"))
    )
    for one, two in zip(plain, by_onnx, strict=True):
        assert one["similarity"] == pytest.approx(two["similarity"], abs=1e-4)
    other = with_other_weights(made / "run", tmp_path / "other")
    said("export", other, "--out", tmp_path / "other.onnx")
    message = refused("search", made / "index", picture, "--onnx", tmp_path / "other.onnx")
    assert "other.onnx is of another" in message


def test_serve_reads_the_secret_from_a_file_and_refuses_to_be_open_by_accident(
    made, tmp_path, monkeypatch
):
    file, given = tmp_path / "secret.txt", {}
    file.write_text("a-long-secret-of-the-shop\n")
    assert "--public" in refused("serve", made / "index", "--host", "0.0.0.0", "--port", 0)
    for wrong in (tmp_path / "secret.none", tmp_path):
        message = refused("serve", made / "index", "--token", wrong)
        assert f"--token must name a file with the secret; {wrong} cannot be read" in message
    file.write_text("short\n")
    # before an index is opened
    assert "at least 16" in refused("serve", tmp_path / "none", "--port", 0, "--token", file)
    file.write_text("a-long-secret-of-the-shop\n")
    monkeypatch.setattr("weiss.server.serve", lambda index, **options: given.update(options))
    said("serve", made / "index", "--token", file)
    assert given["token"] == "a-long-secret-of-the-shop"
    assert given["public"] is False


@pytest.mark.slow
def test_serve_answers_until_it_is_interrupted(made):
    command = [sys.executable, "-u", "-m", "weiss", "serve", made / "index", "--port", "0"]
    command += ["--allow-host", "a.example", "--allow-host", "b.example"]
    process = begin(list(map(str, command)))
    assert b"320 items" in process.stdout.readline()
    address = process.stdout.readline().split()[1].decode()
    for name in ("a.example", "b.example", "localhost"):
        asked = urllib.request.Request(f"{address}/healthz", headers={"Host": name})
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(30) in (0, 130)
