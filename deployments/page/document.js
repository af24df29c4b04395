// A cited document, open at its place: its text as it is in the index, page by page, with the cited span marked.

import { get } from './api.js';
import { $, h, icon, place, plural, say } from './dom.js';
import { errorBox } from './errors.js';
import { Sheet } from './sheet.js';

export class Documents {
  constructor() {
    this.body = $('doc-body');
    this.facts = $('doc-facts');
    this.shown = null; // the citation's button
    this.sheet = new Sheet($('doc'), {
      over: '(max-width: 1359px)', others: '#side, .bar button, #main > *', first: () => $('doc-title'),
      opened: (open) => {
        $('doc').hidden = !open;
        if (!open) this.#shows(null);
      },
    });
    $('doc-close').addEventListener('click', () => this.sheet.close());
  }

  close() {
    this.sheet.close();
  }

  /** Opens the document of a citation; `from` is the button that names it, which gets the focus back. */
  async open(citation, from) {
    $('doc-title').textContent = citation.title || citation.uri;
    this.facts.replaceChildren();
    this.body.replaceChildren(h('p', { class: 'loading' }, 'Opening'));
    this.sheet.open(from);
    this.#shows(from);
    if (citation.untrusted) return this.#quote(citation, 'It is from the web, not of your documents; only what was cited is known of it.');
    const path = `v1/documents/${encodeURIComponent(citation.doc_id)}`;
    try {
      const view = await get(`${path}?span=${citation.span.join(',')}`);
      if (this.shown === from) this.#show(view, path, citation);
    } catch (fault) {
      if (this.shown === from) this.body.replaceChildren(errorBox(fault), ...quoted(citation));
    }
  }

  #shows(from) {
    this.shown?.classList.remove('shown');
    this.shown = from;
    from?.classList.add('shown');
  }

  #quote(citation, why) {
    this.facts.replaceChildren(h('p', { dir: 'auto' }, citation.uri), h('p', {}, why));
    this.body.replaceChildren(...quoted(citation));
  }

  #show(view, path, citation) {
    const { document: about, parts, chars, highlight } = view;
    const where = place(highlight ?? citation);
    $('doc-title').textContent = about.title || about.uri;
    this.text = h('div', { class: 'doc-text', dir: 'auto' });
    this.facts.replaceChildren(h('p', { dir: 'auto' }, [about.bucket, about.uri, plural(chars, 'character')].join(' · ')),
      h('p', { class: 'crumb', dir: 'auto' }, where));
    this.body.replaceChildren(this.text);
    this.page = null;
    this.text.append(...this.#parts(parts));
    this.#more(path, view);
    this.text.querySelector('mark')?.scrollIntoView({ block: 'center' });
    say(`${about.title} is open${where ? ` at ${where}` : ''}. The cited passage is marked.`);
  }

  /** A line says where a page begins. */
  #parts(parts) {
    return parts.flatMap((part) => {
      const begins = part.page != null && part.page !== this.page;
      this.page = part.page ?? this.page;
      const text = part.marked ? h('mark', {}, part.text) : h('span', {}, part.text);
      if (part.hidden) text.classList.add('not-seen');
      return [
        begins && h('div', { class: 'page-break', role: 'separator', 'aria-label': `Page ${part.page}` }, `Page ${part.page}`),
        part.hidden && h('span', { class: 'badge' }, 'not visible in the file'), text,
      ].filter(Boolean);
    });
  }

  #more(path, { before, after }) {
    const button = (label, start, put) => {
      if (start == null) return;
      const element = h('div', { class: 'doc-more' }, h('button', { type: 'button', class: 'quiet', click: async () => {
        try {
          const view = await get(`${path}?start=${start}`);
          element.remove();
          put(view);
        } catch (fault) {
          element.replaceChildren(errorBox(fault));
        }
      } }, icon('doc'), label));
      if (label === ABOVE) this.text.before(element);
      else this.text.after(element);
    };
    button(ABOVE, before, (view) => {
      this.page = null;
      this.text.prepend(...this.#parts(view.parts));
      this.#more(path, { before: view.before, after: null });
    });
    button(BELOW, after, (view) => {
      this.text.append(...this.#parts(view.parts));
      this.#more(path, { before: null, after: view.after });
    });
  }
}

const ABOVE = 'What comes before';
const BELOW = 'Read on';

const quoted = ({ quote }) => [h('div', { class: 'doc-text', dir: 'auto' }, h('mark', {}, quote))];
