// What is being done for a question, as a timeline that grows while it is done.

import { h, icon, percent, plural, seconds } from './dom.js';
import { filterText, toolName, toolText } from './text.js';

const DOING = {
  planning: 'Planning', searching: 'Searching', reranking: 'Weighing the passages', grading: 'Grading the evidence',
  answering: 'Writing the answer', verifying: 'Verifying',
};
const VERDICTS = [
  ['p_enough', 'enough', 'Enough to answer'], ['p_more', 'more', 'More is needed'], ['p_clarify', 'ask back', 'It has to be asked back'],
];
const STAGES = {
  plan: 'Plan', mode: 'Mode', retrieve: 'Search', rerank: 'Evidence', grade: 'Grade', generate: 'Answer', verify: 'Verify',
  evidence: 'Evidence', tool: 'Tool', agent: 'Model', clarify: 'Ask back', prune: 'Evidence',
};

export class Trace {
  constructor() {
    this.began = performance.now();
    this.searches = this.hits = this.fallbacks = 0;
    this.waiting = [];
    this.doing = 'Starting';
    this.list = h('ol', { class: 'steps' });
    this.says = h('span', { class: 'trace-says' }, this.doing);
    this.own = false; // whether somebody has opened or closed it: then it stays so
    this.element = h('details', { class: 'trace live', open: true },
      h('summary', { click: () => (this.own = true) }, icon('chevron'), this.says), this.list);
    this.now = h('li', { class: 'step now' }, h('p', { class: 'step-name' }, this.doing));
    this.list.append(this.now);
    this.handlers = {
      status: ({ state, round }) => this.#doing(state, round),
      plan: (event) => this.#plan(event),
      tool_call_start: (event) => this.#search(event),
      tool_call_result: (event) => this.#found(event),
      evidence: (event) => this.#evidence(event),
      grade: (event) => this.#grade(event),
      degraded: ({ degraded }) => this.degraded(degraded),
    };
  }

  /** Shows one event; says whether it was of the trace. */
  on({ type, data }) {
    this.handlers[type]?.(data);
    return type in this.handlers;
  }

  /** What the line says while the connection is down, or nothing when it is back. */
  interrupted(text) {
    this.element.classList.toggle('broken', Boolean(text));
    this.#says(text || this.doing);
  }

  /** Makes room for the answer. */
  fold() {
    if (!this.own) this.element.open = false;
  }

  /** The end: what happens now is gone, and the whole in one line. */
  done({ total, verdict }) {
    this.now.remove();
    this.element.classList.remove('live');
    this.fold();
    this.element.hidden = !this.list.childElementCount;
    const parts = [
      verdict, this.searches && plural(this.searches, 'search', 'searches'), this.searches && plural(this.hits, 'hit'),
      this.fallbacks && plural(this.fallbacks, 'fallback'), total != null && seconds(total),
    ];
    this.says.textContent = parts.filter(Boolean).join(' · ');
  }

  /** The steps of an answer that was given before. */
  recorded(response) {
    for (const { stage, summary } of response.trace ?? []) this.#step('', STAGES[stage] ?? stage, null, summary);
    for (const call of response.tool_calls ?? []) {
      this.searches += 1;
      this.hits += call.hits;
    }
    for (const degraded of response.degraded) this.degraded(degraded, false);
  }

  degraded({ stage, reason, fallback }, live = true) {
    this.fallbacks += 1;
    this.#step('fallback', `Fallback: ${fallback}`, live ? undefined : null, `${stage}: ${reason}`);
  }

  #doing(state, round) {
    this.doing = DOING[state] ?? state;
    if (round > 1 && state === 'searching') this.doing += `, round ${round}`;
    this.#says(this.doing);
  }

  #says(text) {
    this.says.textContent = text;
    this.now.firstElementChild.textContent = text;
  }

  /** `at`: undefined for now, null for a step whose time is not known. */
  #step(kind, name, at = performance.now() - this.began, ...details) {
    const step = h('li', { class: `step ${kind}` },
      h('p', { class: 'step-name' }, h('span', { dir: 'auto' }, name), at != null && h('span', { class: 'at' }, seconds(at))),
      details.filter(Boolean).map((detail) => (detail instanceof Node ? detail : h('p', { dir: 'auto' }, detail))));
    if (this.now.isConnected || this.now.parentNode) this.now.before(step);
    else this.list.append(step);
    return step;
  }

  #plan({ mode, query, variants, sub_questions: parts, buckets, filters, search, reason, intent }) {
    if (!search) {
      this.#step('', 'Plan: no search', undefined, reason);
      return;
    }
    const where = [buckets.length && `in ${buckets.join(', ')}`, filters && `where ${filterText(filters)}`].filter(Boolean);
    const how = [mode === 'pipeline' ? 'one pass' : mode === 'tools' ? 'with tools' : 'as many rounds as it takes', intent];
    this.#step('', 'Plan', undefined, `“${query}”`, [...how, ...where].filter(Boolean).join(' · '),
      list('Also asked as', variants), list('In parts', parts));
  }

  #search({ tool, arguments: asked }) {
    const step = this.#step('open', toolName(tool), undefined, toolText(asked));
    this.waiting.push({ tool, step });
  }

  #found({ tool, hits, duration_ms: ms, outcome }) {
    this.searches += 1;
    this.hits += hits;
    const at = this.waiting.findIndex((each) => each.tool === tool);
    const step = at < 0 ? this.#step('', toolName(tool)) : this.waiting.splice(at, 1)[0].step;
    step.classList.remove('open');
    const good = outcome === 'ok';
    if (!good) step.classList.add('fallback');
    const said = good ? plural(hits, 'hit') : outcome === 'repeated' ? 'not made again' : outcome;
    step.append(h('p', { class: 'result' }, h('strong', {}, said), ` in ${Math.round(ms)} ms`));
  }

  #evidence({ added, titles, pruned }) {
    if (added.length) {
      const shown = [...new Set(titles)];
      this.#step('', `Evidence: ${plural(added.length, 'passage')} kept`, undefined, shown.join(' · '));
    }
    if (pruned.length) this.#step('', `Evidence: ${plural(pruned.length, 'passage')} left out`);
  }

  #grade(grade) {
    const [, , verdict] = VERDICTS.reduce((best, each) => (grade[each[0]] > grade[best[0]] ? each : best));
    const bar = h('div', { class: 'shares', 'aria-hidden': 'true' }, VERDICTS.map(([name]) => h('span', { class: name })));
    VERDICTS.forEach(([name], at) => (bar.children[at].style.flexGrow = grade[name]));
    const told = VERDICTS.map(([name, label]) => `${label} ${percent(grade[name])}`).join(' · ');
    this.#step('', `Grade: ${verdict.toLowerCase()}`, undefined, bar, `${told} · about the question ${percent(grade.p_about)}, holds its answer ${percent(grade.p_holds)}`,
      grade.missing.length && `Missing: ${grade.missing.join(', ')}`, grade.follow_up && `Next: ${[grade.follow_up, ...grade.beside].map((query) => `“${query}”`).join(', ')}`);
  }
}

function list(name, items) {
  return items.length > 0 && h('div', {}, h('p', {}, name), h('ul', {}, items.map((item) => h('li', { dir: 'auto' }, item))));
}
