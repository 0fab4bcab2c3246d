"""Act, observe, update: the online loop, for every learner and every environment."""

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from robo_rl import checkpoint
from robo_rl.api import Env
from robo_rl.config import to_dict
from robo_rl.evaluation import evaluate, score
from robo_rl.metrics import Display, Meter, Writer
from robo_rl.run import Run, RunCfg, RunError

EVAL_ENVS = 64
EVAL_SEED = 1_000_003
"""Of the episodes that choose the best policy; the final evaluation has the next one."""
MAX_FAULTS = 5
"""Updates skipped in a row after which a run stops."""
MAX_DUMPS = 10


class Runner:
    """Trains a run's learner in a run's environment and fills the run's folder."""

    def __init__(self, run: Run, cfg: RunCfg) -> None:
        self._run, self._cfg = run, cfg
        torch.manual_seed(cfg.seed)
        num_envs, device, seed = cfg.num_envs, cfg.device, cfg.seed
        self.env = cfg.task.build(num_envs=num_envs, device=device, seed=seed)
        spec = self.env.spec
        self.learner = cfg.learner.build(spec, num_envs=num_envs, device=device, seed=seed)
        self.meter = Meter(spec, num_envs, device)
        self.obs = self.env.reset(seed=cfg.seed, stagger=True)
        self.iteration = 0
        self._time_s = 0.0
        self._best = -math.inf
        self._faults_in_a_row = 0
        self._fault = ""

    @cached_property
    def eval_env(self) -> Env:
        """Environments apart, so that an evaluation leaves no trace in training."""
        cfg = self._cfg
        return cfg.task.build(num_envs=EVAL_ENVS, device=cfg.device, seed=EVAL_SEED)

    def train(self, writer: Writer, display: Display, stopped: Callable[[], bool]) -> None:
        """Iterate until the run is complete or told to stop, and save the end."""
        cfg = self._cfg
        # A score that no evaluation gives should not surface minutes later.
        score(cfg.task.score, evaluate(self.learner.policy, self.eval_env, steps=1))
        while self.iteration < cfg.iterations and not stopped():
            line = self.iterate()
            self._check(line, display)
            last = self.iteration == cfg.iterations
            due = last or self.iteration % cfg.eval_every == 0
            # What is not saved while updates fail is not to become the best score either.
            evaluates = due and not self._faults_in_a_row
            if evaluates:
                line |= self._evaluate()
            # The line before the checkpoint: a resumed run drops lines it is to write again.
            with self._run.writing():
                writer.write(line)
            display.update(line)
            keeps = self.iteration % cfg.save_every == 0
            if keeps:
                self._save(f"{self.iteration:06}")
            if keeps or evaluates or stopped():
                self._save("latest")
        if self.iteration == cfg.iterations and not self._run.saved:
            raise RunError(f"no update succeeded that was to be saved; the last: {self._fault}")

    def iterate(self) -> dict[str, float]:
        """One iteration: the learner's T steps of every environment, then its update."""
        began = time.perf_counter()
        simulation_s = 0.0
        for _ in range(self.learner.num_steps):
            action = self.learner.act(self.obs)
            before = time.perf_counter()
            step = self.env.step(action)
            simulation_s += time.perf_counter() - before
            self.learner.observe(step)
            self.meter.add(step)
            self.obs = step.obs
        line = self.meter.read(self.learner.update())
        self.iteration += 1
        elapsed = time.perf_counter() - began
        self._time_s += elapsed
        num_steps = self.learner.num_steps * self.env.num_envs
        return {
            "iteration": self.iteration,
            "steps": self.iteration * num_steps,
            "time_s": self._time_s,
            "steps_per_s": num_steps / elapsed,
            "simulation_s": simulation_s,
            "learning_s": elapsed - simulation_s,
            **line,
        }

    def load(self) -> None:
        """Go on from the run's latest checkpoint, to the bit on a CPU."""
        path = self._run.checkpoint("latest")
        checkpoint.check_spec(checkpoint.load_spec(path), self.env.spec, path)
        state, meta = checkpoint.load(path)
        with checkpoint.loading(path):
            self.learner.load_state_dict(state["learner"])
            self.env.load_state_dict(state["env"])
            self.meter.load_state_dict(state["meter"])
            self.obs = {name: obs.to(self._cfg.device) for name, obs in state["obs"].items()}
            torch.set_rng_state(state["torch"])
            self.iteration = meta["iteration"]
            self._time_s = state["time_s"]
            self._best = state["best"]

    def final_evaluation(self) -> dict[str, Any]:
        """Of the best policy, on episodes that did not choose it."""
        path = self._run.checkpoint("best")
        seed = EVAL_SEED + 1
        policy = checkpoint.load_policy(path, device=self._cfg.device)
        scores = evaluate(policy, self.eval_env, seed=seed)
        return {
            "checkpoint": path.name,
            "iteration": checkpoint.load_meta(path)["iteration"],
            "num_envs": EVAL_ENVS,
            "seed": seed,
            "score": self._cfg.task.score,
            "scores": scores,
            "units": dict(self.env.units),
        }

    def close(self) -> None:
        self.env.close()
        if "eval_env" in self.__dict__:
            self.eval_env.close()

    def _evaluate(self) -> dict[str, float]:
        began = time.perf_counter()
        scores = evaluate(self.learner.policy, self.eval_env, seed=EVAL_SEED)
        value = score(self._cfg.task.score, scores)
        if value > self._best:
            self._best = value
            self._save("best")
        self._time_s += time.perf_counter() - began
        scores |= {"score": value, "best_score": self._best}
        line = {f"eval/{name}": number for name, number in scores.items()}
        return line | {"evaluation_s": time.perf_counter() - began}

    def _check(self, line: dict[str, float], display: Display) -> None:
        """Name what was not finite, leave a dump, and stop a run that does not recover."""
        if not line.get("skipped"):
            self._faults_in_a_row = 0
            return
        self._faults_in_a_row += 1
        names = [name for name, value in line.items() if not math.isfinite(value)]
        fault = f"iteration {self.iteration}: update skipped: {self.learner.fault()}" + (
            f"; not finite: {', '.join(names)}" if names else ""
        )
        self._fault = fault
        display.say(fault)
        dump = self._run.path / "faults" / f"{self.iteration:06}.safetensors"
        dump.parent.mkdir(exist_ok=True)
        if len(list(dump.parent.iterdir())) < MAX_DUMPS:
            checkpoint.save(dump, self._state(), self._meta() | {"fault": fault})
            display.say(f"learner and environments as they are after it: {dump}")
        if self._faults_in_a_row == MAX_FAULTS:
            raise RunError(
                f"stopped after {MAX_FAULTS} skipped updates in a row; the last: {fault}; "
                f"checkpoints from before are in {self._run.path / 'checkpoints'}"
            )

    def _save(self, name: str) -> None:
        """Save under a name: all that a continuation needs as latest, else the learner alone."""
        if self._faults_in_a_row:
            return  # the last good one is worth more
        state = self._state() if name == "latest" else {"learner": self.learner.state_dict()}
        checkpoint.save(self._run.path / "checkpoints" / f"{name}.safetensors", state, self._meta())

    def _state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "env": self.env.state_dict(),
            "meter": self.meter.state_dict(),
            "obs": self.obs,
            "torch": torch.get_rng_state(),
            "time_s": self._time_s,
            "best": self._best,
        }

    def _meta(self) -> dict[str, Any]:
        return {
            "task": self._cfg.task.name,
            "algorithm": self._cfg.algorithm,
            "config": self._cfg.to_dict(),
            "spec": to_dict(self.env.spec),
            "iteration": self.iteration,
        }
