"""Parquet and Arrow tables: the same rules as for CSV, types of their own, and files that claim too much."""

import struct

import numpy as np
import pytest
from builders_tables import ROWS, arrow_described, csv_guessed, feather_guessed, parquet_guessed, ramp
from validity import assert_same

from vhydro.data import DataError, read
from vhydro.data.arrow_messages import unfolded_size
from vhydro.data.convert import convert
from vhydro.episodes import Channel

pa = pytest.importorskip("pyarrow")
BUILDERS = {"parquet": parquet_guessed, "feather": feather_guessed, "arrow": arrow_described}


@pytest.mark.parametrize("build", [parquet_guessed, feather_guessed])
def test_columns_lists_times_and_hidden_values(tmp_path, build):
    dataset = read(build(tmp_path))
    episode = dataset[0]
    assert dataset.names == ("0", "1", "2")
    assert episode.dt == pytest.approx(0.02)
    assert [c.name for c in episode.channels] == ["q_1", "q_2", "place_1", "place_2", "place_3", "width"]
    assert episode.channels[2] == Channel("place_1", "object", "m")
    np.testing.assert_allclose(episode.observations[:, :2], ramp(ROWS[0], 2), rtol=1e-6)
    assert np.isnan(episode.observations[:, 5]).tolist() == [i == 1 for i in range(ROWS[0])]
    np.testing.assert_array_equal(episode.actions[:, 0], np.arange(ROWS[0] - 1))
    assert any("Left out" in note and "remark" in note for note in dataset.notes)


def test_a_table_reads_as_the_csv_file_of_its_columns(tmp_path):
    import pyarrow.csv
    import pyarrow.parquet as pq

    path = csv_guessed(tmp_path)
    pq.write_table(pyarrow.csv.read_csv(path), tmp_path / "log.parquet")
    for mine, other in zip(read(tmp_path / "log.parquet"), read(path), strict=True):
        assert_same(mine, other)


def test_a_description_says_what_columns_are(tmp_path):
    episode = read(arrow_described(tmp_path))[1]
    assert [c.name for c in episode.channels] == ["cart.x", "cart.y"]
    assert episode.inputs == (Channel("cart.force", "action", "N"),)
    np.testing.assert_array_equal(episode.actions[:, 0], 2 * np.arange(6, 9))


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_table_becomes_an_npz_file(tmp_path, build):
    path = build(tmp_path)
    for mine, other in zip(read(convert(path, out=tmp_path / "x.npz")), read(path), strict=True):
        assert_same(mine, other)


def test_a_rate_is_for_tables_without_time(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": [1, 2, 3]}), tmp_path / "x.parquet")
    assert read(tmp_path / "x.parquet", rate=5)[0].dt == 0.2
    with pytest.raises(ValueError, match="50 rows per second by its own account; expected 5"):
        read(parquet_guessed(tmp_path), rate=5)[0]


@pytest.mark.parametrize("rows", [[[1.0], [1.0, 2.0], []], [[1.0], None, [2.0]]])
@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_rows_of_different_length_are_refused(tmp_path, form, rows):
    import pyarrow.parquet as pq
    from pyarrow import feather

    table, path = pa.table({"x": rows, "y": [1.0, 2.0, 3.0]}), tmp_path / f"x.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path)
    with pytest.raises(DataError, match="different or no length|shape"):
        read(path, rate=1)[0].observations[:, 1]


def test_two_columns_of_one_name_are_refused(tmp_path):
    from pyarrow import feather

    table = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 2, names=["x", "x"])
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert feather.read_table(tmp_path / "x.arrow").num_columns == 2
    with pytest.raises(DataError, match="two columns named 'x'"):
        read(tmp_path / "x.arrow")


def test_what_buffers_unfold_to_is_known_before_they_are_read(tmp_path, allow):
    from pyarrow import feather

    table = pa.table({"x": np.zeros(100_000), "y": np.zeros(100_000)})
    feather.write_feather(table, tmp_path / "x.feather", compression="zstd")
    feather.write_feather(table, tmp_path / "y.feather", compression="uncompressed")
    for name in "xy":
        size, rows = unfolded_size(tmp_path / f"{name}.feather", 8)
        assert rows == 100_000
        assert 1_600_000 <= size <= 1_601_000
    assert (tmp_path / "x.feather").stat().st_size < 20_000
    allow(1_000_000)
    with pytest.raises(DataError, match=r"unfold to 1,60., ?|unfold to 1,60\d,\d\d\d bytes"):
        read(tmp_path / "x.feather", rate=1)


def test_rows_that_parquet_promises_have_to_fit(tmp_path, allow):
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.zeros(100_000), "y": np.ones(100_000)}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 5_000
    allow(1_599_999)
    with pytest.raises(DataError, match="columns of 200,000 numbers|100,000 rows of 2 numbers"):
        read(tmp_path / "x.parquet", rate=1)[0]


def test_a_buffer_that_claims_a_terabyte_is_refused(tmp_path):
    path = feather_guessed(tmp_path)
    content = path.read_bytes()
    place = content.index(struct.pack("<q", 8 * sum(ROWS)), 700)  # the first packed column of 8 bytes a row
    path.write_bytes(content[:place] + struct.pack("<q", 1 << 40) + content[place + 8 :])
    with pytest.raises(DataError, match=r"unfold to 1,099,511"):
        read(path)


def test_a_file_cut_off_between_batches_is_not_a_shorter_log(tmp_path):
    path = arrow_described(tmp_path)
    content = path.read_bytes()
    places = [i for i in range(0, len(content) - 8, 8) if content[i : i + 4] == b"\xff" * 4]
    assert len(places) > 4
    for place in places[2:]:
        path.write_bytes(content[:place])
        with pytest.raises(DataError, match="cut off"):
            read(path)
