"""Names that TableTune's objects carry in a cluster: group, labels, annotations, keys.

Operator, Job and plugin meet in them, and so do users' selectors and dashboards. Each is written once, here:
a label spelt twice is a watch that never sees an object.
"""

from __future__ import annotations

GROUP = "tabletune.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DraftTable"
PLURAL = "drafttables"
SINGULAR = "drafttable"
SHORT_NAMES = ("dt",)

MANAGER = "tabletune-operator"
"""Field manager of everything that the operator applies, and the reporting component of its Events."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""On every object that the operator makes; its value is :data:`MANAGER`."""
DRAFT_TABLE_LABEL = f"{GROUP}/draft-table"
"""On every object that the operator makes for a DraftTable: its name. The operator watches by it."""
ROLE_LABEL = f"{GROUP}/role"
"""What a ConfigMap is for: one of the ``ROLE_`` values."""
ROLE_TABLE = "table"
"""The ConfigMap that serving pods mount."""
ROLE_HISTORY = "history"
"""One generation, kept for going back to; immutable."""
ROLE_REPORT = "report"
"""What a profiling Job writes: its progress and, in the end, the document."""

GENERATION_ANNOTATION = f"{GROUP}/generation"
"""Generation of the document in a ConfigMap."""
PROFILE_DIGEST_ANNOTATION = f"{GROUP}/profile-digest"
"""Digest of the inputs that a Job, a report or a generation was profiled from."""
ACCEPTED_DIGEST_ANNOTATION = f"{GROUP}/accepted-profile-digest"
"""Digest of the inputs of the last profile that was accepted when this generation came to be. A profile is
due where it differs from what the spec says now."""
RESTORED_FROM_ANNOTATION = f"{GROUP}/restored-from"
"""Generation whose content this one is, after a rollback."""
ROLLBACK_REASON_ANNOTATION = f"{GROUP}/rollback-reason"
"""Who went back: ``spec`` or ``guard``."""
SOURCE_ANNOTATION = f"{GROUP}/source"
"""What a generation was computed from: profile or correction."""
CONTENT_DIGEST_ANNOTATION = f"{GROUP}/content-digest"
"""Digest of a ConfigMap's data as the operator wrote it; another content is somebody else's edit."""
CONTROL_DIGEST_ANNOTATION = f"{GROUP}/control-digest"
"""Digest of the table settings that the content was rendered with."""
REPROFILE_ANNOTATION = f"{GROUP}/profile-requested-at"
"""On a DraftTable: profile anew. Any new value counts; a timestamp is what people write."""
REFRESHED_ANNOTATION = f"{GROUP}/refreshed-generation"
"""On serving pods: touched after a new generation, so that the kubelet refreshes their volumes at once."""

PROGRESS_KEY = "progress.json"
"""Key of the report: how far the profile is."""
HISTORY_KEY = "table.json.gz"
"""Key of a history entry: the document, compressed."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Kueue's label for the queue that a Job waits in."""
