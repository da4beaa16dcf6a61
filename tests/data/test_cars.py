"""Cars-196 in its two forms."""

import shutil

import numpy as np
import pytest
from miniature import car_box, car_names, write_cars_new, write_cars_old, write_mat

from weiss.data.official_sets import CARS


def test_the_old_form(tmp_path):
    table = CARS.read(write_cars_old(tmp_path))
    assert table.class_names == tuple(car_names(4))
    assert table.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert table.sizes() == {"train": (6, 2), "test": (6, 2)}
    assert table.source.name(0) == "car_ims/000001.jpg"
    assert table.source.read(11).shape == (18, 24, 3)


@pytest.mark.parametrize("labels_in", [".", "devkit"])
def test_the_new_form(tmp_path, labels_in):
    table = CARS.read(write_cars_new(tmp_path, labels_in=labels_in))
    assert table.class_names == tuple(car_names(4))
    assert table.sizes() == {"train": (6, 2), "test": (6, 2)}
    assert set(table.source.paths) == {
        f"cars_{p}/0000{i}.jpg" for p in ("train", "test") for i in range(1, 7)
    }
    assert table.source.read(11).shape == (18, 24, 3)


def test_both_forms_hold_the_same_images_in_the_same_classes(tmp_path):
    old, new = CARS.read(write_cars_old(tmp_path / "a")), CARS.read(write_cars_new(tmp_path / "b"))

    def images(table):
        return sorted((int(c), table.source.read(i).tobytes()) for i, c in enumerate(table.labels))

    assert images(old) == images(new)


@pytest.mark.parametrize("folder", ["", "stanford_cars", "cars196"])
def test_it_is_found_in_the_folders_people_use(tmp_path, folder):
    write_cars_new(tmp_path / folder)
    assert CARS.locate(tmp_path) == tmp_path / folder


def test_the_copy_with_each_folder_twice_is_read_too(tmp_path):
    write_cars_new(tmp_path)
    before = CARS.read(tmp_path)
    for name in ("cars_train", "cars_test"):
        (tmp_path / name).rename(tmp_path / "moved")
        (tmp_path / name).mkdir()
        (tmp_path / "moved").rename(tmp_path / name / name)
    (tmp_path / "car_devkit").mkdir()
    (tmp_path / "devkit").rename(tmp_path / "car_devkit" / "devkit")
    after = CARS.read(tmp_path)
    assert after.labels.tolist() == before.labels.tolist()
    assert after.source.name(0) == "cars_train/cars_train/00001.jpg"


def test_test_images_without_labels_are_named_as_the_problem(tmp_path):
    (write_cars_new(tmp_path) / "cars_test_annos_withlabels.mat").unlink()
    message = "in cars_test_annos_withlabels.mat; .*only cars_test_annos.mat is there.*Fetch that"
    with pytest.raises(FileNotFoundError, match=message):
        CARS.read(tmp_path)


def test_without_the_names_of_the_classes_the_devkit_is_asked_for(tmp_path):
    (write_cars_new(tmp_path) / "devkit" / "cars_meta.mat").unlink()
    with pytest.raises(FileNotFoundError, match="cars_meta.mat.*part of car_devkit.tgz"):
        CARS.read(tmp_path)


def test_the_old_list_beside_the_new_folders_does_not_mislead(tmp_path):
    write_cars_old(tmp_path)
    shutil.rmtree(tmp_path / "car_ims")
    with pytest.raises(FileNotFoundError, match="12 are not there: car_ims/000001.jpg"):
        CARS.read(tmp_path)
    write_cars_new(tmp_path)
    assert CARS.read(tmp_path).source.name(0).startswith("cars_train/")


def test_neither_form_gets_the_names_of_both(tmp_path):
    with pytest.raises(FileNotFoundError, match="cars_annos.mat, or devkit/cars_train_annos.mat"):
        CARS.read(tmp_path)


def row(name="car_ims/1.jpg", label=1):
    return {"relative_im_path": name, **car_box(), "class": label}


DAMAGE = {
    "label 0": ({"annotations": [row(label=0)]}, "must have classes 1 to 2, not 0"),
    "label too large": ({"annotations": [row(label=3)]}, "classes 1 to 2, not 3 .car_ims/1.jpg"),
    "no label": ({"annotations": [row(), row("b", [])]}, "a class in annotation 2, not"),
    "fraction": ({"annotations": [row(label=1.5)]}, "a class in annotation 1, not 1.5"),
    "no field": ({"annotations": [{"class": 1}]}, "must have the field 'relative_im_path'"),
    "no structs": ({"annotations": ["a", "b"]}, "must have the field 'relative_im_path'"),
    "no variable": ({"something": ["a"]}, "must hold the variable 'annotations'"),
    "twice": ({"annotations": [row(), row()]}, "name each image once; 1 are named again: car_ims"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_annotations_are_refused(tmp_path, case):
    variables, message = DAMAGE[case]
    write_mat(tmp_path / "cars_annos.mat", class_names=["a", "b"], **variables)
    with pytest.raises(ValueError, match=message):
        CARS.read(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_what_is_no_matlab_file_is_refused(tmp_path, share):
    path = write_cars_old(tmp_path) / "cars_annos.mat"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match="cars_annos.mat must .*Restore the official file"):
        CARS.read(tmp_path)


def test_a_list_of_one_image_is_a_list(tmp_path):
    write_cars_old(tmp_path, num_classes=1, per_class=1)
    assert CARS.read(tmp_path).labels.tolist() == np.zeros(1).tolist()


def test_the_published_counts_add_up():
    assert CARS.num_images == 16_185
