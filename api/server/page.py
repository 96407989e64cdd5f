"""The page at /docs: an OpenAPI document as HTML that needs nothing else."""

import html
from typing import Any

Json = dict[str, Any]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
code { font-size: 0.95em } h2 code { font-weight: 600 } h2 { margin-top: 2.5rem; border-top: 1px solid #ddd }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: 3px 10px 3px 0 }
td { border-top: 1px solid #eee } .type { color: #666 } summary { cursor: pointer; color: #246 }
"""


def render(schema: Json) -> str:
    """Write the document as one HTML page that needs nothing else."""
    components = schema["components"]["schemas"]
    operations = [
        _operation_html(method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [_schema_html(name, component) for name, component in components.items()]
    info = schema["info"]
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{info["title"]} API</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>
<h1>{info["title"]} {info["version"]}</h1>
<p>OpenAI's API on <code>/v1</code>; the same as a document: <a href="/openapi.json">/openapi.json</a>.</p>
{"".join(operations)}<h1>Bodies</h1>{"".join(schemas)}</html>"""


def _operation_html(method: str, path: str, operation: Json) -> str:
    body = operation.get("requestBody", {}).get("content", {})
    answers = operation["responses"]["200"]["content"]
    rows = [f"<tr><th>Body</th><td>{_links(body)}</td></tr>"] if body else []
    rows.append(f"<tr><th>Answer</th><td>{_links(answers)}</td></tr>")
    return f"<h2><code>{method} {html.escape(path)}</code></h2><p>{html.escape(operation['summary'])}</p>" + (
        f"<table>{''.join(rows)}</table>"
    )


def _links(content: Json) -> str:
    return "<br>".join(f"{_type(each['schema'])} <span class=type>{kind}</span>" for kind, each in content.items())


def _schema_html(name: str, component: Json) -> str:
    required = component.get("required", [])
    rows = [
        f"<tr><td><code>{html.escape(field)}</code>{' *' if field in required else ''}</td>"
        f"<td class=type>{_type(schema)}</td><td>{html.escape(schema.get('description', ''))}</td></tr>"
        for field, schema in component.get("properties", {}).items()
    ]
    text = html.escape(component.get("description", ""))
    return f"<h2 id={name}><code>{name}</code></h2><p>{text}</p><table>{''.join(rows)}</table>"


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"<a href=#{name}>{name}</a>"
    if "anyOf" in schema:
        return " | ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(html.escape(repr(value)) for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return html.escape(str(kind))
