// Judges the page that it runs in, and returns what is wrong as a list of sentences. tests/docs/site_audit.py runs it.
(() => {
  const findings = [];
  // Colours that are on their way are judged, and photographed, where they end.
  document.head.append(Object.assign(document.createElement("style"), { textContent: "* { transition: none !important }" }));
  const shown = (each) => each.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && !each.closest(".visually-hidden, .sr-only, dialog:not([open])");
  const named = (each) => {
    const text = (each.innerText || each.getAttribute("aria-label") || each.className || "").toString().trim();
    return `<${each.tagName.toLowerCase()}> "${text.slice(0, 40).replace(/\s+/g, " ")}"`;
  };

  // Nothing is wider than the window.
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.body.querySelectorAll("*")].find(
      (each) => shown(each) && each.getBoundingClientRect().right > root.clientWidth + 1);
    findings.push(`the page is ${root.scrollWidth} pixels wide and the window ${root.clientWidth}: ${wide ? named(wide) : "?"}`);
  }

  // Text stands out from what is behind it: WCAG 2.2, AA.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      if (style.backgroundImage !== "none") return null;
      const layer = rgba(style.backgroundColor);
      if (layer[3]) layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const faint = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !shown(element) || element.closest("script, style, noscript, svg, [disabled]")) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const below = behind(element);
    if (!below) continue;
    const style = getComputedStyle(element);
    let opacity = 1;
    for (let each = element; each; each = each.parentElement) opacity *= Number(getComputedStyle(each).opacity);
    const colour = rgba(style.color);
    const text = over([...colour.slice(0, 3), colour[3] * opacity], below);
    const [light, dark] = [luminance(text), luminance(below)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const wanted = large ? 3 : 4.5;
    // Ratios are published with two digits.
    if (ratio < wanted - 0.005) {
      const kind = `${style.color} on rgb(${below.slice(0, 3).map(Math.round)})`;
      if (!faint.has(kind)) faint.set(kind, `contrast ${ratio.toFixed(2)} instead of ${wanted}: ${kind}, ${named(element)}`);
    }
  }
  findings.push(...faint.values());

  // What is not text has text.
  for (const each of document.images) {
    if (!each.hasAttribute("alt")) findings.push(`a picture without alternative text: ${each.src}`);
    if (each.complete && !each.naturalWidth && shown(each)) findings.push(`a picture that does not load: ${each.src}`);
  }
  const labelled = (each) => each.labels?.length || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby")
    || each.title || each.placeholder;
  for (const each of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!labelled(each)) findings.push(`a field without a label: ${each.outerHTML.slice(0, 80)}`);
  }
  for (const each of document.querySelectorAll("a[href], button")) {
    const name = each.textContent.trim() || each.getAttribute("aria-label") || each.title || each.querySelector("img[alt]")?.alt;
    if (shown(each) && !name) findings.push(`a link or button without a name: ${each.outerHTML.slice(0, 80)}`);
  }
  if (!root.lang) findings.push("the page does not say its language");
  if (!document.title) findings.push("the page has no title");
  if (!document.querySelector("meta[name=viewport]")) findings.push("the page does not say that it fits a telephone");

  // Headings follow each other without a gap, below one of the first level. Panels beside the article have their own.
  const levels = [...document.querySelectorAll("main h1, main h2, main h3, main h4, main h5, main h6")]
    .filter((each) => shown(each) && !each.closest("nav, aside, .sidebar"));
  if (levels.filter((each) => each.tagName === "H1").length !== 1) findings.push("the page has not exactly one <h1>");
  levels.slice(1).forEach((each, i) => {
    const [before, now] = [Number(levels[i].tagName[1]), Number(each.tagName[1])];
    if (now > before + 1) findings.push(`<h${now}> follows <h${before}>: ${named(each)}`);
  });

  // What is pressed is large enough for a finger, unless it is a word in a sentence.
  if (window.innerWidth < 600) {
    for (const each of document.querySelectorAll("a[href], button, input:not([type=hidden]), summary, select")) {
      const box = each.getBoundingClientRect();
      if (!shown(each) || !box.width || box.bottom < 0 || box.right < 0) continue;
      if (getComputedStyle(each).display === "inline" || each.closest(".headerlink, .skip-link, #pst-skip-link")) continue;
      if (box.width < 24 || box.height < 24) {
        findings.push(`${Math.round(box.width)} by ${Math.round(box.height)} pixels are small for a finger: ${named(each)}`);
      }
    }
  }
  return [...new Set(findings)];
})()
