"""The training loop. A step depends only on the seed and its number, so an interrupted run continues as if it never stopped.

Batches, dropout and redrawn features use generators that are seeded anew in each step. All other state is in the model and
the optimizer. With several processes, each draws the same batch and uses its share of it.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from subquad.attention import LossTerm, Mechanism
from subquad.errors import DivergedError, NotFiniteError, SubquadError
from subquad.models.stacks import Stack
from subquad.results import Row, Run
from subquad.tasks.base import Task
from subquad.training import checkpoints, sharding
from subquad.training.cutting import Cutting, explaining_lost_processes
from subquad.training.options import TrainOptions
from subquad.training.resuming import BEST, FOLDER, Trained, best_step, check_best, find_start, go_back, start_over
from subquad.training.scaling import Scaling
from subquad.training.sharding import Sharded

FLUSH_SECONDS = 2.0  # longest time that rows wait in memory
BATCH, DROPOUT, REDRAW, HELD_OUT, SAMPLES = range(5)  # numbers of the streams of random numbers


class Progress(NamedTuple):
    """Step, loss, latest metrics and speed of a training."""

    step: int
    loss: float
    metrics: dict[str, float]
    tokens_per_second: float
    is_judging: bool = False  # whether the last step is done, and the final measurements begin


def generator(seed: int, stream: int, step: int = 0) -> torch.Generator:
    """Returns a random generator for one purpose (`stream`) in one step."""
    return torch.Generator().manual_seed(_number(seed, stream, step))


def train(
    task: Task[Any],
    model: nn.Module,
    options: TrainOptions,
    run: Run,
    *,
    seed: int,
    watch: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda words: None,
    begin: Callable[[], None] = lambda: None,
    restart: bool = False,
    judged: bool = True,
    is_over: Callable[[], bool] = lambda: False,
) -> nn.Module:
    """Continues training from the run's newest checkpoint, writes rows and checkpoints, and returns the trained model.

    Args:
        task: the task to learn.
        model: the model with the initial weights of a new run.
        options: how the model is trained.
        run: the run, in a folder that exists.
        seed: the seed of batches, dropout and redrawn features.
        watch: called after every step.
        say: called with sentences for the user.
        begin: called to put other initial weights into the model, if the run starts at its first step.
        restart: deletes the rows and checkpoints of the run and starts at the first step.
        judged: writes samples and final metrics of the trained model, such as those on the test split.
        is_over: asked after every step whether this was the last one, for a training that is limited by time.
    """
    accelerator = _make_accelerator(options)
    with explaining_lost_processes(accelerator.num_processes):
        optimizer = options.build_optimizer(model.parameters())
        trained = Trained(model, optimizer, Scaling(options.precision, accelerator.device.type))
        if restart and accelerator.is_main_process:
            start_over(run)
        accelerator.wait_for_everyone()
        start = find_start(run, trained.check, counter="step", first=options.checkpoint_every)
        check_best(run, start, model, task.chosen_by if options.keep_best else None)
        accelerator.wait_for_everyone()  # until all processes have read what the next lines may delete
        if accelerator.is_main_process:
            for complaint in start.complaints:
                say(complaint)
            go_back(run, start)
        if start.checkpoint is None:
            begin()
        else:
            trained.restore(start.checkpoint)
        _Loop(task, trained, options, run, seed, accelerator, watch, judged=judged, is_over=is_over).run_from(start.step)
    return model


def import_accelerate() -> Any:
    """Returns the package accelerate, which only training needs and which takes a second to import."""
    try:
        import accelerate
    except ImportError:
        raise SubquadError(
            "training needs the package accelerate, which is not installed: pip install 'subquad[hub]'"
        ) from None
    return accelerate


def _make_accelerator(options: TrainOptions) -> Any:
    """Returns accelerate's view of the processes and the device. Raises `SubquadError` for options that do not suit them."""
    # accelerate takes several processes without a GPU for one, unless it is told that they use the CPU
    on_cpu = int(os.environ.get("WORLD_SIZE", 1)) > 1 and torch.accelerator.current_accelerator() is None
    with sharding.hidden_from_accelerate():
        # autocast is applied by `Scaling`
        accelerator = import_accelerate().Accelerator(mixed_precision="no", cpu=on_cpu)
    options.check_processes(accelerator.num_processes)
    options.check_device(accelerator.device.type)
    return accelerator


class _Loop:
    """One training from a given step to the last."""

    def __init__(
        self,
        task: Task[Any],
        trained: Trained,
        options: TrainOptions,
        run: Run,
        seed: int,
        accelerator: Any,
        watch: Callable[[Progress], None],
        *,
        judged: bool = True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.options, self.run, self.seed = task, options, run, seed
        self.judged, self.is_over = judged, is_over
        self.accelerator, self.watch = accelerator, watch
        self.plain, self.plain_optimizer, self.scaling = trained
        self.sharded: Sharded | None = None
        if sharding.is_wanted():
            sharding.check_sharding(task, self.plain)
            self.sharded = sharding.shard(self.plain, self.plain_optimizer, options, accelerator.device)
            self.model, self.optimizer, _ = self.sharded
        else:
            self.model, self.optimizer = accelerator.prepare(self.plain, self.plain_optimizer)
        trained_model = self.plain if self.sharded is None else self.model
        self.cutting = Cutting(task, trained_model, accelerator, options.sequence_parallel)
        self.waiting: list[Row] = []
        self.flushed = time.monotonic()
        self.metrics: dict[str, float] = {}
        self.best = task.chosen_by if options.keep_best else None
        for module in trained_model.modules():
            if isinstance(module, Stack):
                module.recompute = options.recompute
        self.terms: list[Tensor] = []  # weighted terms that modules add to the loss in a forward pass
        self.mechanisms = [module for module in trained_model.modules() if isinstance(module, Mechanism)]
        for mechanism in self.mechanisms:
            for part in mechanism.modules() if mechanism.traits.adds_to_loss else ():
                if isinstance(part, LossTerm):
                    part.register_forward_hook(lambda term, _, result: self.terms.append(term.weight_in_loss * result))

    def run_from(self, start: int) -> None:
        """Trains from a step to the last. The model then has the best weights, if these are kept."""
        speed, last = 0.0, start
        steps = 0 if start and self._is_stalled() else self.options.steps
        try:
            for step in range(start, steps):
                before = time.perf_counter()
                loss, tokens = self._step(step)
                speed_now = tokens / (time.perf_counter() - before)
                speed = 0.9 * speed + 0.1 * speed_now if speed else speed_now
                self._keep({"metric": "loss", "value": loss, "unit": "nats", "step": step + 1, "split": "train"})
                done, end = step + 1, step + 1 == self.options.steps or self.is_over()
                if done % self.options.evaluate_every == 0 or end:
                    end = self._evaluate(done, loss, speed) or end
                if done % self.options.checkpoint_every == 0 or end:
                    self._checkpoint(done)
                    last = done
                self.watch(Progress(done, loss, self.metrics, speed))
                if end:
                    break
        except _NotFiniteLossError as error:
            raise DivergedError(
                f"the loss is {error.loss} at step {error.step}; the last good checkpoint is of step {last} in "
                f"{self.run.folder}; try a lower --learning-rate, a --warm-up, a smaller --clip, or --precision float32"
            ) from None
        finally:
            self._flush()
        self.restore_best()

    def _step(self, step: int) -> tuple[float, int]:
        """Does one update and returns the loss of the whole batch and its number of tokens."""
        torch.manual_seed(
            _number(self.seed, DROPOUT, step * self.accelerator.num_processes + self.accelerator.process_index)
        )
        self._redraw(step)
        batch = self.task.batch(self.options.batch, generator(self.seed, BATCH, step))
        count = self.task.count(batch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.rate(step)
        self.model.train()
        total = torch.zeros((), device=self.accelerator.device)
        parts = list(self._parts(batch))
        try:
            for number, part in enumerate(parts):
                total += self._backward(part, count, parts=len(parts), last=number == len(parts) - 1)
        except NotFiniteError:  # raised by a mechanism if a step before has made weights too large
            raise _NotFiniteLossError(step + 1, math.nan) from None
        loss = float(self.accelerator.reduce(total, "sum")) / count
        if not np.isfinite(loss):
            raise _NotFiniteLossError(step + 1, loss)
        if self.options.clip:
            self.scaling.unscale(self.optimizer)
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.options.clip)
        if not self.scaling.step(self.optimizer):
            raise _NotFiniteLossError(step + 1, math.nan)
        self.optimizer.zero_grad()
        return loss, batch[0].shape[:2].numel()

    def _backward(self, part: Any, count: int, *, parts: int, last: bool) -> Tensor:
        """Adds the gradient of a part of the batch, piece by piece, and returns the sum of its losses."""
        pieces, total = self.cutting.pieces(part), torch.zeros((), device=self.accelerator.device)
        with self.cutting.entered(part) as stretch:
            piece_losses = self.cutting.losses(self.model, part, stretch)
            for piece in range(pieces):
                with self.accelerator.no_sync(self.model) if not (last and piece == pieces - 1) else nullcontext():
                    with self.scaling.autocast():
                        self.terms.clear()
                        losses = next(piece_losses).total
                    # processes' gradients are averaged, so each counts as often as there are processes
                    scaled = losses * self.accelerator.num_processes / count
                    if self.terms:
                        scaled = scaled + torch.stack(self.terms).mean() / (parts * pieces)
                    if self.accelerator.num_processes > 1 and self.sharded is None:
                        scaled = scaled + self._nothing()
                    self.accelerator.backward(self.scaling.scaled(scaled))
                total += losses.detach()
        return total

    def _nothing(self) -> Tensor:
        """Zero, as a function of all parameters: processes wait for the gradient of each, also of unused ones."""
        return torch.stack(
            [each.flatten()[:0].float().sum() for each in self.plain.parameters() if each.requires_grad]
        ).sum()

    def _parts(self, batch: Any) -> Iterator[Any]:
        """Yields the parts of this process's share of a batch."""
        for number in range(self.options.accumulate):
            chosen = self.cutting.share(number, self.options.accumulate)
            yield type(batch)(*(tensor[chosen].to(self.accelerator.device) for tensor in batch))

    def _redraw(self, step: int) -> None:
        """Redraws random features every `redraw` steps, with the same generator on every process."""
        if not self.options.redraw or step == 0 or step % self.options.redraw:
            return
        self.model.train()
        drawing = generator(self.seed, REDRAW, step)
        for mechanism in self.mechanisms:
            if mechanism.traits.redraws:
                mechanism.redraw(drawing)

    def _is_stalled(self) -> bool:
        """Whether the last evaluations, as many as the option `patience`, were no better than one before them."""
        if not self.options.patience or self.best is None:
            return False
        rows = [*self.run.rows(), *self.waiting]
        best, metric = best_step(rows, self.best), self.best.metric
        later = {row["step"] for row in rows if row["metric"] == metric and row.get("split") == "held out"}
        return best is not None and sum(step > best for step in later) >= self.options.patience

    def _evaluate(self, step: int, loss: float, speed: float) -> bool:
        """Writes rows with the metrics of the development data, and returns whether training ends here."""
        if self.sharded is not None:
            self.sharded.gather(self.plain)
        if not self.accelerator.is_main_process:
            return self._all_end(False)
        self.plain.eval()
        try:
            self.metrics = self.task.evaluate(self.plain, generator(self.seed, HELD_OUT))
        except NotFiniteError:  # raised by a mechanism if weights have become too large
            raise _NotFiniteLossError(step, math.nan) from None
        self._keep_best(step)
        for name, value in self.metrics.items():
            if np.isfinite(value):  # of too few sequences, or of one class, some metrics are not defined
                about = {"unit": self.task.units.get(name, "share"), "step": step, "split": "held out"}
                self._keep({"metric": name, "value": value, **about})
        self._keep({"metric": "tokens_per_second", "value": speed, "unit": "1/s", "step": step, "split": "train"})
        if self.scaling.is_scaled:
            self._keep({"metric": "loss_scale", "value": self.scaling.scale, "unit": "", "step": step, "split": "train"})
        is_last = step == self.options.steps or self._is_stalled()
        if is_last:
            if self.judged:
                self.watch(Progress(step, loss, self.metrics, speed, is_judging=True))
            self._finish(step)
        return self._all_end(is_last)

    def _all_end(self, ends: bool) -> bool:
        """Whether the main process ends training, known to all processes."""
        if not self.options.patience or self.accelerator.num_processes == 1:
            return ends
        told = torch.tensor(float(ends), device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum") > 0)

    def _finish(self, step: int) -> None:
        """Writes samples and final metrics of the best weights, if these are kept, or else of the last ones."""
        last = {name: tensor.clone() for name, tensor in checkpoints.model_tensors(self.plain).items()}
        if (best := self.restore_best()) is not None:
            self._keep({"metric": "best_step", "value": best, "unit": "steps", "step": step})
        if self.judged:
            self._judge(step)
        self.plain.load_state_dict(last, strict=False)

    def _judge(self, step: int) -> None:
        for sample in self.task.samples(self.plain, generator(self.seed, SAMPLES), 8):
            self._keep({"metric": "sample", "value": None, "unit": "", "step": step, **sample})
        for row in self.task.final(self.plain):
            self._keep({"unit": "share", "step": step, **row})

    def _keep_best(self, step: int) -> None:
        """Saves the weights if no earlier ones were better. The best metric so far is read from the run's rows."""
        if self.best is None:
            return
        metric = self.best.metric
        evaluated = {"metric": metric, "value": self.metrics[metric], "step": step, "split": "held out"}
        if np.isfinite(self.metrics[metric]) and best_step([*self.run.rows(), *self.waiting, evaluated], self.best) == step:
            about = {"seed": self.seed, metric: self.metrics[metric]}
            checkpoints.save(self.run.folder / BEST, step, self.plain, None, about, keep=None)

    def restore_best(self) -> int | None:
        """Loads the best weights into the model and returns their step, or None if no best weights are kept."""
        is_absent = self.sharded is not None and not self.accelerator.is_main_process
        if is_absent or self.best is None or not checkpoints.checkpoint_folders(self.run.folder / BEST):
            return None
        best = checkpoints.read(checkpoints.checkpoint_folders(self.run.folder / BEST)[-1])
        checkpoints.restore(best, self.plain)
        return best.step

    def _checkpoint(self, step: int) -> None:
        """Saves a checkpoint. Rows are written first, so that the rows that it counts are on disk."""
        self._flush()
        about = {"seed": self.seed, "rows": self.run.count_rows(), **self.scaling.state()}
        if self.sharded is not None:
            self.sharded.save(self.run.folder / FOLDER, step, about)
        elif self.accelerator.is_main_process:
            checkpoints.save(self.run.folder / FOLDER, step, self.plain, self.plain_optimizer, about)
        if self.accelerator.is_main_process:
            oldest = checkpoints.step_of(checkpoints.checkpoint_folders(self.run.folder / FOLDER)[0])
            checkpoints.forget_before(self.run.folder / BEST, oldest)  # a run may continue from the oldest
        self.accelerator.wait_for_everyone()

    def _keep(self, row: Row) -> None:
        self.waiting.append(row)
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        # the list is cleared before it is written, so that an interrupted write is not repeated
        rows, self.waiting, self.flushed = self.waiting, [], time.monotonic()
        if self.accelerator.is_main_process and rows:
            self.run.append(rows)


class _NotFiniteLossError(Exception):
    def __init__(self, step: int, loss: float) -> None:
        super().__init__()
        self.step, self.loss = step, loss


def _number(seed: int, stream: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, stream, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    tensors: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return sum(tensor.numel() for tensor in tensors)
