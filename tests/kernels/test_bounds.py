"""No kernel reads outside the weights: a file may end with its last tensor, at the end of a page."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q2_0", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "IQ2_XXS", "MXFP4")


def test_weights_between_pages_without_access():
    command = [sys.executable, HERE / "guarded_weights.py", *FORMATS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stdout[-5:]) == (0, "done\n"), done.stdout[-200:] + done.stderr[-2000:]


def test_a_read_outside_would_be_noticed():
    code = ("import ctypes; from guarded_weights import guarded; from products import random_weight\n"
            "w = guarded(random_weight('F32', 4, 16), at_end=True)\n"
            "ctypes.string_at(w.data.ctypes.data, w.n_bytes); print('inside', flush=True)\n"
            "ctypes.string_at(w.data.ctypes.data, w.n_bytes + 1); print('outside')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert (done.returncode < 0, done.stdout) == (True, "inside\n"), done.stderr
