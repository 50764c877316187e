"""`python -m training`, the same as the command `deq-keras`."""

import sys

from .cli import main

sys.exit(main())
