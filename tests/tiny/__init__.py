"""Tiny models, tokenizers, files, folders and runs that several test files build; imported first, it keeps libraries
offline and on one thread, also in the processes that tests start.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["GROUNDLING_CACHE"] = ""  # nothing is left in the user's own
# Threads cost tiny models more than they save.
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
