"""caching_malloc - importing this runs the program again with a malloc that keeps what it has freed.

glibc is told never to trim or map, without which PyTorch pays page faults for every large tensor. Import it
before anything that allocates; the settings are read when a process starts, hence the second run.
"""
import os
import sys

SETTINGS = {"MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000000",
            "MALLOC_TOP_PAD_": "268435456"}

if any(os.environ.get(key) != value for key, value in SETTINGS.items()):
    os.environ.update(SETTINGS)
    os.execv(sys.executable, [sys.executable] + sys.argv)
