"""Watch a policy in an environment on MuJoCo: a window, the browser, or a video."""

import contextlib
import copy
import functools
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import mujoco
import numpy as np
import numpy.typing as npt
import torch

from robo_rl.api import Command, Env, Policy
from robo_rl.tasks.terms.rotations import multiply

Image = npt.NDArray[np.uint8]

PORT = 8080
FPS = 25.0
"""Of a video, or the nearest that the control period allows."""
DISTANCE = 1.8
"""Of the camera from the robot [m]."""


class ViewerError(RuntimeError):
    """Something that cannot be shown here: why, and what to do."""


class NoGLError(ViewerError):
    """No library to draw with. The browser draws by itself: `play` needs none."""

    def __init__(self, tried: str) -> None:
        super().__init__(
            f"no OpenGL library to draw with ({tried}); on Debian: apt-get install libosmesa6, or "
            "apt-get install libegl1 libgl1-mesa-dri; robo-rl play works without, in the browser"
        )


class Drawable(Protocol):
    """The simulator of an environment that can be drawn."""

    model: Any

    def snapshot(self, env: int, data: Any) -> None: ...


class Session:
    """A policy acting in an environment, and what a user may do to it meanwhile.

    Attributes:
        watched: the environment that is shown and pushed.
        model, data: MuJoCo's, of that environment; `refresh` brings data up to date.
    """

    def __init__(self, env: Env, policy: Policy, *, seed: int = 0) -> None:
        sim: Drawable | None = getattr(env, "sim", None)
        if sim is None or not hasattr(sim, "snapshot"):
            raise ViewerError(
                f"{env.spec.name} has no simulation in MuJoCo to draw; tasks on the CPU backend do"
            )
        self.env, self.policy = env, policy
        self.watched = 0
        self.paused = False
        self._sim = sim
        # A viewer sets colours and sizes in the model that it draws.
        self.model = copy.copy(sim.model)
        self.data = mujoco.MjData(self.model)
        self._held: dict[str, torch.Tensor] = {}
        self._obs = env.reset(seed=seed)
        policy.reset()
        self.refresh()

    @torch.no_grad()
    def step(self) -> None:
        """One control step."""
        step = self.env.step(self.policy.act(self._obs))
        self.policy.reset(step.terminated | step.truncated)
        self._obs = step.obs
        self.refresh()

    def reset(self) -> None:
        """New episodes, with the commands that the user holds."""
        self._obs = self.env.reset()
        self.policy.reset()
        for name, value in self._held.items():
            self.env.set_command(name, value)
        self.refresh()

    def hold(self, command: str, values: list[float]) -> None:
        """Keep a command at values in every environment."""
        self._held[command] = torch.tensor([values]).expand(self.env.num_envs, -1)
        self.env.set_command(command, self._held[command])

    def release(self, command: str) -> None:
        """Let the task draw a command again, in new episodes."""
        if self._held.pop(command, None) is not None:
            self.reset()

    def push(self, forward: float, left: float) -> None:
        """Push the robot watched, along and across the world's x axis [m/s]."""
        velocity = torch.tensor([[forward, left, 0.0, 0.0, 0.0, 0.0]])
        self.env.push(velocity, torch.tensor([self.watched]))

    def refresh(self) -> None:
        self._sim.snapshot(self.watched, self.data)

    def target(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """Position (3,) and orientation wxyz (4,) in the world that the end-effector is to have."""
        view = getattr(self.env, "view", None)
        if view is None or "ee_pos" not in view.command:
            return None
        pos_w = view.to_world(view.command["ee_pos"])
        quat_wxyz = multiply(view.heading_wxyz, view.command["ee_quat_wxyz"])
        return pos_w[self.watched].double().numpy(), quat_wxyz[self.watched].double().numpy()

    def start(self, command: Command) -> list[float]:
        """What steering a command starts from: no motion, for a pose the place commanded now."""
        values = [0.0] * len(command.fields)
        view = getattr(self.env, "view", None)
        if command.fields[:3] == ("x", "y", "z") and view is not None and "ee_pos" in view.command:
            values[:3] = view.command["ee_pos"][self.watched].tolist()
        bounds = zip(values, command.low, command.high, strict=True)
        return [min(max(round(value, 3), low), high) for value, low, high in bounds]

    @property
    def base(self) -> int:
        """The body that a camera follows: the first that floats, else the world."""
        free = np.flatnonzero(self.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        return int(self.model.jnt_bodyid[free[0]]) if len(free) else 0


def play(env: Env, policy: Policy, *, seed: int = 0) -> None:
    """Show a policy in real time until the user has seen enough: in MuJoCo's window where there is
    a display, else in the browser; the controls are in the browser either way."""
    session = Session(env, policy, seed=seed)
    with _window(session) as window, Controls(session, scene=window is None) as controls:
        print(f"{'controls' if window else 'viewer'}: {controls.address}  (Ctrl-C ends it)")
        print(f"from another machine: ssh -L {controls.port}:localhost:{controls.port} <this one>")
        clock = time.monotonic()
        while window is None or window.is_running():
            # The window draws on a thread of its own.
            with window.lock() if window else contextlib.nullcontext():
                if not session.paused:
                    session.step()
                controls.update()
                if window:
                    window.user_scn.ngeom = 0
                    _draw_target(session, window.user_scn)
            if window:
                window.sync()
            clock = max(clock + env.spec.step_s, time.monotonic() - env.spec.step_s)
            time.sleep(max(0.0, clock - time.monotonic()))


def has_display() -> bool:
    """Whether a window opens here."""
    if sys.platform != "linux":
        return True
    return any(map(os.environ.get, ("WAYLAND_DISPLAY", "DISPLAY"))) and _draws("glfw")


def record(
    env: Env,
    policy: Policy,
    path: str | Path,
    *,
    seconds: float = 20.0,
    size: tuple[int, int] = (640, 480),
    seed: int = 0,
) -> None:
    """Draw a policy's first seconds to a video file.

    Args:
        path: ends in .mp4 or .gif.
        size: width and height [pixels].
    """
    import imageio.v2 as imageio

    path = Path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise ValueError(f"{path} is no video file; its name must end in .mp4 or .gif")
    if not 0.0 < seconds < math.inf:
        raise ValueError(f"a video of {seconds} s; its length must be finite and above 0")
    session = Session(env, policy, seed=seed)
    stride = max(1, round(1.0 / (FPS * env.spec.step_s)))
    frame_s = stride * env.spec.step_s
    path.parent.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = (
        {"fps": 1.0 / frame_s, "macro_block_size": 2}
        if path.suffix == ".mp4"
        else {"duration": 1000.0 * frame_s, "loop": 0}
    )
    images = frames(session, max(1, round(seconds / frame_s)), stride=stride, size=size)
    first = next(images)
    video: Any = imageio.get_writer(path, **settings)
    with video:
        video.append_data(first)
        for image in images:
            video.append_data(image)


def frames(
    session: Session, num_frames: int, *, stride: int = 1, size: tuple[int, int] = (640, 480)
) -> Iterator[Image]:
    """Images (height, width, 3), drawn offscreen every stride steps.

    Raises:
        NoGLError: where there is nothing to draw with.
    """
    width, height = size
    names = renderers()
    if not names:
        raise NoGLError("tried " + ", ".join(_candidates()))
    context = import_module(f"mujoco.{names[0]}").GLContext(width, height)
    context.make_current()
    model = session.model
    model.vis.global_.offwidth, model.vis.global_.offheight = size
    # Many machines draw in software, where shadows and smooth edges are most of the cost.
    model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
    drawn = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, drawn)
    scene = mujoco.MjvScene(model, maxgeom=2000)
    option, camera = mujoco.MjvOption(), mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    camera.trackbodyid = session.base
    camera.distance, camera.azimuth, camera.elevation = DISTANCE, 140.0, -20.0
    area, image = mujoco.MjrRect(0, 0, width, height), np.empty((height, width, 3), np.uint8)
    try:
        for count in range(num_frames):
            for _ in range(stride if count else 0):
                session.step()
            everything = mujoco.mjtCatBit.mjCAT_ALL
            mujoco.mjv_updateScene(model, session.data, option, None, camera, everything, scene)
            _draw_target(session, scene)
            mujoco.mjr_render(area, scene, drawn)
            mujoco.mjr_readPixels(image, None, area, drawn)
            yield image[::-1].copy()
    finally:
        drawn.free()
        context.free()


def renderers() -> tuple[str, ...]:
    """MuJoCo's ways to draw offscreen that work here; the first of those asked for or usual."""
    return next(((name,) for name in _candidates() if _draws(name)), ())


@functools.cache
def _draws(name: str) -> bool:
    """Whether OpenGL works in one of MuJoCo's ways.

    Tried in a process of its own: a library that fails cannot be unloaded, and some end it.
    """
    code = (
        f"import mujoco; from mujoco.{name} import GLContext; context = GLContext(8, 8); "
        "context.make_current(); model = mujoco.MjModel.from_xml_string('<mujoco/>'); "
        "mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)"
    )
    chosen = ("MUJOCO_GL", "PYOPENGL_PLATFORM")
    env = {key: value for key, value in os.environ.items() if key not in chosen}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True).returncode == 0


def _candidates() -> tuple[str, ...]:
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked in ("egl", "osmesa", "glfw", "cgl"):
        return (asked,)
    return ("egl", "osmesa") if sys.platform == "linux" else ("cgl", "glfw")


@contextlib.contextmanager
def _window(session: Session) -> Iterator[Any]:
    """MuJoCo's own viewer; None where there is no display or, after saying so, it stays shut."""
    import mujoco.viewer

    if not has_display():
        yield None
        return
    before = set(threading.enumerate())
    try:
        window = mujoco.viewer.launch_passive(session.model, session.data)
    except RuntimeError as error:  # on macOS it wants to be run by mjpython
        print(f"no window: {error}")
        yield None
        return
    drawing = set(threading.enumerate()) - before
    window.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
    window.cam.trackbodyid = session.base
    window.cam.distance = DISTANCE
    try:
        yield window
    finally:
        window.close()
        # A process that ends while the window is being taken down hangs.
        for thread in drawing:
            thread.join(timeout=5.0)


def _draw_target(session: Session, scene: Any) -> None:
    """Add the axes of the pose that the end-effector is to have: x red, y green, z blue, 10 cm."""
    target = session.target()
    if target is None:
        return
    pos_w, quat_wxyz = target
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, quat_wxyz)
    for axis, end in enumerate(matrix.reshape(3, 3).T):
        colour = np.append(np.eye(3, dtype=np.float32)[axis], np.float32(1.0))
        geom = scene.geoms[scene.ngeom]
        kind = mujoco.mjtGeom.mjGEOM_CAPSULE
        mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), colour)
        mujoco.mjv_connector(geom, kind, 0.006, pos_w, pos_w + 0.1 * end)
        scene.ngeom += 1


class Controls:
    """A page in the browser that steers a session, with or without the scene.

    The browser's events come on other threads and wait for `update`.
    """

    def __init__(self, session: Session, *, scene: bool = True, port: int = PORT) -> None:
        import viser

        self._session = session
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Not for the network: whoever reaches the page steers the robot.
        self._server = viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
        self.port = self._server.get_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._scene: Any = None
        self._frame: Any = None
        if scene:
            self._add_scene()
        self._add_simulation()
        for command in session.env.spec.commands:
            self._add_command(command)
        self._add_push()

    def __enter__(self) -> "Controls":
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()

    def update(self) -> None:
        """Do what the user asked for since the last time, and show the session as it is now."""
        while not self._events.empty():
            self._events.get()()
        if self._scene is None:
            return
        self._scene.update_from_mjdata(self._session.data)
        target = self._session.target()
        if target is not None:
            self._frame.position, self._frame.wxyz = target

    def _add_scene(self) -> None:
        from mjviser import ViserMujocoScene

        self._scene = ViserMujocoScene(self._server, self._session.model, num_envs=1)
        self._scene.create_visualization_gui(camera_distance=DISTANCE)
        self._server.initial_camera.look_at = (0.0, 0.0, 0.0)
        self._server.initial_camera.position = (0.6 * DISTANCE, 0.6 * DISTANCE, 0.5 * DISTANCE)
        if self._session.target() is not None:
            # Below this frame things stand in the world, whatever the camera follows.
            world = self._scene.fixed_bodies_frame.name
            self._frame = self._server.scene.add_frame(
                f"{world}/target", axes_length=0.1, axes_radius=0.006
            )

    def _add_simulation(self) -> None:
        gui, session = self._server.gui, self._session
        with gui.add_folder("simulation"):
            pause = gui.add_checkbox("pause", initial_value=False)
            pause.on_update(lambda _: self._later(setattr, session, "paused", pause.value))
            gui.add_button("reset").on_click(lambda _: self._later(session.reset))
            if session.env.num_envs > 1:
                last = session.env.num_envs - 1
                robot = gui.add_slider("robot", min=0, max=last, step=1, initial_value=0)
                robot.on_update(lambda _: self._later(setattr, session, "watched", robot.value))

    def _add_command(self, command: Command) -> None:
        gui, session = self._server.gui, self._session
        names = zip(command.fields, command.units, strict=True)
        labels = [f"{field} [{unit}]" if unit else field for field, unit in names]
        rows = zip(labels, command.low, command.high, session.start(command), strict=True)
        with gui.add_folder(command.name):
            steer = gui.add_checkbox("steer", initial_value=False, hint="off: the task draws it")
            sliders = [
                gui.add_slider(
                    label,
                    min=low,
                    max=max(high, low + 1e-6),
                    step=max(high - low, 1e-6) / 200,
                    initial_value=value,
                )
                for label, low, high, value in rows
            ]

        def change(_: Any) -> None:
            if steer.value:
                self._later(session.hold, command.name, [slider.value for slider in sliders])
            else:
                self._later(session.release, command.name)

        steer.on_update(change)
        for slider in sliders:
            slider.on_update(lambda event: change(event) if steer.value else None)

    def _add_push(self) -> None:
        gui = self._server.gui
        with gui.add_folder("push"):
            speed = gui.add_slider("speed [m/s]", min=0.0, max=2.0, step=0.05, initial_value=0.5)
            sides = {"forward": (1, 0), "back": (-1, 0), "left": (0, 1), "right": (0, -1)}
            for name, side in sides.items():
                push = functools.partial(self._later, self._push, side, speed)
                gui.add_button(name).on_click(push)

    def _push(self, side: tuple[int, int], speed: Any, _event: Any) -> None:
        self._session.push(side[0] * speed.value, side[1] * speed.value)

    def _later(self, act: Callable[..., None], *arguments: Any) -> None:
        self._events.put(functools.partial(act, *arguments))
