"""The look of the page: light and dark, wide and narrow, and on paper."""

STYLE = """
:root{color-scheme:light dark;--page:#f7f8fa;--card:#fff;--ink:#1b2330;--soft:#5d6878;
--rule:#e2e6ec;--a:#2166c4;--b:#c8550b;--c:#157a6e;--low:#1f5fbf;--mid:#e6e8ec;--high:#c9480c;
--first:#2166c4;--last:#d4860b;--good:#13733b;--bad:#b3261e;--hover:#1b233014}
@media (prefers-color-scheme:dark){:root{--page:#11151b;--card:#1a2029;--ink:#e6eaf0;--soft:#9aa6b6;
--rule:#2d3541;--a:#6ca8f7;--b:#f3954f;--c:#4fc2b2;--low:#5b9df5;--mid:#323a46;--high:#f58a45;
--first:#6ca8f7;--last:#f5c04f;--good:#5fd08c;--bad:#ff8a80;--hover:#e6eaf01a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 14px;margin-bottom:18px}
h1{font-size:1.7rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:34px 0 10px}
header p{margin:0;color:var(--soft)}
.state{font-weight:600;border:1px solid currentColor;border-radius:99px;padding:0 .7em;
font-size:.85rem}
.good{color:var(--good)}.bad{color:var(--bad)}.open{color:var(--a)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(165px,1fr));gap:10px}
.tile,figure,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.tile{padding:10px 14px}
.tile small{display:block;color:var(--soft);font-size:.8rem}
.tile b{display:block;font-size:1.3rem;line-height:1.3;font-weight:600;
font-variant-numeric:tabular-nums}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:12px}
.wide{grid-column:1/-1}
figure{margin:0;padding:12px 16px 10px;min-width:0}
.wide>figure+figure{margin-top:12px}
figcaption{font-weight:600}
small,.legend{color:var(--soft);font-weight:400;font-size:.82rem}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin-top:2px}
.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;
vertical-align:middle}
.ramp i{width:11px;height:11px;margin:0;border-radius:0;vertical-align:-1px}
.plot{display:grid;grid-template-columns:max-content minmax(0,1fr);column-gap:8px;margin-top:12px;
padding-right:12px}
.area{height:220px;position:relative}
.area svg{position:absolute;inset:0;width:100%;height:100%;display:block;overflow:visible}
.up{position:relative;font-size:.75rem;color:var(--soft);font-variant-numeric:tabular-nums}
.up b{visibility:hidden;font-weight:400;white-space:nowrap}
.up span{position:absolute;right:0;transform:translateY(50%);white-space:nowrap;line-height:1}
.across{position:relative;height:1.5em;margin-top:5px;font-size:.75rem;color:var(--soft)}
.across span{position:absolute;transform:translateX(-50%);white-space:nowrap}
svg path{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--rule);stroke-width:1}
.line{stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.faint{opacity:.35}.faint .line{stroke-width:1}
.dot{stroke-width:7;stroke-linecap:round}
.hit{fill:transparent}.hit:hover{fill:var(--hover)}
.area svg.cells{shape-rendering:crispEdges;overflow:hidden}
.cells rect:hover{stroke:var(--ink);stroke-width:2;vector-effect:non-scaling-stroke}
.blank{fill:none;pointer-events:all}
.none{color:var(--soft);margin:10px 0}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden;margin:4px 0 12px;gap:1px}
.bar span{min-width:2px}
.scroll{overflow-x:auto}
.card{padding:12px 16px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.88rem;width:100%}
th{text-align:left;font-weight:500;color:var(--soft)}
th,td{padding:4px 14px 4px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child>th,tr:last-child>td{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap}
td.any{overflow-wrap:anywhere}
td i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:8px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;
font:13.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
ul{margin:0;padding-left:1.2em}
details summary{cursor:pointer;font-weight:600}
details h3{font-size:.9rem;margin:16px 0 4px;color:var(--soft);font-weight:600}
.settings{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));
gap:0 28px}
@media (max-width:560px){main{padding:18px 12px 40px}h1{font-size:1.4rem}.area{height:190px}
figure{padding:10px 12px 8px}.tiles{grid-template-columns:repeat(2,1fr)}
.tile b{font-size:1.12rem}}
@media print{body{background:#fff}figure,.tile,.card{break-inside:avoid}}
""" + "".join(
    f".h{i}{{fill:{c};background:{c}}}\n"
    for i, c in enumerate(
        [f"color-mix(in oklab,var(--low) {100 - i * 100 // 6}%,var(--mid))" for i in range(6)]
        + ["var(--mid)"]
        + [f"color-mix(in oklab,var(--high) {i * 100 // 6}%,var(--mid))" for i in range(1, 7)]
    )
)
