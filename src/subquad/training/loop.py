"""The loop. What a step does depends on the seed and its number only, so a run can be killed and goes on as if it had not.

Batches, dropout and redrawn features come from generators that are made anew for each step; there is no other state than
the model's and the optimizer's. On many processes each makes the same batch and takes its share of it.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from subquad.attention import LossTerm, Mechanism
from subquad.errors import NotFiniteError, SubquadError
from subquad.models.stacks import Stack
from subquad.results import Row, Run
from subquad.tasks.base import Best, Task
from subquad.training import checkpoints
from subquad.training.options import TrainOptions
from subquad.training.resuming import BEST, FOLDER, Start, find_start, go_back, refusal, start_over

FLUSH_SECONDS = 2.0
BATCH, DROPOUT, REDRAW, HELD_OUT, SAMPLES = range(5)  # streams of random numbers


class Progress(NamedTuple):
    """Loss, latest metrics and speed after a step."""

    step: int
    loss: float
    metrics: dict[str, float]
    tokens_per_second: float


def generator(seed: int, stream: int, step: int = 0) -> torch.Generator:
    """A generator of random numbers for one purpose in one step."""
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
) -> nn.Module:
    """Trains from where the run stands, keeps rows and checkpoints, and gives the trained model.

    Args:
        task: what is learned.
        model: the model, with the weights that a new run starts with.
        options: how it is trained.
        run: the run, in a folder that is there.
        seed: the seed of batches, dropout and redrawn features.
        watch: told of every step.
        say: told what the user should know.
        begin: puts other weights into the model, where the run starts at its first step.
        restart: deletes what the run has so far and starts at the first step.
    """
    accelerator = import_accelerate().Accelerator(mixed_precision="no")  # autocast is done here, where runs can differ in it
    options.check_processes(accelerator.num_processes)
    optimizer = options.build_optimizer(model.parameters())
    if restart and accelerator.is_main_process:
        start_over(run)
    accelerator.wait_for_everyone()
    best = task.best if options.keep_best else None
    start = _find_start(run, model, optimizer, best, first=options.checkpoint_every)
    accelerator.wait_for_everyone()  # until all have read what the next lines may delete
    if accelerator.is_main_process:
        for complaint in start.complaints:
            say(complaint)
        go_back(run, start)
    if start.checkpoint is None:
        begin()
    else:
        checkpoints.restore(start.checkpoint, model, optimizer)
    for module in model.modules():
        if isinstance(module, Stack):
            module.recompute = options.recompute
    loop = _Loop(task, model, options, run, seed, accelerator, optimizer, watch)
    loop.run_from(start.step)
    loop.restore_best()
    return model


def import_accelerate() -> Any:
    """The package accelerate, which takes a second to import and which only training needs."""
    try:
        import accelerate
    except ImportError:
        raise SubquadError(
            "training needs the package accelerate, which is not installed: pip install 'subquad[hub]'"
        ) from None
    return accelerate


class _Loop:
    """One training, from some step to the last."""

    def __init__(
        self,
        task: Task[Any],
        model: nn.Module,
        options: TrainOptions,
        run: Run,
        seed: int,
        accelerator: Any,
        optimizer: torch.optim.Optimizer,
        watch: Callable[[Progress], None],
    ) -> None:
        self.task, self.plain, self.options, self.run, self.seed = task, model, options, run, seed
        self.accelerator, self.plain_optimizer, self.watch = accelerator, optimizer, watch
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.waiting: list[Row] = []
        self.flushed = time.monotonic()
        self.metrics: dict[str, float] = {}
        self.best = task.best if options.keep_best else None
        self.terms: list[Tensor] = []  # what modules add to the loss while the model runs
        self.mechanisms = [module for module in model.modules() if isinstance(module, Mechanism)]
        for mechanism in self.mechanisms:
            for part in mechanism.modules() if mechanism.options.traits.adds_to_loss else ():
                if isinstance(part, LossTerm):
                    part.register_forward_hook(lambda term, _, result: self.terms.append(term.weight_in_loss * result))

    def run_from(self, start: int) -> None:
        """Trains from a step to the last."""
        speed, last = 0.0, start
        try:
            for step in range(start, self.options.steps):
                before = time.perf_counter()
                loss, tokens = self._step(step)
                speed_now = tokens / (time.perf_counter() - before)
                speed = 0.9 * speed + 0.1 * speed_now if speed else speed_now
                self._keep({"metric": "loss", "value": loss, "unit": "nats", "step": step + 1, "split": "train"})
                done, end = step + 1, step + 1 == self.options.steps
                if done % self.options.evaluate_every == 0 or end:
                    self._evaluate(done, speed)
                if done % self.options.checkpoint_every == 0 or end:
                    self._checkpoint(done)
                    last = done
                self.watch(Progress(done, loss, self.metrics, speed))
        except _NotFiniteLossError as error:
            raise SubquadError(
                f"the loss is {error.loss} at step {error.step}; the last good checkpoint is of step {last} in "
                f"{self.run.folder}; try a lower --learning-rate, a --warm-up, a smaller --clip, or --precision float32"
            ) from None
        finally:
            self._flush()

    def _step(self, step: int) -> tuple[float, int]:
        """One update: the loss of the whole batch, and how many tokens it had."""
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
        for number, part in enumerate(parts):
            total += self._backward(part, count, parts=len(parts), last=number == len(parts) - 1)
        loss = float(self.accelerator.reduce(total, "sum")) / count
        if not np.isfinite(loss):
            raise _NotFiniteLossError(step + 1, loss)
        if self.options.clip:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, batch[0].shape[:2].numel()

    def _backward(self, part: Any, count: int, *, parts: int, last: bool) -> Tensor:
        """Adds the gradient of a part, piece by piece, and returns the sum of its losses."""
        pieces, each = self.task.pieces(part), self.task.losses(self.model, part)
        total = torch.zeros((), device=self.accelerator.device)
        for piece in range(pieces):
            with self.accelerator.no_sync(self.model) if not (last and piece == pieces - 1) else nullcontext():
                with torch.autocast(
                    self.accelerator.device.type, torch.bfloat16, enabled=self.options.precision == "bfloat16"
                ):
                    self.terms.clear()
                    losses = next(each).total
                # processes' gradients are averaged, so each counts as often as there are processes
                scaled = losses * self.accelerator.num_processes / count
                if self.terms:
                    scaled = scaled + torch.stack(self.terms).mean() / (parts * pieces)
                self.accelerator.backward(scaled)
            total += losses.detach()
        return total

    def _parts(self, batch: Any) -> Iterator[Any]:
        """Cuts this process' share of a batch into parts. Strided, so that long and short sequences are spread evenly."""
        shares = self.accelerator.num_processes * self.options.accumulate
        for number in range(self.options.accumulate):
            first = number * self.accelerator.num_processes + self.accelerator.process_index
            yield type(batch)(*(tensor[first::shares].to(self.accelerator.device) for tensor in batch))

    def _redraw(self, step: int) -> None:
        """Draws random features again at the steps that ask for it: the same ones on every process."""
        if not self.options.redraw or step == 0 or step % self.options.redraw:
            return
        self.plain.train()
        drawing = generator(self.seed, REDRAW, step)
        for mechanism in self.mechanisms:
            if mechanism.options.traits.redraws:
                mechanism.redraw(drawing)

    def _evaluate(self, step: int, speed: float) -> None:
        if not self.accelerator.is_main_process:
            return
        self.plain.eval()
        try:
            self.metrics = self.task.evaluate(self.plain, generator(self.seed, HELD_OUT))
        except NotFiniteError:  # of a mechanism, to which weights have become too large
            raise _NotFiniteLossError(step, math.nan) from None
        self._keep_best(step)
        for name, value in self.metrics.items():
            about = {"unit": self.task.units.get(name, "share"), "step": step, "split": "held out"}
            self._keep({"metric": name, "value": value if np.isfinite(value) else None, **about})
        self._keep({"metric": "tokens_per_second", "value": speed, "unit": "1/s", "step": step, "split": "train"})
        if step == self.options.steps:
            self._finish(step)

    def _finish(self, step: int) -> None:
        """Writes samples and final metrics of the trained model: of its best weights, if they are kept."""
        last = {name: tensor.clone() for name, tensor in checkpoints.model_tensors(self.plain).items()}
        if (best := self.restore_best()) is not None:
            self._keep({"metric": "best_step", "value": best, "unit": "steps", "step": step})
        for sample in self.task.samples(self.plain, generator(self.seed, SAMPLES), 8):
            self._keep({"metric": "sample", "value": None, "unit": "", "step": step, **sample})
        for row in self.task.final(self.plain):
            self._keep({"unit": "share", "step": step, **row})
        self.plain.load_state_dict(last, strict=False)

    def _keep_best(self, step: int) -> None:
        """Keeps the weights beside the checkpoints if none were better. What was best so far, the run's rows say."""
        if self.best is None:
            return
        metric = self.best.metric
        evaluated = {"metric": metric, "value": self.metrics[metric], "step": step, "split": "held out"}
        if np.isfinite(self.metrics[metric]) and best_step([*self.run.rows(), *self.waiting, evaluated], self.best) == step:
            about = {"seed": self.seed, metric: self.metrics[metric]}
            checkpoints.save(self.run.folder / BEST, step, self.plain, None, about, keep=None)

    def restore_best(self) -> int | None:
        """Puts back the weights that were best, and gives their step, where they are kept."""
        if self.best is None or not checkpoints.found(self.run.folder / BEST):
            return None
        best = checkpoints.read(checkpoints.found(self.run.folder / BEST)[-1])
        checkpoints.restore(best, self.plain)
        return best.step

    def _checkpoint(self, step: int) -> None:
        """Writes rows first, so that a checkpoint has all rows that it counts."""
        self._flush()
        if self.accelerator.is_main_process:
            about = {"seed": self.seed, "rows": self.run.count_rows()}
            checkpoints.save(self.run.folder / FOLDER, step, self.plain, self.plain_optimizer, about)
            oldest = checkpoints.step_of(checkpoints.found(self.run.folder / FOLDER)[0])
            checkpoints.forget_before(self.run.folder / BEST, oldest)  # a run may have to go on from there
        self.accelerator.wait_for_everyone()

    def _keep(self, row: Row) -> None:
        self.waiting.append(row)
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        rows, self.waiting, self.flushed = self.waiting, [], time.monotonic()  # interrupted, none is written twice
        if self.accelerator.is_main_process and rows:
            self.run.append(rows)


class _NotFiniteLossError(Exception):
    def __init__(self, step: int, loss: float) -> None:
        super().__init__()
        self.step, self.loss = step, loss


def best_step(rows: Iterable[Row], best: Best) -> int | None:
    """The step at which a run was evaluated best, the first one of several. None if it was not evaluated."""
    sign = 1.0 if best.good == "low" else -1.0
    evaluated = [row for row in rows if row["metric"] == best.metric and row.get("split") == "held out"]
    evaluated = [row for row in evaluated if row["value"] is not None]  # as it was not finite
    return min(evaluated, key=lambda row: sign * row["value"])["step"] if evaluated else None


def _find_start(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, best: Best | None, *, first: int) -> Start:
    """Where the run goes on. A run that lacks checkpoints, or its best weights, is refused."""
    start = find_start(
        run, lambda checkpoint: checkpoints.check_fit(checkpoint, model, optimizer), counter="step", first=first
    )
    _check_best(run, start, model, best)
    return start


def _check_best(run: Run, start: Start, model: nn.Module, best: Best | None) -> None:
    """Refuses to go on without the weights that the rows say were best."""
    step = None if best is None else best_step(start.rows, best)
    if step is None or start.checkpoint is None or "rows" not in start.checkpoint.about:  # older versions kept too few
        return
    path = run.folder / BEST / f"step-{step:09d}"
    try:
        checkpoints.check_fit(checkpoints.read(path), model)
    except SubquadError as error:
        raise refusal(run, f"its best weights are lost: {error}") from None


def load_model(folder: Path, model: nn.Module, say: Callable[[str], None]) -> int:
    """Puts a run's best weights into a model, or its newest where no best ones were kept, and gives their step."""

    def check(candidate: checkpoints.Checkpoint) -> None:
        checkpoints.check_fit(candidate, model)

    checkpoint, complaints = checkpoints.load(folder / BEST, check)
    if checkpoint is None:
        checkpoint, more = checkpoints.load(folder / FOLDER, check)
        complaints = [*(f"{complaint}, so the newest checkpoint is used" for complaint in complaints), *more]
    if checkpoint is None:
        why = f" ({complaints[0]})" if complaints else ""
        raise SubquadError(
            f"{folder} has no checkpoint that can be read{why}: train it first, with subquad train --resume {folder}"
        )
    for complaint in complaints:
        say(complaint)
    checkpoints.restore(checkpoint, model)
    return checkpoint.step


def _number(seed: int, stream: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, stream, step]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def parameters(model: nn.Module) -> int:
    """Number of trained parameters."""
    tensors: list[Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return sum(tensor.numel() for tensor in tensors)
