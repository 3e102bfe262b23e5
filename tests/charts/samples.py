"""Sets of values that users have: what the tests render, and have the real API server check."""

from __future__ import annotations

from typing import Any

MONITORING = {
    "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
    "podMonitor": {"enabled": True, "interval": "15s"},
    "prometheusRule": {
        "enabled": True,
        "alertLabels": {"team": "inference"},
        "runbookUrl": "https://docs.example/alerts/",
        "disabled": ["TableTuneNoTable"],
    },
    "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Inference"}},
}

SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaced": {"scope": {"namespaces": ["default", "kube-public"]}, "crds": {"install": False}},
    "available": {
        "replicas": 3,
        "priorityClassName": "system-cluster-critical",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "topologyKey": "topology.kubernetes.io/zone",
                            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "tabletune"}},
                        },
                    }
                ]
            }
        },
        "podDisruptionBudget": {"maxUnavailable": "50%"},
    },
    "alone": {"leaderElection": {"enabled": False}},
    "guarded": {
        "networkPolicy": {
            "enabled": True,
            "ingressFrom": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
            ],
            "servingPorts": [9410],
            "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        },
        "rbac": {"patchPods": False, "aggregate": False},
    },
    "mirrored": {
        "image": {
            "registry": "registry.example:5000/mirror",
            "digest": "sha256:" + "0" * 64,
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "registry"}],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
        "extraEnvFrom": [{"configMapRef": {"name": "proxies", "optional": True}}],
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/certs", "readOnly": True}],
    },
    "adorned": {
        "fullnameOverride": "tuner",
        "commonLabels": {"team": "inference"},
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "podAnnotations": {"example.com/reason": "why"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "serviceAccount": {"name": "tuner-account", "annotations": {"example.com/role": "tuner"}},
        "service": {"port": 9090, "annotations": {"prometheus.io/scrape": "true"}},
        "crds": {"annotations": {"argocd.argoproj.io/sync-wave": "-1"}},
        "operator": {
            "workers": 2,
            "resyncSeconds": 60.5,
            "scrapes": 8,
            "scrapeSeconds": 2,
            "logFormat": "json",
        },
    },
    "strangers' rights": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "given"}},
    "monitored": MONITORING,
    "monitored in namespaces": MONITORING | {"scope": {"namespaces": ["default"]}},
}
"""Values by what a user is after."""
