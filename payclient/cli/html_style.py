"""How the page of a run looks: on a phone, on a desk, on paper. Text is at least 4.5:1 on its ground."""

from __future__ import annotations

__all__: list[str] = []

STYLE = """
:root{color-scheme:light;--ink:#16191f;--quiet:#565d69;--line:#d9dde3;--ground:#f3f5f8;--link:#1d4ed8}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans",sans-serif;-webkit-text-size-adjust:100%}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}
header{padding:.5rem .25rem 1rem}
h1{font-size:1.75rem;line-height:1.2;margin:.5rem 0;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:0 0 .75rem}
h3{font-size:1rem;margin:1.5rem 0 .25rem}
p{margin:.25rem 0 .75rem}
a{color:var(--link)}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--ground);padding:.1em .3em;
border-radius:4px}
section{background:#fff;border:1px solid var(--line);border-radius:12px;padding:1.25rem 1.25rem 1rem;margin:0 0 1rem}
.patterns{position:absolute}
.badge{display:inline-block;margin:0;padding:.2rem .7rem;border-radius:999px;font-size:.875rem;font-weight:600;
border:1px solid currentColor;background:#fff}
.good{color:#14532d}.done{color:var(--ink)}.look{color:#7c2d12}.running{color:#1e3a8a}
.lead{font-size:1.2rem;margin:0}
.quiet{color:var(--quiet);font-size:.875rem}
.bar{display:block;width:100%;height:34px;border-radius:8px;margin:0 0 1rem}
.swatch{vertical-align:-2px;margin-right:.5rem;flex:none}
.legend span{margin-right:1.25rem}
.wide,.narrow{display:block;width:100%;height:auto}
.narrow{display:none}
.grid{stroke:var(--line)}.axis{stroke:#565d69}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#565d69}
.end{text-anchor:end}.middle{text-anchor:middle}
table{border-collapse:collapse;width:100%;font-size:.9375rem}
th,td{text-align:left;padding:.45rem .75rem .45rem 0;border-bottom:1px solid var(--line);vertical-align:top;
font-weight:400}
th:last-child,td:last-child{padding-right:0}
thead th{color:var(--quiet);font-size:.8125rem;font-weight:600;border-bottom-color:#9aa1ac}
tfoot th,tfoot td{font-weight:600;border-bottom:0}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th[scope=row]{white-space:nowrap}
.rows th[scope=row]{white-space:normal}
.rows th[scope=row],.said{overflow-wrap:anywhere}
.rows th[scope=row]{font-weight:600}
.rows .number{padding-right:2rem}
.said{width:45%}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.75rem 1.5rem;margin:0 0 1rem}
dt{color:var(--quiet);font-size:.8125rem}dd{margin:0}
@media screen and (max-width:40rem){
main{padding:.75rem .75rem 2rem}
section{padding:1rem .9rem .75rem}
h1{font-size:1.4rem}.lead{font-size:1.05rem}
.wide{display:none}.narrow{display:block}
.share{display:none}
table{font-size:.8125rem}th,td{padding-right:.5rem}
.rows{font-size:.9375rem}
.rows,.rows tbody{display:block}
.rows thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
.rows tr{display:grid;grid-template-columns:1fr auto;gap:0 1rem;padding:.55rem 0;border-bottom:1px solid var(--line)}
.rows tr:last-child{border-bottom:0}
.rows th[scope=row],.rows td,.rows .number{border:0;padding:.05rem 0}
.rows td:empty{display:none}
.rows td[data-name]{color:var(--quiet);font-size:.875rem}
.rows td[data-name]::before{content:attr(data-name)}
.rows .said{grid-column:1/-1;width:auto}
}
@page{margin:14mm}
@media print{
:root{--ground:#fff}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
body{font-size:10.5pt}
main{max-width:none;padding:0}
header{padding:0 0 4mm}
section{border:0;border-top:1px solid #9aa1ac;border-radius:0;padding:4mm 0 2mm;margin:0}
h1{font-size:18pt}h2{font-size:13pt}h2,h3{break-after:avoid}h3+p{break-inside:avoid;break-after:avoid}
tr,svg,.when,.times{break-inside:avoid}
thead{display:table-header-group}tfoot{display:table-row-group}
table{font-size:9.5pt}
.wide{max-height:60mm}
a{color:inherit;text-decoration:none}
}
""".strip()
