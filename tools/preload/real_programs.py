# SPDX-License-Identifier: BSD-2-Clause
"""Runs real programs with and without mam-run: are their outputs the same, how long do they take, what was caught?

Writes programs.csv, programs.md (a table for BENCHMARKS.md), cost.csv and start.csv to a folder, and the outputs of
programs that differ.  With --soak, runs the programs in parallel for some minutes under mam-run instead, compares every
output, and compares what is free on the device before and after.
Programs whose file or module is not there are left out, with a line that says so.
Exits with 0 if all outputs are the same and every limit is kept, 1 if not, 77 where there is no GPU.
"""
import argparse
import collections
import concurrent.futures
import csv
import ctypes
import difflib
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SKIP = 77

# Lines with a time, a process number or an address differ from run to run, with and without mam-run.
NOT_COMPARED = re.compile(r"^time |\btime\b|elapsed|seconds|\bsec\b|\bms\b|msec|GB/s|MB/s|Gflop|throughput|bandwidth|"
                          r"speed|\bpid\b|0x[0-9a-f]{6,}|MElements|Options per|kernel execution|Kernel.*took|shmName|"
                          r"^memcopy:|^kernel:|streams?:|streamed:|fetch rate", re.I)

# differs: with mam-run the program prints "capture worked", without it "capture failed".
Program = collections.namedtuple("Program", "name setting command environment differs", defaults=({}, False))


# ---- Which programs there are -----------------------------------------------------------------------------------


def python(name, *arguments):
    return [sys.executable, "-B", os.path.join(HERE, name), *arguments]


UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

PYTHON = [
    Program("PyTorch, training", "own cache", python("torch_work.py", "train")),
    Program("PyTorch, training", "no cache", python("torch_work.py", "train"), UNCACHED),
    Program("PyTorch, small model", "own cache", python("torch_work.py", "host-bound")),
    Program("PyTorch, small model", "no cache", python("torch_work.py", "host-bound"), UNCACHED),
    Program("PyTorch, graph", "own cache", python("torch_work.py", "graph")),
    # Without mam-run the capture fails; with it the capture must work.
    Program("PyTorch, graph", "no cache", python("torch_work.py", "graph"), UNCACHED, True),
    Program("CuPy", "own pool", python("cupy_work.py", "own")),
    Program("CuPy", "no pool", python("cupy_work.py", "none")),
    Program("Numba", "", python("numba_work.py")),
    Program("JAX", "own pool", python("jax_work.py")),
    Program("JAX", "platform", python("jax_work.py"), {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
]

# Programs of this folder, built by nvcc.
SAMPLES = [Program(f"samples {what}", "static runtime", ["samples", what]) for what in
           ("vector", "matrix", "reduce", "streams", "pitch")]
SAMPLES += [Program("samples vector", "shared runtime", ["samples_shared", "vector"]),
            Program("samples streams", "shared runtime", ["samples_shared", "streams"]),
            Program("sample_cublas", "shared runtime and cuBLAS", ["sample_cublas"])]

# Programs that are built outside the project, from public sources: NVIDIA/cuda-samples, and Rodinia (yuhc/gpu-rodinia).
PUBLIC = [Program(words.split()[0], origin, words.split()) for origin, words in (
    ("cuda-samples", "vectorAdd"), ("cuda-samples", "matrixMul"), ("cuda-samples", "reduction"),
    ("cuda-samples", "scan"), ("cuda-samples", "simpleStreams"), ("cuda-samples", "simpleIPC"),
    ("cuda-samples", "threadFenceReduction"), ("cuda-samples", "streamOrderedAllocation"),
    ("cuda-samples", "simpleCudaGraphs"), ("cuda-samples", "jacobiCudaGraphs"), ("cuda-samples", "graphMemoryNodes"),
    ("cuda-samples", "simpleCUFFT"), ("cuda-samples", "conjugateGradient"), ("cuda-samples", "BlackScholes"),
    ("cuda-samples", "mergeSort"), ("cuda-samples", "radixSortThrust"), ("cuda-samples", "simplePitchLinearTexture"),
    ("Rodinia", "streamcluster 10 20 64 16384 16384 1000 none sc.txt 1"),
    ("Rodinia", "srad_v2 2048 2048 0 127 0 127 0.5 2"),
    ("Rodinia", "lud -s 1024 -v"), ("Rodinia", "nw 2048 10"), ("Rodinia", "pathfinder 100000 100 20"))]


def found(program, folder):
    """The program with the path of its file; None if there is no such file."""
    if not folder:
        return None
    path = os.path.join(folder, program.command[0])
    if not os.access(path, os.X_OK):
        print(f"left out: {program.name}: there is no {path}")
        return None
    return program._replace(command=[path, *program.command[1:]])


def sanitizer_program(folder):
    """A program with an error that compute-sanitizer must find; under compute-sanitizer mam-run serves nothing."""
    samples = os.path.join(folder or "", "samples")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None or not os.access(samples, os.X_OK):
        return []
    script = f"{sanitizer} --error-exitcode 9 {samples} overrun 2 >/dev/null; echo status $?"
    return [Program("compute-sanitizer", "samples overrun", ["sh", "-c", script])]


def programs_choose(arguments):
    everything = list(PYTHON)
    everything += filter(None, (found(program, arguments.bin) for program in SAMPLES))
    everything += sanitizer_program(arguments.bin)
    everything += filter(None, (found(program, arguments.public) for program in PUBLIC))
    if arguments.only:
        everything = [one for one in everything if re.search(arguments.only, f"{one.name} {one.setting}")]
    return everything


# ---- One run ----------------------------------------------------------------------------------------------------

Run = collections.namedtuple("Run", "status output seconds step_ms summary")


class Runner:
    """Runs commands without or under mam-run, each in a folder of its own that is removed after it."""

    def __init__(self, mam_run, seconds):
        self.mam_run = mam_run
        self.seconds = seconds

    def run(self, command, environment, preloaded):
        with tempfile.TemporaryDirectory() as folder:
            summary = os.path.join(folder, "mam-summary")
            words = [*self.mam_run, "--summary", f"--output={summary}", "--", *command] if preloaded else command
            start = time.monotonic()
            try:
                done = subprocess.run(words, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=self.seconds, text=True,
                                      errors="replace")
                status, output, errors = done.returncode, done.stdout, done.stderr
            except subprocess.TimeoutExpired:
                status, output, errors = "not done in time", "", ""
            took = time.monotonic() - start
            if status not in (0, SKIP):
                output += f"\nstandard error: {errors[-2000:]}"
            step = re.search(r"^time ([0-9.]+) ms$", output, re.M)
            return Run(status, output, took, float(step.group(1)) if step else None, summary_read(summary))


SUMMARY = {  # patterns for the numbers in mam-run's summary, by their names here
    "mallocs": r"(\d+) allocations and \d+ frees served",
    "passed": r"(\d+) allocations left to the driver",
    "hits": r"hits: (\d+)",
    "dlsym": r"doors: (\d+)",
    "cuGetProcAddress": r"(\d+) by cuGetProcAddress",
}


def summary_read(path):
    """The summaries that the processes of a run left in a file, added up; None without one."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    return {name: sum(map(int, re.findall(pattern, text))) for name, pattern in SUMMARY.items()}


def compared(run):
    lines = [line for line in run.output.splitlines() if not NOT_COMPARED.search(line)]
    return [f"exit status {run.status}", *lines]


def differences(plain, preloaded):
    return list(difflib.unified_diff(compared(plain), compared(preloaded), "without", "with mam-run", lineterm="", n=1))


# ---- The table --------------------------------------------------------------------------------------------------

FIELDS = ["program", "setting", "rounds", "without_step_ms", "with_step_ms", "without_process_s", "with_process_s",
          "ratio", "same_output", "allocations", "hits", "doors"]


def median_or_none(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


# The doors by which the program found hooks (a door is a way to find a function); "symbols" if by linking alone.
def doors_text(summary):
    if summary is None:
        return ""
    doors = [f"{name} {summary[name]}" for name in ("dlsym", "cuGetProcAddress") if summary[name]]
    return ", ".join(doors) if doors else "symbols" if summary["mallocs"] else ""


def row_of(program, plain, preloaded, same):
    row = {"program": program.name, "setting": program.setting, "rounds": len(plain), "same_output": same}
    for name, runs in (("without", plain), ("with", preloaded)):
        row[f"{name}_step_ms"] = median_or_none([run.step_ms for run in runs])
        row[f"{name}_process_s"] = median_or_none([run.seconds for run in runs])
    unit = "step_ms" if row["without_step_ms"] is not None and row["with_step_ms"] is not None else "process_s"
    row["ratio"] = row[f"with_{unit}"] / row[f"without_{unit}"] if preloaded else None
    summary = preloaded[-1].summary if preloaded else None
    row["allocations"] = summary.get("mallocs") if summary else None
    row["hits"] = summary.get("hits") if summary else None
    row["doors"] = doors_text(summary)
    return row


def program_measure(runner, program, rounds, out):
    """A row of the table, or None where the program found no GPU or what it needs."""
    plain, preloaded = [], []
    for index in range(rounds):
        order = (False, True) if index % 2 == 0 else (True, False)
        for with_mam in order if runner.mam_run else (False,):
            run = runner.run(program.command, program.environment, with_mam)
            if run.status != 0 and not with_mam:  # no GPU, no such module, or it fails on this machine
                print(f"left out: {program.name}: status {run.status}: {(run.output.strip() or '-').splitlines()[-1]}")
                return None
            (preloaded if with_mam else plain).append(run)
    different = [lines for lines in map(differences, plain, preloaded) if lines]
    name = re.sub(r"\W+", "-", f"{program.name} {program.setting}")
    with open(os.path.join(out, f"{name}.txt"), "w", encoding="utf-8") as file:
        for run in [*plain[:1], *preloaded[:1]]:
            file.write(f"{run.output}\n---- {run.seconds:.2f} s, {run.summary}\n")
        file.write("\n".join(line for lines in different for line in lines))
    if program.differs:
        same = "capture worked" if preloaded and "capture worked" in preloaded[0].output and \
            "capture failed" in plain[0].output else "NO"
    else:
        same = "NO" if different or any(run.status != 0 for run in plain + preloaded) else "yes"
    return row_of(program, plain, preloaded, same)


def number(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def table_write(rows, out):
    with open(os.path.join(out, "programs.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows({key: number(value, 4) if isinstance(value, float) else value for key, value in row.items()}
                         for row in rows)
    with open(os.path.join(out, "programs.md"), "w", encoding="utf-8") as file:
        file.write("| program | setting | without: step ms (process s) | with mam-run | ratio | same output | "
                   "allocations: from the pool | caught by |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
        for row in rows:
            cells = [f"{number(row[f'{name}_step_ms'], 3)} ({number(row[f'{name}_process_s'])})".strip()
                     for name in ("without", "with")]
            caught = "" if row["allocations"] is None else f"{row['allocations']}: {row['hits']}"
            file.write(f"| {row['program']} | {row['setting']} | {cells[0]} | {cells[1]} | {number(row['ratio'], 3)} | "
                       f"{row['same_output']} | {caught} | {row['doors']} |\n")


def limits_check(rows):
    """Compares the measured ratios with their limits; returns a sentence for each that is above."""
    by_name = {(row["program"], row["setting"]): row for row in rows}
    broken = []
    for name, bare, own, limit in (("PyTorch, training", "no cache", "own cache", 1.10),
                                   ("PyTorch, small model", "no cache", "own cache", 1.10),
                                   ("CuPy", "no pool", "own pool", 1.02)):  # 1.02: medians vary by 2 %
        pair = [by_name.get((name, setting)) for setting in (bare, own)]
        if None in pair or pair[0]["with_step_ms"] is None or pair[1]["without_step_ms"] is None:
            continue
        ratio = pair[0]["with_step_ms"] / pair[1]["without_step_ms"]
        print(f"{name}: {bare} under mam-run against {own} without: {ratio:.3f} (limit {limit})")
        if ratio > limit:
            broken.append(f"{name}: {ratio:.3f} is more than {limit}")
    return broken


def measure(runner, programs, arguments):
    rows = []
    for program in programs:
        row = program_measure(runner, program, arguments.rounds, arguments.out)
        if row is not None:
            rows.append(row)
            print(f"{program.name}, {program.setting}: step {number(row['without_step_ms'], 3)} -> "
                  f"{number(row['with_step_ms'], 3)} ms, process {number(row['without_process_s'])} -> "
                  f"{number(row['with_process_s'])} s, same: {row['same_output']}, {row['doors']}", flush=True)
            table_write(rows, arguments.out)
    broken = limits_check(rows) + [f"{row['program']}, {row['setting']}: the output differs" for row in rows
                                   if row["same_output"] == "NO" and runner.mam_run]
    return broken


# ---- What a call and a start cost -------------------------------------------------------------------------------


def start_times(command, runs):
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def start_measure(runner, arguments, what, command):
    """Times a process without and with mam-run, in turns; returns the row of start.csv, with medians."""
    plain, preloaded = [], []
    for _ in range(arguments.starts):
        plain += start_times(command, 1)
        preloaded += start_times([*runner.mam_run, "--", *command], 1) if runner.mam_run else []
    without, with_mam = median_or_none(plain), median_or_none(preloaded)
    more = with_mam - without if preloaded else None
    print(f"start of {what}: {number(without, 3)} ms, with mam-run {number(with_mam, 3)} ms, {number(more, 3)} more")
    return [what, arguments.starts, number(without, 3), number(with_mam, 3), number(more, 3)]


def cost_measure(runner, arguments):
    hook_cost = os.path.join(arguments.bin or "", "hook_cost")
    if not os.access(hook_cost, os.X_OK):
        print(f"left out: what a call costs: there is no {hook_cost}")
        return []
    run = runner.run([hook_cost, "pair"], {}, bool(runner.mam_run))
    print(f"pairs of one allocation and one free, with mam-run: {bool(runner.mam_run)}\n{run.output}")
    with open(os.path.join(arguments.out, "cost.csv"), "w", encoding="utf-8") as file:
        file.write(run.output)
    rows = [start_measure(runner, arguments, what, command) for what, command in
            (("a process without CUDA", ["true"]), ("a process with one allocation", [hook_cost, "first"]))]
    with open(os.path.join(arguments.out, "start.csv"), "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["process", "runs", "without_ms", "with_ms", "more_ms"], *rows])
    return [] if run.status == 0 else [f"hook_cost ended with status {run.status}"]


# ---- Soak -------------------------------------------------------------------------------------------------------


def memory_free():
    """Free bytes of the first device.  A process of its own asks, and has a context meanwhile."""
    command = [sys.executable, "-B", os.path.abspath(__file__), "--memory"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def memory_print():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return SKIP
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    good = driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and \
        driver.cuCtxSetCurrent(context) == 0 and driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(free.value)
    return 0 if good else SKIP


class Soak:
    """Runs programs at random, some at a time; compares each output with that of a run without mam-run."""

    def __init__(self, runner, programs):
        self.runner = runner
        self.programs = programs  # pairs of a program and its run without mam-run
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.faults = []

    def work(self, until, seed):
        choice = random.Random(seed)
        while time.monotonic() < until and not self.faults:
            program, wanted = choice.choice(self.programs)
            run = self.runner.run(program.command, program.environment, True)
            lines = differences(wanted, run)
            with self.lock:
                self.counts[f"{program.name}, {program.setting}"] += 1
                if lines:
                    self.faults.append("\n".join([f"{program.name}, {program.setting}", *lines[:40]]))

    def run(self, seconds, processes):
        until = time.monotonic() + seconds
        workers = [threading.Thread(target=self.work, args=(until, seed)) for seed in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def soak(runner, programs, arguments):
    # A program that differs, or that fails without mam-run, has no output to compare with.
    programs = [program for program in programs if not program.differs]
    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        runs = pool.map(lambda program: runner.run(program.command, program.environment, False), programs)
        plain = [(program, run) for program, run in zip(programs, runs) if run.status == 0]
    before = memory_free()
    one = Soak(runner, plain)
    one.run(arguments.soak * 60, arguments.processes)
    time.sleep(1)
    after = memory_free()
    print(f"soak: {sum(one.counts.values())} runs of {len(plain)} programs, {arguments.processes} at a time, "
          f"{arguments.soak} minutes; free before {before}, after {after}")
    for name, count in sorted(one.counts.items()):
        print(f"  {count} of {name}")
    for fault in one.faults:
        print(f"FAIL: {fault}")
    leaked = before is not None and after is not None and before - after > 64 << 20
    return ["an output was wrong"] * bool(one.faults) + ["memory is missing on the device"] * leaked


# -----------------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mam-run", default="mam-run", help="the program, with options; '' measures without it alone")
    parser.add_argument("--bin", help="folder with samples, samples_shared, sample_cublas and hook_cost")
    parser.add_argument("--public", help="folder with programs that were built outside the project")
    parser.add_argument("--only", help="a regular expression: programs whose name and setting match")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of each program (default: 3)")
    parser.add_argument("--starts", type=int, default=20, help="pairs of runs for the cost of a start (default: 20)")
    parser.add_argument("--no-cost", action="store_true", help="do not measure what a call and a start cost")
    parser.add_argument("--soak", type=float, help="minutes of mixed programs in parallel under mam-run, instead")
    parser.add_argument("--processes", type=int, default=6, help="of the soak, at a time (default: 6)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for each run (default: 180)")
    parser.add_argument("--out", default="preload-results", help="where the results go (default: preload-results)")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        return memory_print()
    if memory_free() is None:
        print("SKIP: no CUDA device")
        return SKIP
    os.makedirs(arguments.out, exist_ok=True)
    for name in ("bin", "public", "out"):
        if getattr(arguments, name):
            setattr(arguments, name, os.path.abspath(getattr(arguments, name)))
    runner = Runner(arguments.mam_run.split(), arguments.timeout)
    programs = programs_choose(arguments)
    if arguments.soak:
        broken = soak(runner, programs, arguments)
    else:
        broken = measure(runner, programs, arguments)
        if not arguments.no_cost:
            broken += cost_measure(runner, arguments)
    for sentence in broken:
        print(f"FAIL: {sentence}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
