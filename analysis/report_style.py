"""The look of the HTML report: one style sheet, light and dark, no external resource."""

from typing import Final

from pdtrace.analysis import phases

# Blue computes, warm colours coordinate, grey is the edge, magenta is what nobody can explain.
COLOURS: Final = {
    phases.FIRST_DECODE: "#1d4ed8",
    phases.PREFILL: "#2f6fde",
    phases.PREFILL_QUEUE: "#7fb0f2",
    phases.DECODE_QUEUE: "#5fb3d9",
    phases.DECODE_CAPACITY: "#3a93c2",
    phases.INGRESS: "#8a94a6",
    phases.EGRESS: "#aab2c0",
    phases.TRANSFER: "#c2410c",
    phases.SUBMIT: "#e2711d",
    phases.HANDSHAKE: "#b91c1c",
    phases.REGISTRATION: "#f0a020",
    phases.MATCH: "#d9b310",
    phases.ADMISSION: "#b7791f",
    phases.HOP: "#e4935a",
    phases.LANDED_TO_SEEN: "#dc5a4e",
    phases.REQUEUE: "#f2b28c",
    phases.RETRY: "#8c2f39",
    phases.UNATTRIBUTED: "#c026d3",
}

_RULES: Final = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5b6676;
--line:#dfe3e9;--grid:#e9ecf1;--hatch:#ffffffb0;--warn:#9a3412}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e6eaf0;
--soft:#9aa6b6;--line:#2c3542;--grid:#252d38;--hatch:#10141ab0;--warn:#fdba74}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:17px;margin:0 0 4px}
p{margin:0 0 10px}
.soft,.lede{color:var(--soft)}
.lede{max-width:92ch}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:20px 22px;margin-top:18px;overflow-x:auto}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(225px,1fr));gap:14px;
margin-top:18px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 18px}
.card b{display:block;font-size:25px;font-weight:650;line-height:1.25;
font-variant-numeric:tabular-nums}
.card b small{font-size:13px;font-weight:500;color:var(--soft)}
.mode{font-weight:600;text-transform:uppercase;font-size:12px;letter-spacing:.06em;
color:var(--soft)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--soft);font-size:12px;text-align:left;
border-bottom:1px solid var(--line)}
th,td{padding:5px 12px 5px 0;vertical-align:top}
td{border-bottom:1px solid var(--grid)}
tr:last-child td{border-bottom:0}
tr.head td{border-top:1px solid var(--line);font-weight:600}
.num{text-align:right}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,monospace}
svg{display:block;width:100%;min-width:680px;height:auto;margin-top:6px}
svg.defs{position:absolute;width:0;height:0;min-width:0}
text{font:11.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
text.on{fill:#fff;font-weight:550}text.onhid{fill:var(--ink)}
text.tick{fill:var(--soft);font-size:10.5px}text.total,text.lane{font-weight:600}
line.grid{stroke:var(--grid)}line.rule{stroke:var(--line)}
.hid{opacity:.42}.hatch{fill:url(#hatch)}#hatch path{stroke:var(--hatch);stroke-width:2.2}
path.whisker{stroke:var(--ink);stroke-width:1.6;fill:none}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:2px 0 8px;font-size:12.5px}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;
vertical-align:-1px}
.request{margin-top:18px}.request:first-of-type{margin-top:8px}
.request .key{margin:4px 0 0;color:var(--soft)}
.request h3{font-size:13.5px;margin:0;font-weight:600}
.flag{display:inline-block;border:1px solid var(--warn);color:var(--warn);border-radius:9px;
padding:0 8px;font-size:11.5px;margin-left:6px}
ul{margin:4px 0;padding-left:20px}
"""


def style_sheet() -> str:
    """The rules, with one fill and one swatch colour per phase."""
    fills = "".join(
        f".p-{name}{{fill:{colour}}}.s-{name}{{background:{colour}}}"
        for name, colour in COLOURS.items()
    )
    return _RULES + fills
