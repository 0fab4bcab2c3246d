import sys

from robo_rl.cli import main

sys.exit(main())
