"""The whole system on a real cluster: starts one, builds the images, and runs the scenarios on it.

``python -m e2e --help`` lists what it does; `README.md` beside this file says how it works.
"""
