// One question and what becomes of it: the timeline, the answer with its sources, or what is asked back.

import { AnswerText } from './answer.js';
import { h, icon, percent, place, plural, say } from './dom.js';
import { errorBox } from './errors.js';
import { Trace } from './trace.js';

const STATUS = {
  answered: '', partial: 'Not complete', no_evidence: 'Nothing found', clarify: 'Asked back', failed: 'Failed',
};
const ENDS = {
  deadline: 'the time was up', rounds: 'the rounds were used up', tool_budget: 'the searches were used up', cancelled: 'it was stopped',
};

export class Turn {
  /** `open(citation, element)` opens a document; `choose(choice, clarification)` answers what is asked back. */
  constructor(question, { open, choose }) {
    this.question = question;
    this.actions = { open, choose };
    this.trace = new Trace();
    this.answer = new AnswerText(open);
    this.thought = null;
    this.clarification = null;
    this.ended = false;
    this.heading = h('h2', { class: 'question', dir: 'auto', tabindex: '-1' }, question);
    this.after = h('div', { class: 'after' });
    this.element = h('article', { class: 'turn', 'aria-busy': 'true' }, this.heading, this.trace.element, this.answer.element, this.after);
  }

  on(event) {
    const { type, data } = event;
    if (this.trace.on(event)) return;
    if (type === 'answer') this.#said(data.delta);
    else if (type === 'citation') this.answer.cite(data.citation);
    else if (type === 'reasoning') this.#thinks(data.delta);
    else if (type === 'clarify') this.#asksBack(data.clarification);
    else if (type === 'completed') this.complete(data.response);
  }

  /** The whole response, at the end of a stream. */
  complete(response) {
    this.#finish(STATUS[response.status], response.timings_ms.total);
    this.#show(response);
    const sources = response.sources.length;
    say(response.clarification ? response.clarification.message : `Answer complete, ${plural(sources, 'source')}.`);
  }

  /** An answer that was given before. */
  recorded(response) {
    this.trace.recorded(response);
    this.#finish(STATUS[response.status], response.timings_ms.total);
    this.#show(response);
    return this;
  }

  fail(fault, again) {
    this.#finish('Failed');
    this.after.append(errorBox(fault, again, 'Ask again'));
  }

  /** It was ended by whoever asked. */
  stopped(text = 'Stopped') {
    this.#finish(text);
    this.after.append(h('p', { class: 'note' }, `${text}. What had been written by then is not a finished answer.`));
    say(text);
  }

  interrupted(text) {
    this.trace.interrupted(text);
    if (text) say(text);
  }

  #finish(verdict, total) {
    this.ended = true;
    this.element.removeAttribute('aria-busy');
    this.trace.done({ verdict, total });
  }

  #said(delta) {
    this.trace.fold();
    this.answer.add(delta);
    say(delta.replace(/(\s?\[\d+\])+/g, ''));
  }

  #thinks(delta) {
    if (!this.thought) {
      this.thought = h('p', { dir: 'auto' });
      this.trace.element.after(h('details', { class: 'thought' }, h('summary', {}, icon('chevron'), 'What the model thinks'), this.thought));
    }
    this.thought.append(delta);
  }

  #show(response) {
    const { answer, clarification, citations, sources, conflicts, degraded } = response;
    if (answer) this.answer.complete(answer, citations);
    if (clarification && !this.clarification) this.#asksBack(clarification);
    for (const conflict of conflicts) this.after.append(this.#conflict(conflict, citations, sources));
    if (answer?.missing.length) this.#note(`Not in the documents: ${answer.missing.join(', ')}`);
    for (const { stage, fallback, reason } of degraded) this.#note(`${fallback} (${stage}: ${reason})`, 'Fallback: ');
    if (sources.length) this.after.append(this.#sources(sources, citations));
    this.after.append(this.#facts(response));
  }

  #note(text, lead = '') {
    this.after.append(h('p', { class: 'note warn' }, icon('warn'), h('span', { dir: 'auto' }, lead, text)));
  }

  #asksBack(clarification) {
    this.clarification = clarification;
    const choices = clarification.choices.map((choice) => h('li', {},
      h('button', { type: 'button', class: 'choice', click: () => this.actions.choose(choice, clarification) },
        h('span', { dir: 'auto' }, choice.label),
        choice.count != null && h('span', { class: 'count' }, choice.count.toLocaleString('en')))));
    this.after.before(h('section', { class: 'clarify', 'aria-label': 'Asked back' },
      h('p', { dir: 'auto' }, clarification.message), choices.length > 0 && h('ul', {}, choices)));
  }

  /** No more choosing: another turn goes on from here. */
  settled() {
    for (const button of this.element.querySelectorAll('.choice')) button.disabled = true;
  }

  /** What each document says, to be held against the others. */
  #conflict({ sides, newest }, citations, sources) {
    const rows = sides.map(({ number, slot, value, quote, date }) => {
      const own = citations.filter((citation) => citation.number === number);
      const citation = own.find((each) => each.slot === slot && each.quote === quote) ?? own[0];
      const title = sources.find((source) => source.number === number)?.title;
      const button = h('button', { type: 'button', class: 'side', click: () => this.actions.open(citation, button) },
        h('strong', { dir: 'auto' }, value),
        h('span', { dir: 'auto' }, [number, title].join(' '), date && ` · ${date} `, number === newest && h('span', { class: 'badge' }, 'newest')));
      return h('li', {}, button);
    });
    return h('section', { class: 'conflict', 'aria-label': 'The documents disagree' }, h('p', {}, icon('warn'), 'The documents disagree'), h('ul', {}, rows));
  }

  #sources(sources, citations) {
    const items = sources.map((source) => {
      const own = citations.filter((citation) => citation.number === source.number);
      const quotes = own.map((citation) => {
        const button = h('button', { type: 'button', class: 'quote', dir: 'auto', click: () => this.actions.open(citation, button) },
          h('span', { class: 'quote-text' }, citation.quote),
          h('span', { class: 'quote-place' }, [place(citation), `support ${percent(citation.support)}`].filter(Boolean).join(' · ')));
        return h('li', {}, button);
      });
      return h('li', { class: 'source' },
        h('p', { class: 'source-title' }, h('span', { class: 'number' }, String(source.number)), h('span', { dir: 'auto' }, source.title),
          own.some((citation) => citation.untrusted) && h('span', { class: 'badge' }, 'from the web'),
          own.some((citation) => citation.hidden) && h('span', { class: 'badge' }, 'not visible in the file')),
        h('p', { class: 'source-where', dir: 'auto' }, [source.bucket, source.uri].filter(Boolean).join(' · ')),
        h('ul', {}, quotes));
    });
    return h('details', { class: 'sources' },
      h('summary', {}, icon('chevron'), plural(sources.length, 'source'), h('span', { class: 'soft' }, sources.map((s) => s.title).join(', '))),
      h('ol', {}, items));
  }

  #facts({ rounds, usage, index_version: version, terminated_by: end }) {
    const parts = [
      ENDS[end], rounds > 0 && plural(rounds, 'round'),
      usage.llm_calls > 0 && plural(usage.llm_calls, 'model call'), version && `index ${version}`,
    ];
    return h('p', { class: 'facts' }, parts.filter(Boolean).join(' · '));
  }
}
