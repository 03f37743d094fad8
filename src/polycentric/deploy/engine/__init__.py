"""The engine of a real federation: carries opaque bytes between one server and its nodes, by Flower.

Nothing here knows what federated learning is, and nothing outside of here knows what Flower is.

    the server's machine                                    a node's machine
    user's process, `Link`   <- TLS ->  superlink           user's process, `Member`  <- TLS ->  supernode
                                           | TLS                                                  |
                                          door  <------------- TLS, key of the node ---------------

Only the door can be reached from outside. The superlink and the supernode are Flower's own, unchanged, and listen on
their machine only; the door lets calls of nodes through, whose keys are registered, and none of those by which a
superlink is commanded. Flower would start a process for every message and run there what the server has sent; here the
users' own processes claim these tasks, by a secret, and run their own code. So no code travels, and no process starts.

A message is delivered once or not at all. It is lost when the node, or the door while it passes, is killed; the log
says so, and whoever sent it may send it again. What the superlink has, it still has after it was killed.
"""
