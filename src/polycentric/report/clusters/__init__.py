"""Seeing clusters: who belongs where, how that came about, and what the members have in common.

draw(run, folder)      rounds.png      intra-cluster distance, sizes and re-assignments over the rounds
                       map.png         PCA and t-SNE of what clients learn, coloured by cluster
                       similarity.png  cosines between the clients' updates from one common start, and their tree
                       splits.png      the same at every split of clustered FL, as it was decided
                       examples.png    a few examples of each cluster, the same classes side by side
"""

from .distances import cosines, intra_cluster_distance, matched, neighbours, principal, squared_distances
from .members import local_models, looks, places_of, statistics, told, updates
from .pictures import draw, draw_examples, draw_map, draw_numbers
from .similarity import draw_similarity, draw_splits, splits

__all__ = [
    "cosines",
    "draw",
    "draw_examples",
    "draw_map",
    "draw_numbers",
    "draw_similarity",
    "draw_splits",
    "intra_cluster_distance",
    "local_models",
    "looks",
    "matched",
    "neighbours",
    "places_of",
    "principal",
    "splits",
    "squared_distances",
    "statistics",
    "told",
    "updates",
]
