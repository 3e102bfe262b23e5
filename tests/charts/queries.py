"""Prometheus' own parser and engine (tools/controlplane/promql), fed with pages as targets answer them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Page:
    """What a target answered, and the labels that Prometheus gives it."""

    text: str
    labels: Mapping[str, str]
    seconds: float = 0.0


@dataclass(frozen=True)
class Sample:
    """One element of a query's result."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """The pages that were scraped, and the program that evaluates on them."""

    program: Path
    pages: Sequence[Page] = field(default=())

    def rule_errors(self, rules: str) -> list[str]:
        """Return what Prometheus has against a rule file."""
        return list(self._ask({"rules": rules})["ruleErrors"])

    def query(self, *expressions: str, seconds: float) -> list[list[Sample]]:
        """Return the samples of each expression at a moment; fails where one is wrong."""
        queries = [{"expression": expression, "seconds": seconds} for expression in expressions]
        pages = [asdict(page) for page in self.pages]
        results = self._ask({"pages": pages, "queries": queries})["results"]
        errors = [
            (result["error"], expression)
            for result, expression in zip(results, expressions, strict=True)
            if result["error"]
        ]
        assert not errors, errors
        return [
            [Sample(sample["labels"], float(sample["value"])) for sample in result["samples"]]
            for result in results
        ]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(
            [self.program], input=json.dumps(request), capture_output=True, text=True, check=False, timeout=60
        )
        assert not done.returncode, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
