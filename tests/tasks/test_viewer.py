"""Watching: the session that a user steers, the page, and the frames of a video."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from torch import Tensor

from robo_rl import make
from robo_rl.api import Env, Memory, Obs
from robo_rl.tasks import viewer
from robo_rl.tasks.env import SimEnv
from robo_rl.tasks.viewer import Controls, NoGLError, Session, ViewerError, frames, record

needs_gl = pytest.mark.skipif(not viewer.renderers(), reason="no OpenGL library to draw with")


class Stand:
    """Holds the default pose, and counts."""

    obs_groups: tuple[str, ...] = ()

    def __init__(self, num_actions: int) -> None:
        self.memory: Memory = {}
        self.resets = 0
        self._num_actions = num_actions

    def act(self, obs: Obs, *, explore: bool = False) -> Tensor:
        return torch.zeros(len(obs["actor"]), self._num_actions)

    def reset(self, mask: Tensor | None = None) -> None:
        self.resets += mask is None

    def graph(self) -> torch.nn.Module:
        raise NotImplementedError


@pytest.fixture(scope="module")
def env() -> Iterator[SimEnv]:
    env = make("go2_arx5-twist", num_envs=2)
    assert isinstance(env, SimEnv)
    yield env
    env.close()


@pytest.fixture
def session(env: SimEnv) -> Session:
    return Session(env, Stand(len(env.spec.action.joints)))


def test_a_session_shows_the_environment_that_is_watched(session: Session, env: SimEnv) -> None:
    for watched in (0, 1):
        session.watched = watched
        session.step()
        wanted = env.view.state.base_pos_w[watched].numpy()
        np.testing.assert_allclose(session.data.qpos[:3], wanted, atol=1e-3)
    assert session.model.body(session.base).name == env.cfg.robot.base


def test_a_held_command_outlives_a_reset_and_is_let_go(session: Session, env: SimEnv) -> None:
    session.hold("base", [0.3, 0.1, -0.2])
    session.reset()
    session.step()
    held = torch.tensor([0.3, 0.1, -0.2])
    torch.testing.assert_close(env.view.command["base_twist"], held.expand(2, 3))
    session.release("base")
    assert not torch.allclose(env.view.command["base_twist"], held.expand(2, 3))


def test_a_push_moves_the_robot_watched_and_no_other(session: Session, env: SimEnv) -> None:
    session.watched = 1
    before = env.view.state.base_lin_vel_w.clone()
    session.push(0.0, 0.7)
    session.step()
    gained = (env.view.state.base_lin_vel_w - before)[:, 1]
    assert gained[1] > 0.3
    assert abs(gained[0]) < 0.3


def test_the_target_is_the_commanded_pose_in_the_world(session: Session, env: SimEnv) -> None:
    target = session.target()
    assert target is not None
    turned = env.view.to_world(env.view.command["ee_pos"])[0]
    np.testing.assert_allclose(target[0], turned.numpy(), atol=1e-6)
    assert np.linalg.norm(target[1]) == pytest.approx(1.0, abs=1e-5)


def test_the_page_shows_the_scene_and_steers(session: Session, env: SimEnv) -> None:
    with Controls(session, port=18080) as controls:
        assert controls.address.startswith("http://127.0.0.1:")
        labels = {handle.label: handle for handle in widgets(controls)}
        assert {"pause", "reset", "robot", "forward [m/s]", "left", "yaw [rad]"} <= labels.keys()
        # Events come on the server's threads; nothing happens before the update.
        controls._later(session.hold, "base", [0.2, 0.0, 0.0])
        controls._later(setattr, session, "watched", 1)
        assert session.watched == 0
        controls.update()
        assert session.watched == 1
        assert env.view.command["base_twist"][0, 0].item() == pytest.approx(0.2)
        for _ in range(2):
            session.step()
            controls.update()


def widgets(controls: Controls) -> list[Any]:
    """Every widget on a page."""
    api: Any = controls._server.gui
    handles = [h for h in api._gui_input_handle_from_uuid.values()]
    return [h for h in handles if hasattr(h, "label")]


def test_steering_starts_where_the_arm_is_told_to_be(session: Session, env: SimEnv) -> None:
    commands = {command.name: command for command in env.spec.commands}
    assert session.start(commands["base"]) == [0.0, 0.0, 0.0]
    place = np.array(session.start(commands["ee"])[:3])
    wanted = env.view.command["ee_pos"][0].numpy()
    low, high = np.array(commands["ee"].low[:3]), np.array(commands["ee"].high[:3])
    np.testing.assert_allclose(place, np.clip(wanted, low, high), atol=1e-3)


@needs_gl
def test_frames_show_a_robot_that_moves(session: Session) -> None:
    images = list(frames(session, 3, stride=10, size=(96, 64)))
    assert [image.shape for image in images] == [(64, 96, 3)] * 3
    assert images[0].std() > 10.0
    assert (images[0] != images[2]).any()


@needs_gl
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_lasts_as_long_as_asked(env: SimEnv, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"new/video{suffix}"
    policy = Stand(len(env.spec.action.joints))
    record(env, policy, path, seconds=0.2, size=(64, 48))
    assert imageio.imread(path, index=None).shape == (5, 48, 64, 3)  # 25 frames a second
    assert policy.resets == 1


def test_without_gl_it_says_what_to_install(
    env: SimEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "renderers", lambda: ())
    with pytest.raises(NoGLError, match=r"apt-get install libosmesa6.*in the browser"):
        record(env, Stand(1), tmp_path / "video.mp4")
    assert not (tmp_path / "video.mp4").exists()


def test_what_cannot_draw_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "_draws", viewer._draws.__wrapped__)
    # EGL without the device asked for, as on a machine with libegl1 alone.
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "99")
    assert viewer.renderers() == ()
    # A display that nobody serves, as after a lost connection.
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":99")
    assert not viewer.has_display()
    monkeypatch.delenv("DISPLAY")
    assert not viewer.has_display()


def test_a_file_that_is_no_video_is_refused(env: SimEnv, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.mp4 or \.gif"):
        record(env, Stand(1), tmp_path / "video.avi")


def test_an_environment_without_mujoco_is_refused() -> None:
    class Elsewhere:
        class spec:
            name = "elsewhere"

    unfit: Any = Elsewhere()
    env: Env = unfit
    with pytest.raises(ViewerError, match="elsewhere has no simulation in MuJoCo"):
        Session(env, Stand(1))
