// What stands on the page, put together: asking, what is shown of it, and the panels around.

import { get, post, unique, whenKeyIsWanted } from './api.js';
import { Conversations } from './conversations.js';
import { Documents } from './document.js';
import { $, h, icon, plural, say } from './dom.js';
import { ApiError, aborted, errorBox } from './errors.js';
import { askForKey, prepareKeys } from './keys.js';
import { Scope } from './scope.js';
import { Sheet } from './sheet.js';
import { asked, takenUp } from './stream.js';
import { Turn } from './turn.js';
import { prepareUpload } from './upload.js';

const INCLUDE = ['trace', 'tool_calls'];
// By conversation, for this tab: where an answer in the making can be taken up after the page was loaded again.
const STREAM = 'assay.stream.';
const LOOK_MS = 1500;

const question = $('question');
const scope = new Scope();
const documents = new Documents();
const side = new Sheet($('side'), {
  over: '(max-width: 1099px)', others: '.bar button, #main > *, #doc', first: () => $('side-close'),
  opened: (open) => $('side-open').setAttribute('aria-expanded', String(open)),
});
const conversations = new Conversations({ open: visit, gone: (id) => id === conversation && visit(null), failed: notice });

const live = new Map(); // conversation -> {turn, control} of the question that is being answered there
let conversation = null; // the id of the one that is shown; null is a new one
let last = null; // its last turn
let reply = null; // the clarification that the next question replies to
let creating = false;
let loads = 0;

// ---- asking ---------------------------------------------------------------------------------------------------------

/** Puts a question; says whether it could be put. */
async function ask(text, own = {}) {
  if (creating || live.has(conversation)) return false;
  creating = true;
  try {
    // A reply goes on under what was asked before; what is chosen below would stand in its place.
    const where = reply?.resume ? { resume: reply.resume } : { ...scope.value(), ...own };
    const body = { question: text, mode: $('mode').value, ...where, include: INCLUDE };
    const here = conversation ?? (await create());
    last?.settled();
    answer(here, text, body, unique());
  } catch (fault) {
    notice(fault);
    return false;
  } finally {
    creating = false;
  }
  return true;
}

async function create() {
  const { id } = await post('v1/conversations', {});
  history.replaceState(null, '', `#${id}`);
  conversation = id;
  conversations.select(id);
  return id;
}

/** `name` is the question's idempotency key: under it, it is not asked a second time. */
function answer(here, text, body, name) {
  const turn = begin(text);
  scrollTo(turn);
  const again = () => {
    turn.element.remove();
    answer(here, text, body, name);
  };
  follow(here, turn, again, (line) => asked(`v1/conversations/${here}/messages`, body, name, line));
}

/** Shows what becomes of a question, to its end. */
async function follow(here, turn, again, events) {
  const control = new AbortController();
  live.set(here, { turn, control });
  showBusy();
  const known = (path) => {
    sessionStorage.setItem(STREAM + here, path);
    conversations.refresh().then(showTitle, notice); // its first question is its title
  };
  try {
    for await (const event of events({ signal: control.signal, says: (text) => turn.interrupted(text), known })) {
      if (event.type === 'error') throw new ApiError(event.data.error);
      turn.on(event);
    }
    if (here === conversation) replyTo(turn.clarification);
  } catch (fault) {
    if (aborted(fault)) turn.stopped();
    else {
      scope.blame(fault.field);
      turn.fail(fault, again);
    }
  }
  live.delete(here);
  sessionStorage.removeItem(STREAM + here);
  showBusy();
  conversations.refresh().then(showTitle, notice);
}

function begin(text) {
  replyTo(null);
  $('welcome').hidden = true;
  last = new Turn(text, { open: (citation, from) => documents.open(citation, from), choose });
  $('thread').append(last.element);
  return last;
}

function scrollTo(turn, behavior = 'smooth') {
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  turn.element.scrollIntoView({ block: 'start', behavior: still ? 'auto' : behavior });
}

/** A choice goes on with the plan that was made; where none was kept, the same question is put under the choice's filter. */
function choose(choice, clarification) {
  reply = clarification;
  if (clarification.resume) ask(choice.label);
  else ask(last.question, { filters: choice.filters });
}

function replyTo(clarification) {
  reply = clarification?.resume ? clarification : null;
  $('replying').hidden = !reply;
  $('replying').replaceChildren(h('span', {}, 'Your reply goes on with the same plan.'),
    h('button', { type: 'button', class: 'quiet', click: () => (replyTo(null), question.focus()) }, 'Ask something else'));
}

function showBusy() {
  const busy = live.has(conversation);
  $('send').classList.toggle('stop', busy);
  $('send').setAttribute('aria-label', busy ? 'Stop' : 'Ask');
  $('send').replaceChildren(icon(busy ? 'stop' : 'send'));
}

$('composer').addEventListener('submit', async (event) => {
  event.preventDefault();
  if (live.has(conversation)) return live.get(conversation).control.abort();
  const text = question.value;
  if (!text.trim()) return question.focus();
  if (await ask(text.trim())) {
    question.value = '';
    scope.show(false);
  }
});

question.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!live.has(conversation)) $('composer').requestSubmit();
});

// ---- conversations --------------------------------------------------------------------------------------------------

/** Shows a conversation, or a new one. What is being answered elsewhere goes on. */
async function visit(id) {
  side.close();
  if (id !== conversation) history.pushState(null, '', id ? `#${id}` : location.pathname);
  await load(id);
  question.focus();
}

async function load(id) {
  const mine = (loads += 1);
  conversation = id;
  last = null;
  replyTo(null);
  documents.close();
  $('notice').replaceChildren();
  $('thread').replaceChildren();
  $('welcome').hidden = Boolean(id);
  conversations.select(id);
  showTitle();
  showBusy();
  if (!id) return;
  try {
    const { messages } = await get(`v1/conversations/${encodeURIComponent(id)}`);
    if (mine !== loads) return;
    messages.forEach((message) => recorded(id, message));
    if (last) scrollTo(last, 'auto');
  } catch (fault) {
    notice(fault);
  }
}

function recorded(id, { role, content, status, response, error }) {
  if (role === 'user' && status !== 'running') return begin(content);
  if (role === 'user') return running(id, content);
  if (response) {
    last.recorded(response);
    replyTo(response.clarification);
  } else if (status === 'interrupted') {
    last.stopped('Interrupted');
  } else {
    const gone = error === 'not_found' && 'A document that this answer rested on is no longer there for you.';
    last.fail(new ApiError({ code: error ?? 'failed', message: gone || 'This question could not be answered.' }));
  }
  return last;
}

/** A question that is being answered: here, by this tab before it was loaded again, or by somebody else. */
function running(id, content) {
  const path = sessionStorage.getItem(STREAM + id);
  if (live.has(id)) {
    last = live.get(id).turn;
    $('welcome').hidden = true;
    $('thread').append(last.element);
  } else if (path) {
    follow(id, begin(content), null, (line) => takenUp(path, line));
  } else {
    begin(content).stopped('It is being answered elsewhere');
    lookLater(id);
  }
}

const lookLater = (id) => setTimeout(() => look(id).catch(notice), LOOK_MS);

/** Until an answer that is made elsewhere is there. */
async function look(id) {
  if (conversation !== id || live.has(id)) return;
  const { messages } = await get(`v1/conversations/${id}`);
  if (messages.at(-1)?.status === 'running') lookLater(id);
  else if (conversation === id) await load(id);
}

/** The conversation that the address names. */
const addressed = () => /^#(conv_\w+)$/.exec(location.hash)?.[1] ?? null;

function showTitle() {
  const title = conversation ? conversations.titleOf(conversation) : 'New conversation';
  $('title').textContent = title;
  document.title = conversation ? `${title} · Assay` : 'Assay';
}

$('new').addEventListener('click', () => visit(null));
$('side-open').addEventListener('click', () => side.open($('side-open')));
$('side-close').addEventListener('click', () => side.close());
addEventListener('popstate', () => load(addressed()));

// ---- what may be asked ----------------------------------------------------------------------------------------------

async function describe() {
  const { buckets } = await get('v1/buckets').catch(notAllowed);
  scope.offer(buckets);
  $('bucket-names').replaceChildren(...buckets.map(({ name }) => h('option', { value: name })));
  $('buckets').replaceChildren(...buckets.map(({ name, documents: count, description }) => h('li', {}, h('button', {
    type: 'button', click: () => {
      scope.choose([name]);
      question.focus();
      say(`Asking ${name} alone`);
    } },
  h('strong', { dir: 'auto' }, name), h('span', { class: 'count' }, plural(count, 'document')),
  description && h('span', { class: 'soft', dir: 'auto' }, description)))));
}

/** A key may ask without being allowed to look around. */
function notAllowed(fault) {
  if (fault.status !== 403) throw fault;
  return { buckets: [] };
}

function notice(fault) {
  $('notice').replaceChildren(errorBox(fault, () => $('notice').replaceChildren(), 'Close'));
  $('notice').scrollIntoView({ block: 'nearest' });
}

async function start() {
  const done = await Promise.allSettled([describe(), conversations.refresh(), load(addressed())]);
  showTitle();
  const failed = done.find(({ status }) => status === 'rejected');
  if (failed) notice(failed.reason);
}

whenKeyIsWanted(askForKey);
prepareKeys(start);
prepareUpload(describe);
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault(); // the address is the conversation's
  question.focus();
});
start();
if (matchMedia('(hover: hover)').matches) question.focus(); // elsewhere it would call up a keyboard
