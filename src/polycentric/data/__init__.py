"""Data of many clients: where they come from, how they are dealt, and what they look like."""

from .augment import Augment as Augment, Colour as Colour, Crop as Crop, Flip as Flip, Scale as Scale
from .boxes_coco import coco as coco
from .boxes_json import street_json as street_json
from .boxes_voc import voc as voc
from .boxes_yolo import yolo as yolo
from .dealing import Partition as Partition
from .federation import Federation as Federation, Pool as Pool, Split as Split
from .formats import cifar as cifar, folders as folders, hugging_face as hugging_face, idx as idx
from .from_memory import from_arrays as from_arrays, from_dataset as from_dataset
from .from_table import (
    from_frame as from_frame,
    rows_to_inputs as rows_to_inputs,
    rows_to_targets as rows_to_targets,
    table as table,
    table_report as table_report,
)
from .generated import (
    domains as domains,
    minority as minority,
    mixture as mixture,
    synthetic as synthetic,
    teacher as teacher,
)
from .label_skew import (
    describe as describe,
    heat_map as heat_map,
    heterogeneity as heterogeneity,
    label_counts as label_counts,
)
from .leaf_json import leaf as leaf
from .loading import deal as deal, load as load
from .npz_file import npz as npz
from .partition import (
    Classes as Classes,
    Dirichlet as Dirichlet,
    Iid as Iid,
    Natural as Natural,
    Quantity as Quantity,
    Shards as Shards,
    Skewed as Skewed,
    parse as parse,
)
from .pictures import pictures_to_inputs as pictures_to_inputs
from .rotations import Rotations as Rotations, Sampled as Sampled, Turned as Turned
from .sources import available as available, digits as digits, find as find, install as install, read as read
from .streets import streets as streets
from .table_file import read_rows as read_rows
