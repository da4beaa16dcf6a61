"""What every package stands on: checks, whole files, progress, draws, processes, images.

Nothing in here knows about metric learning, and importing the package itself costs nothing: the
processes that decode images start from it without torch.
"""
