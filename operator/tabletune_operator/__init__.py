"""The operator: DraftTables in, profiling Jobs and ConfigMaps with tables out, kept true by live traffic.

Pure modules decide (``planning`` and what it uses); ``reconciling``, ``applying`` and ``requesting`` act;
``handlers`` and ``main`` are the wiring to Kopf.
"""
