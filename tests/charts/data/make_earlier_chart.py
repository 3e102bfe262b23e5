"""Makes tabletune-0.0.1.tgz, which the tests upgrade from: python tests/charts/data/make_earlier_chart.py

No version was released before 0.1.0. So this is the chart as it was first committed, called 0.0.1, with a CRD
that lacks one field (`spec.serving.refreshPods`), as an earlier version's would. Once 0.1.0 is released, its
package takes this one's place.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import yaml

COMMIT = "6ffc9bf"
"""The first with a chart."""
ROOT = Path(__file__).parents[3]
DEFINITION = Path("files", "tabletune.dev_drafttables.yaml")

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name, "chart.tar")
        subprocess.run(["git", "archive", "-o", archive, COMMIT, "charts/tabletune"], cwd=ROOT, check=True)
        with tarfile.open(archive) as opened:
            opened.extractall(name, filter="data")
        chart = Path(name, "charts", "tabletune")
        definition = yaml.safe_load((chart / DEFINITION).read_text())
        spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        del spec["properties"]["serving"]["properties"]["refreshPods"]
        (chart / DEFINITION).write_text(yaml.safe_dump(definition, sort_keys=False))
        helm = ROOT / ".cache" / "controlplane" / "helm"
        version = ("--version", "0.0.1", "--app-version", "0.0.1")
        command = [str(helm), "package", str(chart), *version, "--destination", str(Path(__file__).parent)]
        sys.exit(subprocess.run(command, check=False).returncode)
