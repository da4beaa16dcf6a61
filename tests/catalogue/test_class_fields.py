"""Fields of classes: nested loops give the same, an item does not vote for itself."""

import shutil

import numpy as np
import pytest
from glyph_catalogue import add, opened, write_photo

from weiss.catalogue import class_fields as module
from weiss.catalogue.class_fields import class_fields, grouped

NAMES = ("apple", "fig", "kiwi", "leek")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def clustered(seed, spread=0.6, per_class=8, size=6):
    """Items around a direction for each class; the last class has one item, some have none."""
    rng = np.random.default_rng(seed)
    labels = np.array([c for c in range(3) for _ in range(per_class)] + [3, -1, -1])
    centres = unit(rng.normal(size=(4, size)))
    drawn = np.where(labels[:, None] >= 0, centres[labels], rng.normal(size=(len(labels), size)))
    return unit(drawn + spread * rng.normal(size=drawn.shape)), labels


def by_loops(vectors, labels):
    """Own and other similarity of each item, straight from the definition."""
    own, other, which = [], [], []
    for i, v in enumerate(vectors):
        best, name, mine = -np.inf, -1, np.nan
        for c in range(len(NAMES)):
            rest = [w for j, w in enumerate(vectors) if labels[j] == c and j != i]
            if not rest:
                continue
            mean = np.sum(rest, axis=0)
            near = float(v @ mean / np.linalg.norm(mean))
            if c == labels[i]:
                mine = near
            elif near > best:
                best, name = near, c
        own.append(mine)
        other.append(best)
        which.append(name)
    return np.array(own), np.array(other), np.array(which)


@pytest.mark.parametrize("step", [1, 40, 10**6])
def test_nested_loops_give_the_same_in_blocks_of_any_size(monkeypatch, step):
    monkeypatch.setattr(module, "SIMILARITIES_AT_ONCE", step)
    for seed in range(5):
        vectors, labels = clustered(seed)
        found = class_fields(vectors, labels, NAMES)
        own, other, which = by_loops(vectors, labels)
        np.testing.assert_allclose(found.own, own, atol=1e-12)
        np.testing.assert_allclose(found.other, other, atol=1e-12)
        assert found.nearest_other.tolist() == which.tolist()
        wrong = [(labels[i], which[i]) for i in range(len(labels)) if other[i] > own[i]]
        assert found.accuracy_interval().mean == pytest.approx(1 - len(wrong) / 24)
        assert sum(count for *_, count in found.confusions()) == len(wrong)
        assert found.level == pytest.approx(np.quantile(own[:24], 0.05))


def test_a_class_that_never_trained_is_named_from_its_photos_alone():
    vectors, labels = clustered(1, spread=0.1)
    fields = class_fields(vectors, labels, NAMES)
    for row in (0, 9, 20):
        best, second, *_ = fields.classify(vectors[row : row + 1], k=4)[0]
        assert best.name == NAMES[labels[row]]
        assert best.similarity > second.similarity
    assert fields.classify(vectors[:1], k=1)[0][0].as_dict()["fits"] is True
    assert fields.classify(-vectors[:1])[0][0].fits is False


def test_a_wrong_label_is_the_first_doubtful_one():
    vectors, labels = clustered(2, spread=0.1)
    labels = labels.copy()
    labels[5] = 2  # an apple that is called a kiwi
    fields = class_fields(vectors, labels, NAMES)
    assert fields.doubtful()[0] == 5
    assert fields.confusions()[0] == ("kiwi", "apple", 1)


def test_without_other_items_nothing_is_measured_and_nothing_fails():
    alone = class_fields(np.eye(3), np.array([0, 1, -1]), ("a", "b"))
    assert alone.accuracy_interval() is None
    assert alone.impostor_interval() is None
    assert alone.level is None
    assert alone.classify(np.eye(3)[:1])[0][0].fits is None
    none = class_fields(np.eye(3), np.full(3, -1), ())
    assert none.classify(np.eye(3))[0] == []
    assert len(none.doubtful()) == 0


def test_vectors_that_cancel_have_no_field():
    vectors = np.array([[1.0, 0], [-1.0, 0], [0, 1.0], [0, 1.0]])
    fields = class_fields(vectors, np.array([0, 0, 1, 1]), ("a", "b"))
    assert fields.vectors[0].tolist() == [0, 0]
    assert fields.own[2:].tolist() == [1, 1]
    assert np.isinf(fields.other[2:]).all()


def test_groups_hold_what_is_alike_largest_first():
    rng = np.random.default_rng(0)
    centres = np.eye(4)
    which = np.array([0, 1, 2, 1, 1, 2, 3, 1])
    vectors = unit(centres[which] + 0.05 * rng.normal(size=(8, 4)))
    found = grouped(vectors, 0.8)
    assert [which[rows[0]] for rows in found] == [1, 2, 0, 3]
    for rows in found:
        assert len(set(which[rows])) == 1
    assert sorted(row for rows in found for row in rows) == list(range(8))
    assert grouped(vectors[:0], 0.8) == []


def test_items_that_fit_no_class_are_grouped_and_others_are_not(index, glyph_folder, tmp_path):
    known = sorted(glyph_folder.iterdir())[0]
    strange = tmp_path / "strange"
    for number in range(3):
        write_photo(strange / f"{number}.png", 7)  # one picture, three files
    write_photo(strange / "other.png", 8)
    for picture in sorted(known.glob("*.png"))[:2]:
        shutil.copy(picture, strange / f"known-{picture.name}")
    add(index, strange)
    with opened(index) as catalogue:
        groups = [[item.name for item in group] for group in catalogue.unknown()]
        level = catalogue.class_fields().level
        for names in groups:
            assert not [name for name in names if name.startswith("known")]
        same = {f"{number}.png" for number in range(3)}
        assert all(same <= set(names) or not same & set(names) for names in groups)
        fits = {
            item.name: catalogue.classify(catalogue.vector(item.id)[None], 1)[0][0].similarity
            for item in catalogue.items_of(None, 0, 10**6)
            if not item.class_names
        }
        assert {name for names in groups for name in names} == {
            name for name, similarity in fits.items() if similarity < level
        }


def test_a_vector_of_another_size_is_refused(catalogue):
    with pytest.raises(ValueError, match="must have shape"):
        catalogue.classify(np.eye(3))
    with pytest.raises(ValueError, match="k"):
        catalogue.classify(catalogue.vector(0)[None], 0)
