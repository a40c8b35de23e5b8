"""python -m torsor: the command."""

import sys

from torsor.cli import main

sys.exit(main())
