"""Whether following a stream takes the same memory at its end as at its start: `python benchmarks/follow.py RUN`.

RUN is one of `subquad train events` with types 0 and 1, as its simulated Hawkes process has them. Events come at random
times, a line is asked for after each thousand, and the memory that the process holds is read each time.
"""

import argparse
import random
import subprocess
import sys
import tempfile

import psutil

EVERY = 1000


def main() -> None:
    """Prints what the process held after the first lines, at most, and at the end, and its processor's time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    drawing, now = random.Random(0), 0.0
    with tempfile.TemporaryFile("w+") as stream:
        for _ in range(given.events):
            now += drawing.expovariate(1.0)
            stream.write(f"{now:.6f} {drawing.randrange(2)}\n")
        stream.seek(0)
        command = [sys.executable, "-m", "subquad", "predict", given.run, "--follow", "--every", str(EVERY)]
        with subprocess.Popen(command, stdin=stream, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            held, seconds, watched = [], 0.0, psutil.Process(process.pid)
            next(process.stdout)  # the names of the columns
            for _ in process.stdout:
                held.append(watched.memory_info().rss / 2**20)
                seconds = watched.cpu_times().user
    if len(held) != given.events // EVERY:
        sys.exit(f"there are {len(held)} lines for {given.events:,} events: see what subquad predict says")
    memory = f"{held[0]:.0f} MB at first, {max(held):.0f} at most, {held[-1]:.0f} at the end"
    print(f"{given.events:,} events: {memory}; {seconds:.0f} s")


if __name__ == "__main__":
    main()
