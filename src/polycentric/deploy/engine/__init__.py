"""The engine of a real federation: carries opaque bytes between one server and its nodes, by Flower.

Nothing here knows what federated learning is, and nothing outside of here knows what Flower is.
"""
