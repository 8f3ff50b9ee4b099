"""How the page shows a model's text: the Markdown that models write, at every prefix, and nothing that could act."""

import json
from pathlib import Path

import pytest

from tests.gateway.browser import CHROMIUM, Page
from tests.gateway.harness import GatewayProcess
from tests.gateway.test_page import in_browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

CASES = [
    ("plain", "<p>plain</p>"),
    ("two\nlines", "<p>two\nlines</p>"),
    ("one\n\ntwo", "<p>one</p><p>two</p>"),
    ("# Title", "<h3>Title</h3>"),
    ("**bold** and *slanted* and `code`", "<p><strong>bold</strong> and <em>slanted</em> and <code>code</code></p>"),
    ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
    ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
    ("3. a\n\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("- a\n  more", "<ul><li>a<p>more</p></li></ul>"),
    ("> said\n> again", "<blockquote>said\nagain</blockquote>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    (
        "| a | b |\n|---|---|\n| 1 | 2 |",
        '<div class="table-box"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
        "<tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>",
    ),
    (
        "[here](https://a.example/x) https://b.example/y.",
        '<p><a href="https://a.example/x" rel="noopener noreferrer" target="_blank">here</a> '
        '<a href="https://b.example/y" rel="noopener noreferrer" target="_blank">https://b.example/y</a>.</p>',
    ),
    ("[no](javascript:alert(1))", "<p>[no](javascript:alert(1))</p>"),
    ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"),
    ("a < b\n**open", "<p>a &lt; b\n**open</p>"),
]
LONG = (
    "# T\n\ntext **b** `c`\n\n- a\n  - b\n\n1. x\n\n```py\nx = 1\n```\n\n"
    "| a |\n|--|\n| <img src=x onerror=alert(1)> |\n\n> q\n\n---\n~~~\nopen"
)


def test_text_becomes_elements(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        await page.run("import('/ui/text.js').then((module) => { window.render = module.renderText; })")
        draw = "(() => { const box = document.createElement('div'); render(box, %s); return box.innerHTML; })()"
        for source, expected in CASES:
            assert await page.run(draw % json.dumps(source)) == expected, source
        code = await page.run(draw % json.dumps("```py\nx < 1\n\ny\n```\nafter"))
        assert '<pre tabindex="0"><code>x &lt; 1\n\ny</code></pre>' in code
        assert code.endswith("<p>after</p>")

        # streamed or at once, the same elements; no markup at any point
        grown = (
            "(() => { const text = %s; const box = document.createElement('div');"
            "for (let n = 0; n <= text.length; n++) { render(box, text.slice(0, n));"
            "if (box.querySelector('img, script')) return 'markup'; } return box.innerHTML; })()"
        )
        assert await page.run(grown % json.dumps(LONG)) == await page.run(draw % json.dumps(LONG))
        assert page.errors == []

    in_browser(gateway, tmp_path, scenario)
