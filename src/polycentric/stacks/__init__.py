"""Many models as rows of one tensor, who hears whom, and the clients of an exchange."""

from .cohort import Cohort as Cohort, View as View
from .mixing import Heard as Heard, Links as Links, Mixing as Mixing
from .stack import WHOLE as WHOLE, Cut as Cut, Layout as Layout, Stacks as Stacks
