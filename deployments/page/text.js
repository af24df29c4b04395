// Filters and tool calls in words.

const SIGNS = {
  '=': 'is', '!=': 'is not', '<': '<', '<=': '≤', '>': '>', '>=': '≥', in: 'is one of', like: 'is like', between: 'is between',
};

/** A filter as one line: "type is one of Supply, Lease and signed ≥ 2015-01-01". */
export function filterText(filter) {
  if (!filter || !Object.keys(filter).length) return 'no filter';
  if (filter.and) return filter.and.map(inner).join(' and ');
  if (filter.or) return filter.or.map(inner).join(' or ');
  if (filter.not) return `not (${filterText(filter.not)})`;
  if (filter.op === 'is_null') return `${filter.field} ${filter.value ? 'is missing' : 'is there'}`;
  const values = Array.isArray(filter.value) ? filter.value.join(filter.op === 'between' ? ' and ' : ', ') : filter.value;
  return `${filter.field} ${SIGNS[filter.op] ?? filter.op} ${values}`;
}

const inner = (filter) => (filter.and || filter.or ? `(${filterText(filter)})` : filterText(filter));

const TOOLS = {
  search_hybrid: 'Search', search_text: 'Search by words', search_semantic: 'Search by meaning',
  document_lookup: 'Read a document', get_document_metadata: 'Look at a document', list_buckets: 'Look at the buckets',
  web_search: 'Search the web',
};

export const toolName = (tool) => TOOLS[tool] ?? tool.replaceAll('_', ' ');

/** What a tool was asked: its queries first, then whatever else was said. */
export function toolText({ queries, query, buckets, filters, ...rest }) {
  const said = [];
  const asked = queries ?? (query === undefined ? [] : [query]);
  if (asked.length) said.push(asked.map((each) => `“${each}”`).join(', '));
  if (buckets?.length) said.push(`in ${buckets.join(', ')}`);
  if (filters && Object.keys(filters).length) said.push(`where ${filterText(filters)}`);
  for (const [name, value] of Object.entries(rest)) if (value != null && value !== '') said.push(`${name}: ${value}`);
  return said.join(' · ');
}
