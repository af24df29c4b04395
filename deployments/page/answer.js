// An answer's text as it arrives: paragraphs, lists and tables, each sentence with its citations and their support.

import { h, percent, place, unseen } from './dom.js';

const MARKS = /(?:\s?\[\d+\])+/y;
// A citation stays on the line of its sentence's end.
const LAST_WORD = /^(.*?)(\S{0,30})$/s;
const MARKED = /(?:\s?\[\d+\])+(\s\|)?\s*$/;

export class AnswerText {
  /** `open(citation, element)` is called when a citation is chosen. */
  constructor(open) {
    this.open = open;
    this.text = '';
    this.sentences = []; // {text, support, citations}
    this.blocks = []; // {key, element}, as shown
    this.element = h('div', { class: 'answer', dir: 'auto' });
  }

  /** A piece of the text; where it ends with marks it is a sentence, whose citations follow. */
  add(delta) {
    const [lead] = /^\s*/.exec(delta);
    const marked = MARKED.test(delta);
    const said = marked ? oneLine(delta.slice(lead.length)) : delta.slice(lead.length);
    this.text += lead + said;
    if (marked) this.sentences.push({ text: said.replace(/^- /, '').replace(MARKED, '$1'), citations: [] });
    this.#show();
  }

  cite(citation) {
    this.sentences.at(-1)?.citations.push(citation);
    this.#show();
  }

  /** The whole, as the server says it. Which citations are which sentence's is known from the stream, where there was one. */
  complete(answer, citations) {
    const streamed = this.sentences.map((sentence) => sentence.citations);
    const known = streamed.length === answer.sentences.length && streamed.flat().length === citations.length;
    const groups = known ? streamed : grouped(answer.sentences, citations);
    this.text = answer.text;
    this.sentences = answer.sentences.map((sentence, at) => {
      const text = oneLine(sentence.text);
      this.text = this.text.replace(sentence.text, () => text);
      return { ...sentence, text, citations: groups[at] };
    });
    this.#show();
  }

  /** Blocks that have not changed stay as they are, and keep the focus. */
  #show() {
    const left = [...this.sentences];
    const next = blocksOf(this.text).map((block) => {
      const own = [];
      while (left.length && plain(block).includes(left[0].text)) own.push(left.shift());
      const key = JSON.stringify([block, own.map(({ text, citations }) => [text, citations.length])]);
      const shown = this.blocks.find((each) => each.key === key);
      return shown ?? { key, element: this.#block(block, own) };
    });
    this.blocks.filter((old) => !next.includes(old)).forEach((old) => old.element.remove());
    next.forEach(({ element }, at) => {
      if (this.element.children[at] !== element) this.element.insertBefore(element, this.element.children[at] ?? null);
    });
    this.blocks = next;
  }

  #block({ kind, lines }, sentences) {
    if (kind === 'list') return h('ul', {}, lines.map((line) => h('li', {}, this.#inline(line.slice(2), sentences))));
    if (kind === 'table') return this.#table(lines, sentences);
    return h('p', {}, this.#inline(lines[0], sentences));
  }

  #table(lines, sentences) {
    const [first, ...rows] = lines.filter((line) => !/^\|(\s*:?-+:?\s*\|)+$/.test(line));
    const head = rows.length + 1 < lines.length;
    const row = (line, cell) => {
      const sentence = sentences[0]?.text === line.replace(MARKED, '$1') ? sentences.shift() : null;
      const cells = cellsOf(sentence ? sentence.text : line).map((text) => h(cell, cell === 'th' ? { scope: 'col' } : {}, text));
      if (sentence) cells.at(-1).append(...this.#chips(sentence));
      return h('tr', {}, cells);
    };
    return h('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' }, h('table', {},
      head && h('thead', {}, row(first, 'th')), h('tbody', {}, (head ? rows : [first, ...rows]).map((line) => row(line, 'td')))));
  }

  #inline(line, sentences) {
    const shown = [];
    let at = 0;
    while (sentences.length) {
      const start = line.indexOf(sentences[0].text, at);
      if (start < 0) break;
      const sentence = sentences.shift();
      if (start > at) shown.push(line.slice(at, start));
      at = start + sentence.text.length;
      MARKS.lastIndex = at;
      at += MARKS.exec(line)?.[0].length ?? 0;
      const weak = sentence.citations.length > 0 && sentence.citations.every(({ support }) => support < 0.5);
      const [, text, end] = LAST_WORD.exec(sentence.text);
      const [first, ...chips] = this.#chips(sentence);
      shown.push(h('span', { class: `sentence${weak ? ' weak' : ''}` }, text, h('span', { class: 'keep' }, end, first), chips));
    }
    if (at < line.length) shown.push(line.slice(at));
    return shown;
  }

  #chips({ citations }) {
    return citations.map((citation) => {
      const where = [citation.title, place(citation)].filter(Boolean).join(', ');
      const chip = h('button', { type: 'button', class: 'cite', title: where, click: () => this.open(citation, chip) },
        unseen('Source '), String(citation.number), unseen(`, ${where}, support`), ' ', h('span', { class: 'support' }, percent(citation.support)));
      return chip;
    });
  }
}

/** A quote may go over a line's end; a line of an answer is a block of its own. */
const oneLine = (text) => text.replace(/\s*\n\s*/g, ' ');

const plain = ({ lines }) => lines.map((line) => line.replace(MARKED, '$1')).join('\n') + '\n' + lines.join('\n');

const cellsOf = (line) => line.replace(/^\|\s?/, '').replace(/\s?\|$/, '').split(/\s?\|\s?/);

function blocksOf(text) {
  const blocks = [];
  for (const line of text.split('\n')) {
    const kind = line.startsWith('- ') ? 'list' : line.startsWith('|') ? 'table' : 'paragraph';
    const last = blocks.at(-1);
    if (!line.trim()) blocks.push({ kind: 'gap', lines: [] });
    else if (kind !== 'paragraph' && last?.kind === kind) last.lines.push(line);
    else blocks.push({ kind, lines: [line] });
  }
  return blocks.filter(({ kind }) => kind !== 'gap');
}

/** Citations come in the order of their sentences, each sentence's with at least one for each of its numbers. */
function grouped(sentences, citations) {
  let at = 0;
  let needed = sentences.reduce((sum, sentence) => sum + sentence.citations.length, 0);
  return sentences.map(({ citations: numbers }) => {
    const own = [];
    needed -= numbers.length;
    const free = () => citations.length - at > needed || own.length < numbers.length;
    while (at < citations.length && numbers.includes(citations[at].number) && free()) own.push(citations[at++]);
    return own;
  });
}
