"""Many models as rows of one tensor, who hears whom, and the clients of an exchange."""

from .cohort import Cohort as Cohort
from .cohort import View as View
from .mixing import Heard as Heard
from .mixing import Links as Links
from .mixing import Mixing as Mixing
from .stack import WHOLE as WHOLE
from .stack import Cut as Cut
from .stack import Layout as Layout
from .stack import Stacks as Stacks
