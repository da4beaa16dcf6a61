"""How a report looks: on screens light and dark, wide and narrow, and on paper."""

# Right and wrong differ by sign and border first; the colours are Okabe and Ito's, which most
# colour-blind readers can distinguish, lighter in the dark.
CSS = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1c1f23; --soft: #5b636d; --line: #d9dde2; --tint: #f4f6f8;
  --right: #007a5a; --wrong: #c04d00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181c; --ink: #e4e7eb; --soft: #a0a9b4; --line: #363c44; --tint: #1e2228;
    --right: #3fc79a; --wrong: #ff9040;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.25; text-wrap: balance; }
h1 { font-size: 2rem; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 2.8rem 0 .8rem; padding-top: 1.2rem;
     border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 2rem 0 .5rem; }
p { max-width: 44rem; margin: 0 0 1rem; }
.lead { font-size: 1.15rem; line-height: 1.5; color: var(--soft); }
figure { margin: 1.4rem 0; }
figcaption { color: var(--soft); font-size: .9rem; line-height: 1.45; max-width: 44rem;
             margin-top: .5rem; }
.scroll { overflow-x: auto; overscroll-behavior-x: contain; }
.scroll:focus-visible { outline: 2px solid var(--soft); outline-offset: 2px; }
.figure { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .6rem; }
.figure img { display: block; max-width: max(100%, 40rem); max-height: 48rem; margin: 0 auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: max-content; }
th, td { padding: .38rem 1.4rem .38rem 0; text-align: left; vertical-align: baseline;
         border-bottom: 1px solid var(--line); }
table.many { font-size: .92rem; }
.many th, .many td { padding-right: .85rem; }
tr > :last-child { padding-right: 0; }
thead th { font-size: .88rem; font-weight: 600; color: var(--soft); white-space: nowrap;
           vertical-align: bottom; }
tbody th { font-weight: 400; }
tbody th, td { max-width: 24rem; overflow-wrap: anywhere; }
.groups th { text-align: center; border-bottom: 0; padding-bottom: 0; }
.groups td { border-bottom: 0; }
.apart > * { border-top: 2px solid var(--soft); color: var(--soft); font-style: italic; }
.apart + .apart > * { border-top: 0; }
summary { cursor: pointer; color: var(--soft); padding: .3rem 0; }
pre { margin: 0; padding: .8rem 1rem; background: var(--tint); border-radius: 6px;
      font: .84rem/1.5 ui-monospace, "Liberation Mono", monospace; width: max-content;
      min-width: 100%; }
details { margin: .6rem 0 1.2rem; }
.number { text-align: right; white-space: nowrap; }
.row { width: max-content; min-width: 100%; padding: .7rem 0 .8rem;
       border-bottom: 1px solid var(--line); }
.row p { position: sticky; left: 0; width: fit-content; max-width: min(44rem, 100vw - 3.5rem);
         margin: 0 0 .4rem; font-size: .9rem; line-height: 1.4; color: var(--soft); }
.row p strong { color: var(--ink); unicode-bidi: isolate; }
.tiles { display: flex; gap: .5rem; margin: 0; padding: 0; list-style: none; }
.tile { flex: none; width: 4.75rem; font-size: .74rem; line-height: 1.3; color: var(--soft); }
.tile img { display: block; width: 4.75rem; height: 4.75rem; object-fit: contain;
            background: var(--tint); border: 3px solid var(--line); border-radius: 4px; }
.tile .small { image-rendering: pixelated; }
.tile span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2;
             margin-top: .2rem; overflow: hidden; }
.tile bdi { color: var(--soft); font-weight: 400; }
.query { margin-right: .6rem; }
.query img { border-color: var(--ink); border-style: double; }
.right { color: var(--right); font-weight: 700; }
.right img { border-color: var(--right); }
.wrong { color: var(--wrong); font-weight: 700; }
.wrong img { border-color: var(--wrong); border-style: dashed; }
@media (max-width: 40rem) {
  main { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.6rem; }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #bbb;
          --tint: #fff; --right: #007a5a; --wrong: #c04d00; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  h1, h2, h3 { break-after: avoid; }
  .figure, tr, .row { break-inside: avoid; }
  .scroll { overflow: visible; }
  .figure img { max-width: 100%; }
  .row, table { width: auto; }
  .tiles { flex-wrap: wrap; gap: .45rem; }
  .tile, .tile img { width: 3.9rem; font-size: .62rem; }
  .tile img { height: 3.9rem; }
}
"""
