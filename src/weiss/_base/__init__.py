"""Argument checks, atomic files, progress bars, random draws, processes, images, downloads.

Nothing here knows about metric learning. Importing the package itself costs nothing: the processes
that decode images import it without torch.
"""
