"""Seeing clusters: who belongs where, how that came about, and what the members have in common.

draw(run, folder)      rounds.png      intra-cluster distance, sizes and re-assignments over the rounds
                       map.png         PCA and t-SNE of what clients learn, coloured by cluster
                       similarity.png  cosines between the clients' updates from one common start, and their tree
                       splits.png      the same at every split of clustered FL, as it was decided
                       examples.png    a few examples of each cluster, the same classes side by side
"""

from .drawing import (
    draw as draw,
    draw_examples as draw_examples,
    draw_map as draw_map,
    draw_numbers as draw_numbers,
    draw_similarity as draw_similarity,
    draw_splits as draw_splits,
    ordered as ordered,
    sheet_of as sheet_of,
    splits as splits,
)
from .members import (
    OverRounds as OverRounds,
    cosines as cosines,
    intra_cluster_distance as intra_cluster_distance,
    local_models as local_models,
    looks as looks,
    matched as matched,
    neighbours as neighbours,
    over_rounds as over_rounds,
    places_of as places_of,
    principal as principal,
    squared_distances as squared_distances,
    statistics as statistics,
    told as told,
    updates as updates,
    write_members as write_members,
)
