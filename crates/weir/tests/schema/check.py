"""Opinions of others on what weir says, for the test beside this file.

    check.py reports    JSON on standard input: the OpenAPI document, and answers with their schemas
    check.py metrics    OpenMetrics text on standard input
    check.py promtool   metrics in the older text format on standard input

Prints a line per finding. Exit: 0 nothing found, 1 findings, 2 wrong usage.
"""

import json
import subprocess
import sys

from jsonschema import Draft202012Validator
from prometheus_client.openmetrics.parser import text_string_to_metric_families

COMPONENTS = "#/components/schemas/"


def closed(schemas, settings):
    """The schemas with every field declared: one that only the answer has is then a finding. `settings` are the
    config keys that a report has beside its own fields."""
    for name, schema in schemas.items():
        if "properties" not in schema:
            continue
        for key in settings.get(name, []):
            schema["properties"].setdefault(key, {})
        schema["additionalProperties"] = False
    return schemas


def mark(schema, value, schemas, seen):
    """Notes the fields of `value` in `seen`, as (type, field)."""
    schema = next((part for part in schema.get("oneOf", []) if "$ref" in part), schema)
    name = schema.get("$ref", "").removeprefix(COMPONENTS)
    if name:
        schema = schemas[name]
    if isinstance(value, list):
        for item in value:
            mark(schema.get("items", {}), item, schemas, seen)
    if isinstance(value, dict):
        for key, item in value.items():
            field = schema.get("properties", {}).get(key)
            if field is not None:
                seen.add((name, key))
            others = schema.get("additionalProperties") or {}
            mark(field if field is not None else others, item, schemas, seen)


def check_reports(given):
    schemas = given["document"]["components"]["schemas"]
    fields = {(name, key) for name, schema in schemas.items() for key in schema.get("properties", {})}
    closed(schemas, given["settings"])
    seen = set()
    for report in given["reports"]:
        schema = {**report["schema"], "components": {"schemas": schemas}}
        for error in Draft202012Validator(schema).iter_errors(report["value"]):
            yield f"{report['what']}: {error.json_path}: {error.message}"
        mark(report["schema"], report["value"], schemas, seen)
    absent = {f"{name}.{key}" for name, key in fields - seen} - set(given["may_be_absent"])
    yield from (f"{field} is declared, and no report has it" for field in sorted(absent))


def classic(text):
    """OpenMetrics text as the older text format has it, which is the one that promtool reads: there the name of a
    counter has its ending."""
    counters = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and line.endswith(" counter")}
    for line in text.splitlines():
        words = line.split(" ", 3)
        if words[:2] in (["#", "HELP"], ["#", "TYPE"]) and words[2] in counters:
            words[2] += "_total"
        if words[:2] != ["#", "UNIT"] and line != "# EOF":
            yield " ".join(words) + "\n"


def check_metrics(text):
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        yield f"OpenMetrics: {error}"
        return
    for family in families:
        if not family.documentation:
            yield f"{family.name} has no HELP"
        if not family.samples:
            yield f"{family.name} has no sample"
    yield from check_classic("".join(classic(text)))


def check_classic(text):
    promtool = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    findings = (promtool.stdout + promtool.stderr).splitlines()
    yield from (f"promtool: {finding}" for finding in findings)
    if promtool.returncode and not findings:
        yield f"promtool: exit {promtool.returncode}"


def main():
    if sys.argv[1:] == ["reports"]:
        findings = list(check_reports(json.load(sys.stdin)))
    elif sys.argv[1:] == ["metrics"]:
        findings = list(check_metrics(sys.stdin.read()))
    elif sys.argv[1:] == ["promtool"]:
        findings = list(check_classic(sys.stdin.read()))
    else:
        sys.exit(__doc__)
    print("\n".join(findings))
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
