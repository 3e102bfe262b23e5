"""The Kubernetes API of TableTune: the DraftTable and the names that objects of it carry.

Models only. The operator reads DraftTables through them and writes their status, ``crds`` makes the CRD from
them and the reference page is made from them too, so that what the API server accepts, what the operator
understands and what the page says cannot differ.
"""
