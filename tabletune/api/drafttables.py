"""The DraftTable as pydantic models: what a user asks for, and what the operator answers.

``crds`` turns them into the CRD, so their bounds, defaults and descriptions are what the API server enforces
and ``kubectl explain`` shows. What a schema cannot say (fields that exclude each other, lengths that must be
among others) stands as CEL rules beside the fields, with a message that says what would be right. The API
server then refuses a mistake while somebody looks at it, instead of a condition telling of it later.

The operator parses objects with :func:`parse`. Unknown fields are ignored there, because a newer CRD may be
installed beside an older operator; the API server is who refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from tabletune.documents import (
    MAX_DRAFT_LENGTH,
    MAX_GRID_POINTS,
    TABLE_KEY,
    BatchSize,
    DraftLength,
    Share,
)

MAX_NAME = 52
"""Longest name of a DraftTable: the Job's name adds a dash and ten characters, and a pod's label holds 63."""

MAX_ATTENTION = 20
"""Serving pods that the status names."""

RESERVED_DRAFTER_KEYS = ("method", "model", "revision", "num_speculative_tokens", TABLE_KEY)
"""Keys of vLLM's speculative config that other fields of the spec, or TableTune itself, set."""


def rule(expression: str, message: str, field_path: str | None = None) -> dict[str, str]:
    """Return a CEL rule as the CRD has it; ``field_path`` names the field at fault, relative to the model."""
    found = {"rule": expression, "message": message}
    return found | ({"fieldPath": field_path} if field_path else {})


def _rules(*rules: dict[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(rules)}


class ApiModel(BaseModel):
    """What all parts share: camelCase, frozen, unknown fields ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="ignore",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


PRESERVED = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
Anything = Annotated[dict[str, Any], WithJsonSchema(PRESERVED)]
"""An object of Kubernetes' own whose schema is not repeated here; the API server checks it in the Job."""

ShortText = Annotated[str, Field(max_length=256)]
LongText = Annotated[str, Field(max_length=4_096)]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
ObjectName = Annotated[
    str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]
LabelName = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Quantity = Annotated[
    str | int,
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": r"^\+?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
            "maxLength": 64,
        }
    ),
]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Annotations = Annotated[dict[LabelKey, LongText], Field(max_length=64)]

SET = {"x-kubernetes-list-type": "set"}
ATOMIC = {"x-kubernetes-list-type": "atomic"}


def _by(*keys: str) -> dict[str, Any]:
    """Let server-side apply merge a list's entries by ``keys``."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


# --- what vLLM serves -------------------------------------------------------------------------------


class ServedModel(ApiModel):
    """The model that vLLM loads."""

    name: Annotated[str, Field(min_length=1, max_length=1_024)]
    """Name or path, as you give it to `vllm serve`."""
    revision: ShortText | None = None
    """Branch, tag or commit. Unset: the default branch; pin it, since another revision is another model."""
    tokenizer: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    """Name or path of the tokenizer. Unset: the model's."""


class Drafter(ApiModel):
    """The drafter; becomes vLLM's `--speculative-config`."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.model) || !(self.method in ['eagle', 'eagle3', 'draft_model', 'medusa',"
                " 'mlp_speculator', 'dflash'])",
                "must be set: this method drafts with a model of its own",
                ".model",
            ),
        )
    )

    method: Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9_]+$")]
    """`method` of vLLM's speculative config: ngram, eagle3, draft_model, suffix, …"""
    model: Annotated[str, Field(min_length=1, max_length=1_024)] | None = None
    """Name or path of the drafter's model. Unset: the method needs none."""
    revision: ShortText | None = None
    """Revision of the drafter's model. Unset: the default branch."""
    draft_lengths: Annotated[
        tuple[DraftLength, ...],
        Field(
            min_length=1,
            max_length=MAX_DRAFT_LENGTH + 1,
            json_schema_extra=SET
            | _rules(rule("self.exists(k, k > 0)", "must have a length above 0: 0 alone is speculation off")),
        ),
    ] = (0, 1, 2, 3)
    """Draft lengths to measure and to choose from. With 0 the table can turn drafting off where it loses."""
    config: Annotated[dict[str, Any], Field(json_schema_extra=PRESERVED)] = {}
    """Further keys of vLLM's speculative config, such as `prompt_lookup_max`. The keys `method`, `model`,
    `revision` and `num_speculative_tokens` have fields of their own."""


class KeySelector(ApiModel):
    """A key of a Secret or ConfigMap in the DraftTable's namespace."""

    name: ObjectName
    """Name of the object."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key in it."""
    optional: bool | None = None
    """Whether the object or its key may be missing."""


class EnvironmentSource(ApiModel):
    """Where the value of an environment variable comes from."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef),"
                " has(self.resourceFieldRef)].filter(given, given).size() == 1",
                "must have exactly one of secretKeyRef, configMapKeyRef, fieldRef and resourceFieldRef",
            )
        )
    )

    secret_key_ref: KeySelector | None = None
    """A key of a Secret, such as a Hugging Face token."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""
    field_ref: Anything | None = None
    """A field of the pod."""
    resource_field_ref: Anything | None = None
    """A resource of the container."""


class EnvironmentVariable(ApiModel):
    """An environment variable of the profiling container."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule("!(has(self.value) && has(self.valueFrom))", "must have value or valueFrom, not both")
        )
    )

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    """Name."""
    value: LongText | None = None
    """Value. Keep secrets out of it: use `valueFrom.secretKeyRef`."""
    value_from: EnvironmentSource | None = None
    """Source of the value."""


class LocalObject(ApiModel):
    """An object in the DraftTable's namespace."""

    name: ObjectName
    """Name of the object."""


class EnvironmentFrom(ApiModel):
    """Environment variables from all keys of a Secret or ConfigMap."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "has(self.secretRef) != has(self.configMapRef)",
                "must have exactly one of secretRef and configMapRef",
            )
        )
    )

    prefix: ShortText | None = None
    """Text in front of each name."""
    secret_ref: LocalObject | None = None
    """A Secret."""
    config_map_ref: LocalObject | None = None
    """A ConfigMap."""


class Volume(ApiModel):
    """A volume of the profiling pod, as in a pod's `spec.volumes`."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})

    name: LabelName
    """Name, for `volumeMounts`. The volume's source stands beside it."""


class VolumeMount(ApiModel):
    """Where a volume is mounted."""

    name: LabelName
    """Name of the volume."""
    mount_path: Annotated[str, Field(min_length=1, max_length=1_024, pattern=r"^/[^:]*$")]
    """Absolute path in the container."""
    sub_path: Annotated[str, Field(max_length=1_024)] | None = None
    """Path in the volume."""
    read_only: bool | None = None
    """Whether it is mounted read-only."""


_RESERVED_ARGUMENTS = (
    "--speculative-config",
    "-sc",
    "--speculative_config",
    "--config",
    "--model",
    "--revision",
    "--tokenizer",
)
_RESERVED_LIST = ", ".join(f"'{name}'" for name in _RESERVED_ARGUMENTS)


class Engine(ApiModel):
    """The engine, with the arguments, environment and volumes that the serving pods use."""

    image: Annotated[str, Field(min_length=1, max_length=1_024, pattern=r"^\S+$")]
    """Image with the vLLM of the serving pods and the `tabletune` command (target `profiler` of TableTune's
    Dockerfile)."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. Unset: Kubernetes decides by its tag."""
    image_pull_secrets: Annotated[
        tuple[LocalObject, ...], Field(max_length=16, json_schema_extra=_by("name"))
    ] = ()
    """Secrets for pulling it."""
    args: Annotated[
        tuple[LongText, ...],
        Field(
            max_length=256,
            json_schema_extra=ATOMIC
            | _rules(
                rule(
                    f"self.all(a, !(a.split('=')[0] in [{_RESERVED_LIST}]))",
                    "must not have --speculative-config (set spec.drafter), --model, --revision or"
                    " --tokenizer (set spec.model), nor --config (write the arguments out)",
                )
            ),
        ),
    ] = ()
    """Arguments of `vllm serve` after the model: the same that the serving pods have."""
    env: Annotated[
        tuple[EnvironmentVariable, ...],
        Field(
            max_length=256,
            json_schema_extra=_by("name")
            | _rules(
                rule(
                    "self.all(e, !e.name.startsWith('TABLETUNE_'))",
                    "must not set TABLETUNE_ variables: they are the plugin's, which the profiler runs"
                    " without",
                )
            ),
        ),
    ] = ()
    """Environment variables."""
    env_from: Annotated[tuple[EnvironmentFrom, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = ()
    """Environment variables from whole Secrets and ConfigMaps."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=32, json_schema_extra=_by("name"))] = ()
    """Volumes, such as a cache of models."""
    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Field(max_length=32, json_schema_extra=_by("mountPath"))
    ] = ()
    """Where they are mounted."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm, which tensor parallelism needs, as in 8Gi. Unset: the container runtime's, 64 MiB."""


# --- how it is profiled -----------------------------------------------------------------------------


class Gpu(ApiModel):
    """The GPUs of the profiling pod."""

    resource_name: Annotated[str, Field(min_length=1, max_length=256)] = "nvidia.com/gpu"
    """Extended resource that the pool's device plugin offers."""
    count: Annotated[int, Field(ge=0, le=64)] = 1
    """How many; the tensor-parallel size times the pipeline-parallel size. 0 profiles on the CPU."""


class Toleration(ApiModel):
    """A taint that the profiling pod tolerates."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
                "must be empty where operator is Exists",
                ".value",
            )
        )
    )

    key: Annotated[str, Field(max_length=317)] | None = None
    """Key of the taint. Unset with operator Exists: any."""
    operator: Literal["Exists", "Equal"] | None = None
    """How the value is compared. Unset: Equal."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Unset: any."""
    toleration_seconds: int | None = None
    """Seconds that a NoExecute taint is tolerated. Unset: for ever."""


class Resources(ApiModel):
    """Requests and limits of the profiling container, beside its GPUs."""

    requests: Annotated[dict[LabelKey, Quantity], Field(max_length=32)] = {}
    """What the scheduler sets aside."""
    limits: Annotated[dict[LabelKey, Quantity], Field(max_length=32)] = {}
    """What it may take."""


class Profile(ApiModel):
    """How and where the table is measured."""

    batch_sizes: Annotated[
        tuple[BatchSize, ...], Field(max_length=MAX_GRID_POINTS, json_schema_extra=SET)
    ] = ()
    """Batch sizes to time. Empty: powers and half-powers of two up to max_num_seqs, and some without a full
    CUDA graph."""
    context_length: Annotated[int, Field(ge=16, le=2**24)] | None = None
    """Tokens of context per request at which steps are timed. Unset: promptTokens and half of outputTokens,
    what requests have on average while they decode, or less where the model's length does not hold that."""
    steps: Annotated[int, Field(ge=4, le=10_000)] | None = None
    """Steps that count, per cell. Unset: the profiler's default."""
    repeats: Annotated[int, Field(ge=0, le=100)] | None = None
    """Most times that a cell with a wide spread is timed again. Unset: the profiler's default."""
    prompts: KeySelector | None = None
    """A ConfigMap's key with your own prompts (JSONL) for the acceptance run. Unset: the bundled 160."""
    prompt_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = None
    """Your usual prompt length, for the context, the table and the engine advice. Unset: the profiler's
    default."""
    output_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = None
    """Your usual output length, for the context, the table and the engine advice. Unset: the profiler's
    default."""
    time_budget_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Seconds for the step-time sweep; cells that do not fit are left out. Unset: no limit."""
    gpu: Gpu = Gpu()
    """GPUs of the pod."""
    node_selector: Labels = {}
    """Labels of the pool's nodes. The table holds for this pool only, so name its GPU product."""
    affinity: Anything | None = None
    """Affinity, as in a pod's spec."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32, json_schema_extra=ATOMIC)] = ()
    """Taints that the pod tolerates."""
    resources: Resources = Resources()
    """CPU, memory and the like. GPUs are set by `gpu`."""
    runtime_class_name: ObjectName | None = None
    """Runtime class, such as nvidia. Unset: the cluster's default."""
    priority_class_name: ObjectName | None = None
    """Priority class. Unset: the cluster's default."""
    scheduler_name: ObjectName | None = None
    """Scheduler. Unset: the cluster's default."""
    queue_name: LabelName | None = None
    """Kueue's local queue that the Job waits in. Unset: it does not queue."""
    labels: Labels = {}
    """Further labels of the Job and its pod."""
    annotations: Annotations = {}
    """Further annotations of the Job and its pod."""
    pod_template: Anything | None = None
    """Overlay on the Job's pod template, merged strategically: `spec.containers` by name (the profiling one
    is `profile`), volumes by name, maps by key; null removes. What makes the pod report cannot be removed."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 2
    """How often a failed pod is tried again. Evictions and node losses do not count; bad arguments end at
    once."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=7 * 86_400)] = 3_600
    """Seconds after which the Job is ended, retries and waiting for a node included."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=365 * 86_400)] = 86_400
    """Seconds that a finished Job and its log are kept."""


# --- the table ----------------------------------------------------------------------------------------


class PinnedRange(ApiModel):
    """A range of batch sizes that keeps its draft length whatever is measured."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule("self.first <= self.last", "must not be below first", ".last"),
        )
    )

    first: BatchSize
    """First batch size."""
    last: BatchSize
    """Last batch size, included."""
    draft_length: DraftLength
    """Draft length; one of `spec.drafter.draftLengths`."""


class TableSettings(ApiModel):
    """How the table is computed and kept. Changing these never costs a new profile."""

    config_map_name: ObjectName | None = None
    """ConfigMap that serving pods mount. Unset: the DraftTable's name."""
    adopt: bool = False
    """Take over a ConfigMap of that name that is there already. Its table stays in force until a profile is
    done."""
    tie_tolerance: Share = 0.01
    """A batch size keeps its neighbour's length where another gains less than this; 0.01 is 1%."""
    narrow_range: Share = 0.25
    """Ranges narrower than this share of their first batch size are merged into a neighbour."""
    merge_tolerance: Share = 0.0
    """A range may extend while it loses less than this against the best length."""
    allowed_lengths: Annotated[
        tuple[DraftLength, ...], Field(max_length=MAX_DRAFT_LENGTH + 1, json_schema_extra=SET)
    ] = ()
    """Lengths that the table may use, of those profiled. Empty: all."""
    pinned: Annotated[
        tuple[PinnedRange, ...],
        Field(
            max_length=64,
            json_schema_extra=ATOMIC
            | _rules(
                rule(
                    "self.all(a, self.all(b, a == b || a.last < b.first || b.last < a.first))",
                    "must not overlap: each batch size has one pinned length at most",
                )
            ),
        ),
    ] = ()
    """Ranges that keep their length whatever is measured."""
    history_limit: Annotated[int, Field(ge=1, le=100)] = 10
    """Generations kept for going back to, the one in force included."""
    rollback_to: Annotated[int, Field(ge=1)] | None = None
    """Generation to go back to. While it is set, that table stays: it is neither corrected nor profiled anew.
    Its content becomes a new generation, since pods never go back by number."""


# --- serving ------------------------------------------------------------------------------------------


class ServingMode(StrEnum):
    """What the operator does with live traffic."""

    OFF = "Off"
    OBSERVE = "Observe"
    CORRECT = "Correct"


class PluginMode(StrEnum):
    """What the plugin in the serving pods does; written into the document."""

    OBSERVE = "Observe"
    FOLLOW = "Follow"
    ADAPT = "Adapt"


class DriftPolicy(StrEnum):
    """What happens where serving pods are not what was profiled."""

    REPORT = "Report"
    REPROFILE = "Reprofile"


class MetricsSource(StrEnum):
    """Where the pods' counters are read."""

    PODS = "Pods"
    PROMETHEUS = "Prometheus"


class SelectorRequirement(ApiModel):
    """A requirement of a label selector."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "(self.operator in ['Exists', 'DoesNotExist']) == (!has(self.values) || self.values.size()"
                " == 0)",
                "must have entries for In and NotIn, and none for Exists and DoesNotExist",
                ".values",
            )
        )
    )

    key: LabelKey
    """Label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How it is compared."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=64, json_schema_extra=ATOMIC)] = ()
    """Values."""


class PodSelector(ApiModel):
    """A label selector for pods in the DraftTable's namespace."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "(has(self.matchLabels) && self.matchLabels.size() > 0) ||"
                " (has(self.matchExpressions) && self.matchExpressions.size() > 0)",
                "must have matchLabels or matchExpressions: an empty selector would take every pod",
            )
        )
    )

    match_labels: Labels = {}
    """Labels that a pod has."""
    match_expressions: Annotated[
        tuple[SelectorRequirement, ...], Field(max_length=16, json_schema_extra=ATOMIC)
    ] = ()
    """Further requirements."""


class Guard(ApiModel):
    """Watches each new generation, and goes back where pods keep fewer tokens per second with it."""

    enabled: bool = True
    """Whether it goes back by itself."""
    tolerance: Share = 0.05
    """Loss of kept tokens per second, at like batch sizes, from which it does; 0.05 is 5%."""
    window_seconds: Annotated[int, Field(ge=30, le=86_400)] = 600
    """Seconds for which a new generation is watched."""
    min_steps: Annotated[int, Field(ge=10, le=2**31)] = 500
    """Steps before and after that a batch bucket needs in order to count."""


PrometheusLabel = Annotated[str, Field(max_length=256, pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
"""A label of Prometheus."""


class Prometheus(ApiModel):
    """A Prometheus that scrapes the pods' metrics."""

    url: Annotated[str, Field(max_length=1_024, pattern=r"^https?://\S+$")]
    """Address of its HTTP API, as in http://prometheus.monitoring:9090."""
    pod_label: PrometheusLabel = "pod"
    """Label that holds a pod's name."""
    namespace_label: PrometheusLabel = "namespace"
    """Label that holds a pod's namespace."""


class Serving(ApiModel):
    """The pods that serve with the table, and what is learnt from them."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "!has(self.source) || self.source != 'Prometheus' || has(self.prometheus)",
                "must be set where source is Prometheus",
                ".prometheus",
            ),
            rule(
                "!has(self.mode) || self.mode != 'Correct' || has(self.selector)",
                "must be set where mode is Correct: there are no pods to learn from",
                ".selector",
            ),
        )
    )

    selector: PodSelector | None = None
    """Pods that serve with this table. Unset: none is looked at."""
    mode: ServingMode = ServingMode.OBSERVE
    """Off: pods are not looked at. Observe: their state is reported. Correct: the table follows live
    acceptance and step times, for all pods together."""
    plugin_mode: PluginMode = PluginMode.FOLLOW
    """What the plugin in each pod does by itself: only watch, follow the ConfigMap, or adapt to its own pod's
    traffic within seconds."""
    metrics_port: Annotated[int, Field(ge=1, le=65_535)] = 9_410
    """Port of the plugin's metrics."""
    source: MetricsSource = MetricsSource.PODS
    """Where counters are read: from each pod, or from Prometheus."""
    prometheus: Prometheus | None = None
    """The Prometheus, where source is Prometheus."""
    interval_seconds: Annotated[int, Field(ge=5, le=3_600)] = 30
    """Seconds between two looks at the pods."""
    min_drafts: Annotated[int, Field(ge=1, le=2**31)] = 2_000
    """Drafts, over all pods, before a correction."""
    hysteresis: Share = 0.02
    """Smallest predicted gain for which a batch size changes its length."""
    half_life_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Seconds until a live count weighs one half."""
    guard: Guard = Guard()
    """The guard of new generations."""
    drift_policy: DriftPolicy = DriftPolicy.REPORT
    """What happens where pods are not what was profiled: it is reported, or profiled anew."""
    refresh_pods: bool = True
    """Touch an annotation of the pods after a new generation, so that they see it in seconds instead of a
    minute. Needs the right to patch pods."""


class Spec(ApiModel):
    """What is wanted of one table: one node pool, model and drafter."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            rule(
                "!has(self.table.allowedLengths) ||"
                " self.table.allowedLengths.all(k, k in self.drafter.draftLengths)",
                "must be among spec.drafter.draftLengths, which are the ones that are measured",
                ".table.allowedLengths",
            ),
            rule(
                "!has(self.table.pinned) ||"
                " self.table.pinned.all(p, p.draftLength in self.drafter.draftLengths)",
                "must have a draftLength that is among spec.drafter.draftLengths",
                ".table.pinned",
            ),
        )
    )

    model: ServedModel
    """The model."""
    drafter: Drafter
    """The drafter."""
    engine: Engine
    """The engine: image, arguments, environment and volumes of the serving pods."""
    profile: Profile = Profile()
    """How and where the table is measured."""
    table: TableSettings = TableSettings()
    """How the table is computed and kept."""
    serving: Serving = Serving()
    """The pods that serve with it."""
    paused: bool = False
    """Change nothing: start no Job, put no table in force. What runs is left to finish, and its result
    waits."""


# --- status -------------------------------------------------------------------------------------------


class ConditionStatus(ApiModel):
    """One thing that is true, false or not known, as everywhere in Kubernetes."""

    type: Annotated[str, Field(max_length=316)]
    """Ready, Profiled, Serving or Degraded."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, Field(max_length=1_024)]
    """Why, in one word: see the reference."""
    message: Annotated[str, Field(max_length=32_768)] = ""
    """Why, for a person, with the last words of what failed."""
    last_transition_time: Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
    """When `status` last changed."""
    observed_generation: int = 0
    """Generation of the DraftTable that it was set for."""


class ProfileStatus(ApiModel):
    """The profile that runs, or the last one."""

    digest: str | None = None
    """Digest of the inputs that the spec asks to be profiled now."""
    accepted_digest: str | None = None
    """Digest of the inputs that the table in force was profiled with."""
    job: str | None = None
    """Name of the Job."""
    attempt: int | None = None
    """Number of the pod's attempt, from 2 on; of a Job that failed, how many there were."""
    phase: str | None = None
    """What the profiler does: start, acceptance, sweep, repeat, mixed or verify."""
    progress: str | None = None
    """Phase and how much of it is done, as in `sweep 42%`."""
    remaining_seconds: float | None = None
    """Seconds left of the phase."""
    pod: str | None = None
    """Name of the pod."""
    node: str | None = None
    """Node that it runs on."""
    started_at: str | None = None
    """When the Job started."""
    completed_at: str | None = None
    """When the profile was put in force."""
    failed_job: str | None = None
    """Job that failed; it is not tried again until the spec or the annotation changes."""
    fingerprint: Annotated[dict[str, Any], Field(json_schema_extra=PRESERVED)] | None = None
    """What was profiled: GPU, versions, model, drafter and settings."""
    excluded: int | None = None
    """Cells of the grid without a time."""


class TableRange(ApiModel):
    """A range of the table."""

    first: int
    """First batch size."""
    last: int
    """Last batch size, included."""
    draft_length: int
    """Draft length."""


class RecommendationStatus(ApiModel):
    """What serves best on the profiled engine."""

    kind: str
    """table, fixed or off."""
    draft_length: int | None = None
    """The length where `kind` is fixed."""
    reason: str = ""
    """Why, with the numbers behind it."""


class AcceptanceStatus(ApiModel):
    """Acceptance that the table in force was computed from."""

    survival: tuple[float, ...] = ()
    """Probability that guesses up to each position are all accepted."""
    proposal_rate: float = 1.0
    """Share of requests and steps that get a draft."""
    source: str = ""
    """profile, or correction for live traffic."""


class PodStatus(ApiModel):
    """A serving pod that is not as it should be."""

    name: str
    """Name of the pod."""
    state: str
    """Behind, Unreachable, Inactive or Drifted."""
    generation: int | None = None
    """Generation that it follows."""
    message: str = ""
    """What is wrong, and what would be right."""


class GuardStatus(ApiModel):
    """The generation that the guard watches, or how that ended."""

    generation: int
    """Generation that is watched."""
    before: int
    """Generation before it."""
    since: str
    """When it was put in force."""
    verdict: str = "Watching"
    """Watching, Kept or RolledBack."""
    change: float | None = None
    """Change of kept tokens per second at like batch sizes; -0.1 is 10% fewer."""
    baseline: Annotated[dict[str, float], Field(max_length=64)] = {}
    """Kept tokens per second by batch bucket, before."""


class ServingStatus(ApiModel):
    """What was seen of the serving pods."""

    pods: int = 0
    """Ready pods that match the selector."""
    up_to_date: int = 0
    """Those that follow the generation in force."""
    unreachable: int = 0
    """Those whose metrics could not be read."""
    ready: str = "0/0"
    """Up to date out of all, as in `2/3`."""
    drafts: int = 0
    """Drafts counted since the generation in force."""
    predicted_gain: float | None = None
    """Predicted gain of a correction by what was counted; 0.02 is 2%."""
    decision: str | None = None
    """Why the table was or was not corrected: Corrected, WithinHysteresis, TooFewDrafts."""
    last_seen: str | None = None
    """When the pods were last looked at."""
    attention: Annotated[
        tuple[PodStatus, ...], Field(max_length=MAX_ATTENTION, json_schema_extra=ATOMIC)
    ] = ()
    """Pods that are not as they should be, at most 20."""
    guard: GuardStatus | None = None
    """The guard."""


class Status(ApiModel):
    """What the operator says of it."""

    observed_generation: int | None = None
    """Generation of the spec that this is about."""
    phase: str | None = None
    """Pending, Profiling, Ready, Degraded, Failed or Paused."""
    conditions: Annotated[tuple[ConditionStatus, ...], Field(json_schema_extra=_by("type"))] = ()
    """Ready, Profiled, Serving and Degraded."""
    profile: ProfileStatus | None = None
    """The profile that runs, or the last one."""
    config_map: str | None = None
    """ConfigMap that serving pods mount."""
    generation: int | None = None
    """Generation of the table in force."""
    latest_generation: int | None = None
    """Highest generation that ever was in force; the next one counts on from here, whatever was deleted."""
    restored_from: int | None = None
    """Generation whose content the one in force repeats, after a rollback."""
    source: str | None = None
    """What the table in force was computed from: profile or correction."""
    table: Annotated[tuple[TableRange, ...], Field(max_length=4_096, json_schema_extra=ATOMIC)] = ()
    """The table in force."""
    recommendation: RecommendationStatus | None = None
    """What serves best."""
    predicted_gain: float | None = None
    """Predicted gain in goodput over speculation off; 0.2 is 20%."""
    gain: str | None = None
    """The predicted gain for people, as in `+20.1%`."""
    acceptance: AcceptanceStatus | None = None
    """Acceptance behind the table in force."""
    history: Annotated[tuple[int, ...], Field(max_length=200, json_schema_extra=ATOMIC)] = ()
    """Generations that are kept, for `spec.table.rollbackTo`."""
    serving: ServingStatus | None = None
    """What was seen of the serving pods."""


class SpecError(ValueError):
    """A DraftTable that this operator cannot read. ``problems`` name each field and what is wrong with it."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def parse(spec: Mapping[str, Any]) -> Spec:
    """Return the ``spec`` of a DraftTable, defaults filled in.

    The API server has checked it already, by the CRD that is installed, which may be older or newer than this
    code; raises :class:`SpecError` with paths like ``spec.drafter.draftLengths`` for what does not fit.
    """
    try:
        return Spec.model_validate(dict(spec))
    except pydantic.ValidationError as error:
        raise SpecError(
            [
                f"{'.'.join(['spec', *map(str, found['loc'])])}: {found['msg'][:1].lower()}{found['msg'][1:]}"
                for found in error.errors(include_url=False)[:10]
            ]
        ) from error
