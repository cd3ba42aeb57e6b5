"""`python -m groundling` is the command `groundling`."""

import sys

from groundling.cli import main

sys.exit(main())
