"""ROS 2 bags: names, units and times of what they hold, several rates on one clock, and files that lie."""

import json
import struct
from array import array

import numpy as np
import pytest
from builders_bags import BUILDERS, SECOND, START, Recorder, arm_bag, bag_lz4, header, pose, schema_text, xyz
from validity import assert_same

from vhydro.cli import main
from vhydro.commands.fit import FitCommand, run_fit
from vhydro.data import DataError, read, sample
from vhydro.data.convert import convert
from vhydro.data.mcap_file import opened
from vhydro.data.ros_messages import READ, Cdr, refusal, short
from vhydro.episodes import Channel

pytestmark = pytest.mark.skipif(not BUILDERS, reason="mcap_ros2, which writes bags, is not installed")


def column(episode, name: str) -> np.ndarray:
    return episode.observations[:, [c.name for c in episode.channels].index(name)]


def test_topics_of_three_rates_are_put_on_one_clock(tmp_path):
    dataset = read(arm_bag(tmp_path / "x.mcap"), rate=50)
    episode = dataset[0]
    assert episode.dt == 0.02
    t = 0.02 * np.arange(len(episode.observations))
    np.testing.assert_allclose(column(episode, "shoulder.position"), t)  # 100 Hz: the sample nearest in time
    np.testing.assert_allclose(column(episode, "tcp.x"), 20 + t)
    seen = np.arange(len(t)) % 5 == 0
    np.testing.assert_allclose(column(episode, "cube.x"), np.where(seen, 30 + t, np.nan))
    told = 0.05 * np.arange(40)
    rows = np.floor(told / 0.02 + 0.5)  # each command holds from the row nearest to it
    held = [told[rows <= i][-1] for i in range(episode.steps)]
    np.testing.assert_allclose(episode.actions[:, 0], 40 + np.array(held))
    assert any("on one clock of 50 Hz, as was asked for" in note for note in dataset.notes)
    assert any("commands was taken from their names: /arm/commands" in note for note in dataset.notes)


def test_the_clock_can_be_chosen(tmp_path):
    path = arm_bag(tmp_path / "x.mcap")
    fast, slow = read(path, rate=100)[0], read(path)[0]
    assert any("10 Hz, that of /cube/pose, the slowest" in note for note in read(path).notes)
    assert (fast.dt, slow.dt) == (0.01, 0.1)
    assert np.isnan(column(fast, "tcp.x")).mean() == pytest.approx(0.5, abs=0.01)
    assert not np.isnan(slow.observations).any()


def test_channels_have_units_and_groups(tmp_path):
    episode = read(arm_bag(tmp_path / "x.mcap"))[0]
    named = {c.name: c for c in episode.channels}
    assert named["elbow.position"] == Channel("elbow.position", "joints", "rad")
    assert named["elbow.velocity"].unit == "rad/s"
    assert named["finger_1.position"] == Channel("finger_1.position", "gripper", "")  # may turn or slide
    assert named["tcp.x"] == Channel("tcp.x", "end_effector", "m")
    assert named["cube.qx"] == Channel("cube.qx", "object", "")
    np.testing.assert_array_equal(column(episode, "cube.qx")[0], 1)
    assert "elbow.effort" not in named  # its list is empty in every message
    wrench = {c.name: c.unit for c in read(bag_lz4(tmp_path))[0].channels}
    assert (wrench["ft_sensor.fx"], wrench["ft_sensor.tz"]) == ("N", "N m")


def test_joints_go_by_name_and_empty_lists_are_hidden(tmp_path):
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(20):
            names = ["a", "b"] if i % 2 else ["b", "a"]
            velocity = [] if i < 10 else [1.0, 1.0]
            state = {"name": names, "position": [float(n == "b") for n in names], "velocity": velocity, "effort": []}
            bag.write("/joint_states", "sensor_msgs/JointState", state, i / 20)
    episode = read(tmp_path / "x.mcap")[0]
    np.testing.assert_array_equal(column(episode, "a.position"), 0)
    np.testing.assert_array_equal(column(episode, "b.position"), 1)
    np.testing.assert_array_equal(np.isnan(column(episode, "a.velocity")), np.arange(20) < 10)


def test_two_nodes_may_speak_of_different_joints_on_one_topic(tmp_path):
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(20):
            for name, late in (("arm_1", 0.0), ("hand_1", 0.003)):
                state = {"name": [name], "position": [float(i)], "velocity": [], "effort": []}
                bag.write("/joint_states", "sensor_msgs/JointState", state, i / 20 + late)
    episode = read(tmp_path / "x.mcap", rate=20)[0]
    np.testing.assert_array_equal(column(episode, "arm_1.position"), column(episode, "hand_1.position"))


def test_headers_tell_the_time_and_jitter_takes_no_row(tmp_path):
    rng = np.random.default_rng(0)
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(400):
            six = {"force": xyz([i, 0, 0]), "torque": xyz([0, 0, 0])}
            bag.write("/ft/wrench", "geometry_msgs/WrenchStamped", {"wrench": six}, i / 99.5, delay=0.03 * rng.random())
    dataset = read(tmp_path / "x.mcap")
    force = column(dataset[0], "ft.fx")
    assert dataset[0].dt == 0.01
    assert not np.isnan(force).any()
    np.testing.assert_allclose(force, 0.995 * np.arange(len(force)), atol=1.01)


def test_a_command_holds_and_the_log_begins_with_the_first(tmp_path):
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(40):
            bag.write("/angle", "std_msgs/Float64", {"data": i}, i / 10)
            if i in (5, 20):
                bag.write("/torque_cmd", "std_msgs/Float64", {"data": i}, i / 10)
    episode = read(tmp_path / "x.mcap")[0]
    assert episode.observations[0, 0] == 5
    np.testing.assert_array_equal(episode.actions[:, 0], np.where(np.arange(5, 39) < 20, 5, 20))


def test_topics_can_be_chosen(tmp_path):
    path = arm_bag(tmp_path / "x.mcap")
    dataset = read(path, topics=["/cube/pose", "/arm/commands"])
    assert {c.name.partition(".")[0] for c in dataset[0].channels} == {"cube"}
    assert dataset[0].dt == 0.1
    assert any(n.startswith("Left out: /joint_states, /tcp/pose") for n in dataset.notes)
    with pytest.raises(DataError, match="key /nothing: found no such topic; expected one of /arm/commands, /cube"):
        read(path, topics=["/nothing"])


def test_a_description_says_what_a_bag_does_not(tmp_path):
    path = arm_bag(tmp_path / "x.mcap")
    said = {
        "dt": 0.1, "info": {"task": "reach"},
        "observations": [{"key": "/cube/pose", "names": list("abcdefg"), "units": "m", "group": "scene"}],
        "actions": [{"key": "/joint_states", "scale": 2}],
    }  # fmt: skip
    (tmp_path / "x.channels.json").write_text(json.dumps(said))
    episode = read(path)[0]
    assert episode.dt == 0.1
    assert episode.channels[0] == Channel("a", "scene", "m")
    assert episode.inputs[0] == Channel("joint_states/shoulder.position", "action", "rad")
    np.testing.assert_allclose(episode.actions[:, 0], 2 * 0.1 * np.arange(episode.steps), atol=1e-9)
    assert episode.info == {"task": "reach"}
    said["observations"][0]["names"] = ["a", "b"]
    (tmp_path / "x.channels.json").write_text(json.dumps(said))
    with pytest.raises(DataError, match="key /cube/pose: found 7 numbers: cube.x"):
        read(path)[0]


@pytest.mark.parametrize("entry", [{"episodes": {"trial": "t"}}, {"labels": {"a": "b"}}, {"dt": "key"}])
def test_a_description_of_what_a_bag_cannot_have_is_refused(tmp_path, entry):
    (tmp_path / "x.channels.json").write_text(json.dumps({"dt": 0.1} | entry))
    with pytest.raises(DataError, match=r"key x\.channels\.json"):
        read(arm_bag(tmp_path / "x.mcap"))


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_a_bag_becomes_an_npz_file(tmp_path, build):
    path = build(tmp_path)
    assert_same(read(convert(path))[0], read(path)[0])


def rewritten(path, target, **options):
    """The same messages, written with other settings of the container."""
    from mcap.reader import make_reader
    from mcap.writer import Writer

    with path.open("rb") as source, target.open("wb") as file:
        writer, channels = Writer(file, **options), {}
        writer.start("ros2", "test")
        for schema, channel, message in make_reader(source).iter_messages():
            if channel.id not in channels:
                number = writer.register_schema(schema.name, schema.encoding, schema.data)
                channels[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, number)
            writer.add_message(channels[channel.id], message.log_time, message.data, message.publish_time)
        writer.finish()
    return target


def containers():
    from mcap.writer import CompressionType, IndexType

    return [
        {"compression": c, "chunk_size": s, "index_types": i, "use_chunking": k, "use_statistics": t}
        for c in (CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD)
        for s, i, k, t in (
            (500, IndexType.ALL, True, True), (500, IndexType.CHUNK, True, True), (500, IndexType.NONE, True, False),
            (10**6, IndexType.ALL, True, False), (500, IndexType.ALL, False, True),
        )
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(15))
def test_however_a_bag_is_packed_it_is_the_same(tmp_path, number):
    path = BUILDERS["bag_arm"](tmp_path)
    whole = read(path)[0]
    found = read(rewritten(path, tmp_path / "x.mcap", **containers()[number]))[0]
    assert found.channels == whole.channels
    np.testing.assert_array_equal(found.observations, whole.observations)
    np.testing.assert_array_equal(found.actions, whole.actions)


def plain_numbers(message) -> list:
    """Every number of a decoded message in order, without its header and its layout."""
    if isinstance(message, float):
        return [message]
    if isinstance(message, (list, array)):
        return [x for item in message for x in plain_numbers(item)]
    names = [n for n in getattr(message, "__slots__", ()) if n not in ("header", "layout")]
    return [x for n in names for x in plain_numbers(getattr(message, n))]


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_messages_are_decoded_as_by_the_format_s_own_library(tmp_path, build):
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    path = build(tmp_path)
    file = opened(path)
    mine = {}
    for channel, time, data in file.messages(list(file.counts)):
        topic = file.topics[channel]
        mine.setdefault(topic.name, []).append((time, READ[short(topic.type)](Cdr(data))))
    with path.open("rb") as stream:
        theirs = list(make_reader(stream, decoder_factories=[DecoderFactory()]).iter_decoded_messages())
    assert sum(map(len, mine.values())) == len(theirs) > 0
    for _, channel, message, decoded in theirs:
        time, sample = mine[channel.topic].pop(0)
        assert time == message.log_time
        assert sorted(sample.values) == sorted(plain_numbers(decoded))
        head = getattr(decoded, "header", None)
        assert head is None or sample.stamp == head.stamp.sec * SECOND + head.stamp.nanosec


def test_definitions_are_compared_and_never_followed():
    text = schema_text("geometry_msgs/PoseStamped")
    assert not refusal("geometry_msgs/msg/PoseStamped", "cdr", "ros2msg", text)
    spaced = text.replace("float64 x", "float64   x   # east\nuint8 SOME=3\n")
    assert not refusal("geometry_msgs/msg/PoseStamped", "cdr", "ros2msg", spaced)
    relative = text.replace("geometry_msgs/Pose pose", "Pose pose").replace("std_msgs/Header header", "Header header")
    assert not refusal("geometry_msgs/msg/PoseStamped", "cdr", "ros2msg", relative)
    for other in (text.replace("float64 x", "float32 x"), text.replace("float64 y\n", ""), "", "float64[1000000000] x"):
        assert "another definition" in refusal("geometry_msgs/msg/PoseStamped", "cdr", "ros2msg", other)
    assert "encoding json" in refusal("geometry_msgs/msg/PoseStamped", "json", "jsonschema", text)
    assert "type sensor_msgs/msg/Image" in refusal("sensor_msgs/msg/Image", "cdr", "ros2msg", "")


def test_all_topics_together_have_to_fit(tmp_path, allow):
    """A list that grows in every message, beside many rows."""
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(100):
            layout = {"dim": [], "data_offset": 0}
            bag.write("/list", "std_msgs/Float64MultiArray", {"layout": layout, "data": [1.0] * (i + 1)}, i / 10)
    episode = read(tmp_path / "x.mcap")[0]
    assert episode.observations.shape == (100, 100)
    np.testing.assert_array_equal(np.isnan(episode.observations), np.triu(np.ones((100, 100)), 1) > 0)
    allow(100_000)
    with pytest.raises(DataError, match=r"key /list: found 123 rows of 65 numbers; expected at most 12,500 "):
        read(tmp_path / "x.mcap")[0]


def test_frames_of_the_robot_are_told_from_things(tmp_path):
    frames = ["panda_link5", "tool0", "camera_optical_frame", "cup", "base_link", "handle"]
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(20):
            place = {"translation": xyz([i, 0, 0]), "rotation": pose([0, 0, 0])["orientation"]}
            made = [
                {"header": header(START + i * SECOND // 10), "child_frame_id": f, "transform": place} for f in frames
            ]
            bag.write("/tf", "tf2_msgs/TFMessage", {"transforms": made}, i / 10)
    groups = {
        c.name.removesuffix(".x"): c.group for c in read(tmp_path / "x.mcap")[0].channels if c.name.endswith(".x")
    }
    assert groups == {
        "panda_link5": "joints", "tool0": "end_effector", "camera_optical_frame": "scene", "cup": "object",
        "base_link": "scene", "handle": "object",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("head", "words"), [(b"#ROSBAG V2.0\n", "mcap convert"), (b"SQLite format 3\0", "ros2 bag conv")]
)
def test_other_bags_are_told_how_to_become_one(tmp_path, head, words):
    (tmp_path / "x").write_bytes(head + bytes(100))
    with pytest.raises(DataError, match=words):
        read(tmp_path / "x")


def test_a_frame_of_two_parents_is_refused(tmp_path):
    with Recorder(tmp_path / "x.mcap") as bag:
        for i in range(20):
            head = {"stamp": {"sec": 0, "nanosec": 0}, "frame_id": "hand" if i > 9 else "world"}
            moved = {"translation": xyz([0, 0, 0]), "rotation": pose([0, 0, 0])["orientation"]}
            one = {"header": head, "child_frame_id": "cup", "transform": moved}
            bag.write("/tf", "tf2_msgs/TFMessage", {"transforms": [one]}, i / 10)
    with pytest.raises(DataError, match="key /tf: found ValueError: the frame cup in hand and in world"):
        read(tmp_path / "x.mcap")[0]


def chunk(compression: str, packed: bytes, size: int) -> bytes:
    word = compression.encode()
    body = struct.pack("<QQQII", 0, 0, size, 0, len(word)) + word + struct.pack("<Q", len(packed)) + packed
    return struct.pack("<BQ", 6, len(body)) + body


@pytest.mark.parametrize(("compression", "size"), [("zstd", 1000), ("lz4", 1000), ("zstd", 1 << 40), ("brotli", 10)])
def test_a_chunk_unfolds_to_what_it_says_and_to_no_more_than_is_bearable(tmp_path, compression, size):
    import lz4.frame
    import zstandard

    zeros = bytes(1 << 28)
    packed = {"zstd": zstandard.compress, "lz4": lz4.frame.compress, "brotli": lambda _: b"x"}[compression](zeros)
    magic = b"\x89MCAP0\r\n"
    footer = struct.pack("<BQQQI", 2, 20, 0, 0, 0)
    (tmp_path / "x.mcap").write_bytes(magic + chunk(compression, packed, size) + footer + magic)
    with pytest.raises(DataError, match="another size|unfolds to 1,099,511,627,776|packed by brotli"):
        read(tmp_path / "x.mcap")


def test_a_message_that_its_index_promised_is_missed(tmp_path):
    path = bag_lz4(tmp_path)
    file = opened(path)
    channel = next(iter(file.counts))
    file.counts[channel] = file.counts[channel]._replace(messages=21)  # pyright: ignore[reportIndexIssue]
    with pytest.raises(DataError, match="found 20 messages; expected 21, as its index says"):
        list(file.messages([channel]))


def test_bags_without_numbers_or_time_are_refused(tmp_path):
    with Recorder(tmp_path / "one.mcap") as bag:
        bag.write("/angle", "std_msgs/Float64", {"data": 1}, 0)
    with pytest.raises(DataError, match="no topic with messages at two times"):
        read(tmp_path / "one.mcap")
    with Recorder(tmp_path / "none.mcap"):
        pass
    with pytest.raises(DataError, match="found no topics"):
        read(tmp_path / "none.mcap")
    with Recorder(tmp_path / "long.mcap") as bag:
        for seconds in (-START / SECOND, 0.0, 0.1):
            bag.write("/angle", "std_msgs/Float64", {"data": 1}, seconds)
    with pytest.raises(DataError, match=r"1\.7e\+09 s between the first and the last message"):
        read(tmp_path / "long.mcap", rate=10)[0]
    with Recorder(tmp_path / "longer.mcap") as bag:
        for seconds in (-START / SECOND, 1.2e10):
            bag.write("/angle", "std_msgs/Float64", {"data": 1}, seconds)
    with pytest.raises(DataError, match=r"1\.37e\+10 s between the first and the last message"):
        read(tmp_path / "longer.mcap", rate=1e-8)[0]


def robot_bag(path, episode):
    """A recorded episode as a bag: joints at 100 Hz, the hand at 50 Hz, every thing at 10 Hz."""
    names = [c.name for c in episode.channels]
    time = np.arange(episode.steps + 1) * episode.dt

    def at(seconds: float, channels) -> list[float]:
        return [float(np.interp(seconds, time, episode.observations[:, names.index(c)])) for c in channels]

    with Recorder(path) as bag:
        for i in range(int(time[-1] * 100) + 1):
            t, arm = i / 100, [f"arm.joint_{j}" for j in range(1, 8)]
            state = {"name": [n[4:] for n in arm], "position": at(t, arm), "velocity": [], "effort": []}
            bag.write("/joint_states", "sensor_msgs/JointState", state, t)
            for body in ("tcp",) * (i % 2 == 0) + ("cube", "peg") * (i % 10 == 0):
                place = {"pose": pose(at(t, [f"{body}.{a}" for a in "xyz"]))}
                bag.write(f"/{body}/pose", "geometry_msgs/PoseStamped", place, t)


def test_bags_of_an_arm_are_fitted_and_cut_by_one_command_each(tmp_path, capsys):
    for i, episode in enumerate(sample("PokeCube")):
        robot_bag(tmp_path / "bags" / f"run{i}.mcap", episode)
    run_fit(FitCommand(tmp_path / "bags", out=tmp_path / "x.vhydro", modes=2, refine=False))
    told = capsys.readouterr().out
    assert "3 logs, 176 rows at 10 Hz" in told
    assert "note: All topics on one clock of 10 Hz" in told
    command = ["segment", tmp_path / "x.vhydro", tmp_path / "bags", "--rate", "10", "--out", tmp_path / "cut"]
    main([*map(str, command), "--topics", "/tcp/pose", "/cube/pose", "/peg/pose"])
    cut = json.loads((tmp_path / "cut" / "segments.json").read_text())
    assert "mode 1: cube and peg with the hand" in capsys.readouterr().out
    assert cut


def test_topics_and_rates_are_refused_where_they_mean_nothing(tmp_path):
    (tmp_path / "x.csv").write_text("time_s,x\n0,1\n0.1,2\n0.2,3\n")
    with pytest.raises(ValueError, match="which is CSV; expected a ROS 2 bag"):
        read(tmp_path / "x.csv", topics=["/x"])
    with pytest.raises(ValueError, match="has 10 rows per second by its own account; expected 20"):
        read(tmp_path / "x.csv", rate=20)[0]
    assert read(tmp_path / "x.csv", rate=10)[0].dt == pytest.approx(0.1)
    (tmp_path / "y.csv").write_text("x,y\n1,2\n2,3\n")
    assert read(tmp_path / "y.csv", rate=20)[0].dt == 0.05
    for rate in (0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match="a positive number of rows per second"):
            read(tmp_path / "y.csv", rate=rate)
