"""Builds TableTune's images, and where no registry can be reached, what they are built from."""
