// Elements from names, attributes and text. A string becomes a text node, so what a document says is never markup,
// and no attribute is set that could run or load anything.

const REFUSED = /^(on|style$|href$|xlink|src|action|formaction|background)/i;

/** `h('p', {class: 'soft', click: act}, 'text', element)`; a function listens to the event of that name. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (REFUSED.test(name)) throw new TypeError(`the attribute ${name} is never set`);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/** One of the symbols at the top of the page. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}

export const $ = (id) => document.getElementById(id);

/** Text for screen readers alone. */
export const unseen = (text) => h('span', { class: 'unseen' }, text);

/** Tells a screen reader, without moving anybody. */
export function say(text) {
  const log = $('log');
  log.append(h('p', {}, text));
  while (log.childElementCount > 40) log.firstElementChild.remove();
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString('en')} ${count === 1 ? one : many}`;

export const seconds = (ms) => `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;

export const percent = (share) => `${Math.round(100 * share)} %`;

/** Where something stands in its document: "page 5 · 12 Term › 12.2 Termination". */
export function place({ page, heading }) {
  return [page != null && `page ${page}`, heading?.length && heading.join(' › ')].filter(Boolean).join(' · ');
}

/** An index into a string's UTF-16 units, for a count of characters as the server counts them. */
export function unitsAt(text, characters) {
  let at = 0;
  for (; characters > 0 && at < text.length; characters -= 1) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}
