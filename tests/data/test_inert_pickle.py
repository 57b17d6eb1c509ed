"""Pickles are data: what numpy writes is read exactly, whatever else a pickle asks for is refused and never done."""

import io
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

from vhydro.data import DataError, inert_pickle
from vhydro.data.inert_pickle import Array, unpickled_inertly

PLAIN = {"a": [1, -2.5, True, None, "tëxt"], "b": (1, (2, 3), ()), "big": 1 << 90, 7: []}


def inert(content: bytes):
    return unpickled_inertly(io.BytesIO(content), Path("some.pkl"))


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol):
    assert inert(pickle.dumps(PLAIN, protocol)) == PLAIN


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "values",
    [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array([1, 2], ">i2"),
     np.array([True, False]), np.zeros((0, 4), np.float32), np.array(2.5), np.arange(4, dtype=np.uint8)],
)  # fmt: skip
def test_arrays_of_numbers_come_back(protocol, values):
    found = inert(pickle.dumps([values, values], protocol))
    assert found[0] is found[1]  # the memo was followed
    np.testing.assert_array_equal(found[0].values, values)
    assert found[0].values.dtype == values.dtype


@pytest.mark.parametrize("protocol", range(2, 6))
def test_numpy_numbers_come_back(protocol):
    assert inert(pickle.dumps([np.float32(0.5), np.int64(-3), np.bool_(True)], protocol)) == [0.5, -3, True]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_images_are_left_out_and_let_go_of(protocol):
    content = pickle.dumps([np.zeros((64, 64, 3), np.uint8), np.ones(2)], protocol)
    machine = inert_pickle.Machine(1 << 20)
    image, row = machine.run(inert_pickle.Rest(io.BytesIO(content), len(content)))
    assert (image.shape, image.values) == ((64, 64, 3), None)
    np.testing.assert_array_equal(row.values, [1, 1])
    assert machine.kept - inert_pickle.OBJECT * machine.objects < 100
    assert not any(getattr(v, "content", None) and len(v.content) > 100 for v in machine.memo.values())


class Calls:
    """A pickle that calls something when it is loaded."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


HOSTILE = {
    "system": Calls(os.system, ("touch owned",)),
    "eval": Calls(eval, ("open('owned', 'w')",)),
    "exec": Calls(exec, ("open('owned', 'w')",)),
    "getattr": Calls(getattr, ("", "upper")),
    "load": Calls(np.load, ("owned.npy",)),
    "open": Calls(open, ("owned", "w")),
    "class": Path("owned"),
    "set": {1, 2},
    "complex": 1j,
    "structure": np.zeros(2, [("a", "f4")]),
    "text array": np.array(["a"]),
    "date": np.array(["2020-01-01"], "M8[D]"),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_nothing_is_imported_or_called(protocol, hostile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="some.pkl, key pickle"):
        inert(pickle.dumps([hostile], protocol))
    assert not list(tmp_path.iterdir())


MADE_BY_HAND = {
    "instance": b"(cos\nsystem\nS'x'\nios\nsystem\n.",
    "old instance": b"(S'touch owned'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'touch owned'\no.",
    "a name from the stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0cdtype.__init__\x93.",
    "a call of a text": b"S'os.system'\n(S'x'\ntR.",
    "bytes of a size": b"c__builtin__\nbytes\n(I1000000000000\ntR.",
    "a call of an array": b"cnumpy\nndarray\n(I1000000000000\ntR.",
    "state for a list": b"](I1\ntb.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"Px\n.",
    "another buffer": b"\x80\x05\x97.",
    "memo never written": b"h\x05.",
    "pop from nothing": b"0.",
    "end without beginning": b"t.",
    "below the mark": b"I1\n(0.",
    "append to a text": b"S'a'\nI1\na.",
    "key without value": b"}(I1\nu.",
    "list as a key": b"}(]I1\nu.",
    "no end": b"I1\n",
    "nothing": b"",
    "a length that lies": b"\x80\x04\x8e" + (1 << 62).to_bytes(8, "little") + b"abc.",
    "a text that lies": b"\x80\x04X\xff\xff\xff\x7fabc.",
    "a number too long to read": b"L" + b"9" * 10_000 + b"L\n.",
    "a dtype without end": b"cnumpy\ndtype\n(S'f8" + b" " * 1000 + b"'\ntR.",
}


@pytest.mark.parametrize("content", MADE_BY_HAND.values(), ids=MADE_BY_HAND)
def test_broken_and_hand_made_pickles_are_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="key pickle"):
        inert(content)
    assert not list(tmp_path.iterdir())


def test_deep_nesting_needs_no_deep_recursion():
    found = inert(b"]" * 200_000 + b"a" * 199_999 + b".")
    depth = 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == 199_999


def test_a_memo_bomb_stays_small():
    """Each list holds the one before it twice: 2^60 values if they were ever spread out."""
    content = b"](I1\ne" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(60)) + b"."
    assert len(pickletools.optimize(content)) < 1000
    assert len(inert(content)) == 2


def test_more_objects_than_allowed_are_refused(monkeypatch):
    monkeypatch.setattr(inert_pickle, "MOST_OBJECTS", 1000)
    with pytest.raises(DataError, match="more than 1000 objects"):
        inert(b"(" + b"]" * 1001 + b"t.")


def test_more_bytes_than_allowed_are_refused(allow):
    allow(20_000)
    assert isinstance(inert(pickle.dumps(np.zeros(2000))), Array)
    with pytest.raises(DataError, match="GiB of numbers in a file of this size"):
        inert(pickle.dumps([np.zeros(2000), np.zeros(2000)]))


def test_small_objects_are_counted_as_what_they_take(allow):
    allow(64_000)
    assert len(inert(b"(" + b"]" * 900 + b"t.")) == 900
    with pytest.raises(DataError, match="GiB of numbers in a file of this size"):
        inert(b"(" + b"]" * 1001 + b"t.")


def test_a_shape_that_does_not_fit_its_bytes_is_refused():
    content = pickle.dumps(np.zeros(3), 2).replace(b"K\x03", b"K\x04")
    with pytest.raises(DataError, match=r"24 bytes for an array of shape \(4,\)"):
        inert(content)


MEGABYTE = b"X" + (1 << 20).to_bytes(4, "little") + b"a" * (1 << 20) + b"q\x00"  # a text, remembered as 0
ARRAY = b"(cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
REPEATED = {
    "encoded": b"c_codecs\nencode\n(h\x00S'latin1'\ntR",
    "array of text": ARRAY + b"(I1\n(I1048576\ntcnumpy\ndtype\n(S'u1'\ntRI00\nh\x00tb",
}


@pytest.mark.parametrize("step", REPEATED.values(), ids=REPEATED)
def test_copies_of_a_remembered_text_are_counted(step, allow):
    allow(5 << 20)
    inert(MEGABYTE + b"(" + step * 4 + b"l.")
    with pytest.raises(DataError, match="GiB of numbers"):
        inert(MEGABYTE + b"(" + step * 6 + b"l.")


def test_images_of_a_remembered_text_are_not_copied(allow):
    allow(10_000)
    image = ARRAY + b"(I1\n(I1024\nI1024\ntcnumpy\ndtype\n(S'u1'\ntRI00\nh\x00tb"
    assert inert(MEGABYTE + image + b".").shape == (1024, 1024)


@pytest.mark.parametrize("code", ["O8", "f8"])
@pytest.mark.parametrize(
    "shape", [b"I3\n" * 100_000, b"I1\n" * 33, b"L" + b"9" * 4000 + b"L\n"], ids=["long", "deep", "huge"]
)
def test_an_absurd_shape_is_refused_in_few_words(code, shape):
    content = ARRAY + b"(I1\n(" + shape + b"tcnumpy\ndtype\n(S'" + code.encode() + b"'\ntRI00\n]tb."
    with pytest.raises(DataError, match="an array without a shape") as caught:
        inert(content)
    assert len(str(caught.value)) < 300


def test_objects_that_are_missing_are_told_in_few_words():
    content = ARRAY + b"(I1\n(" + b"I3\n" * 32 + b"tcnumpy\ndtype\n(S'O8'\ntRI00\n]tb."
    with pytest.raises(DataError, match=r"shape \(3, 3, 3, 3, 3\) without its objects"):
        inert(content)


def test_a_name_made_of_a_memo_bomb_is_not_spelled_out():
    """2^60 values if the list were ever written as text."""
    bomb = b"](I1\ne" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(60))
    with pytest.raises(DataError, match="a name that is no short text"):
        inert(bomb + b"S'x'\n\x93.")
