// A client of the judge service that knows nothing but its OpenAPI description: node client.mjs URL KEY
//
// Every call is checked against the description: its path and method, the fields of its body, and the status, media
// type and required fields of the answer. Prints what it was answered, as JSON.

const [url, key] = process.argv.slice(2);
const description = await (await fetch(`${url}/openapi.json`)).json();

function resolved(schema) {
  return schema?.$ref ? resolved(description.components.schemas[schema.$ref.split("/").at(-1)]) : schema ?? {};
}

function check(schema, value, place) {
  const { properties, required = [], additionalProperties, items, anyOf } = resolved(schema);
  if (anyOf) {
    const mistakes = anyOf.map((one) => {
      try {
        check(one, value, place);
      } catch (mistake) {
        return mistake;
      }
    });
    if (mistakes.every(Boolean)) throw mistakes[0];
    return;
  }
  if (Array.isArray(value)) {
    value.forEach((item, index) => check(items, item, `${place}[${index}]`));
  } else if (value !== null && typeof value === "object" && properties) {
    const missing = required.filter((name) => !(name in value));
    if (missing.length) throw new Error(`${place} has no ${missing}`);
    const unknown = Object.keys(value).filter((name) => !(name in properties));
    if (additionalProperties === false && unknown.length) throw new Error(`${place} may not have ${unknown}`);
    for (const [name, inner] of Object.entries(properties)) if (name in value) check(inner, value[name], `${place}.${name}`);
  }
}

async function call(method, template, { path = {}, query = {}, headers = {}, body, lines } = {}) {
  const operation = description.paths[template]?.[method.toLowerCase()];
  if (!operation) throw new Error(`the description has no ${method} ${template}`);
  const content = operation.requestBody?.content ?? {};
  const type = Object.keys(content)[0];
  for (const sent of lines ?? (body ? [body] : [])) check(content[type].schema, sent, "the body");
  const named = (operation.parameters ?? []).map((parameter) => parameter.name);
  for (const name of [...Object.keys(path), ...Object.keys(query), ...Object.keys(headers)])
    if (!named.includes(name)) throw new Error(`${method} ${template} has no parameter ${name}`);
  const place = template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(path[name]));
  const text = lines ? lines.map((line) => JSON.stringify(line) + "\n").join("") : body && JSON.stringify(body);
  const answer = await fetch(`${url}${place}?${new URLSearchParams(query)}`, {
    method,
    body: text,
    headers: { authorization: `Bearer ${key}`, ...(text ? { "content-type": type } : {}), ...headers },
  });
  const described = operation.responses[answer.status];
  if (!described) throw new Error(`${method} ${template} answered ${answer.status}, which is not described`);
  const media = answer.headers.get("content-type")?.split(";")[0];
  const got = await answer.text();
  if (answer.status === 204) return { status: 204 };
  if (!described.content[media]) throw new Error(`${method} ${template} answered with ${media}`);
  if (media === "application/x-ndjson") return { status: 200, lines: got.trim().split("\n").map((line) => JSON.parse(line)) };
  const parsed = JSON.parse(got);
  check(described.content[media].schema, parsed, `the answer ${answer.status}`);
  return { status: answer.status, body: parsed, location: answer.headers.get("location") };
}

const messages = (answer) => [
  { role: "user", content: "My lamp is broken." },
  { role: "assistant", content: answer },
];
const group = (...answers) => ({
  rubric: "- ends with a message to the customer",
  trajectories: answers.map((answer) => ({ messages: messages(answer) })),
});

const printed = {};
const scored = await call("POST", "/v1/score", { body: group("I am sorry.", ""), headers: { "Idempotency-Key": "node 1" } });
printed.scores = scored.body.scores;
const again = await call("POST", "/v1/score", { body: group("I am sorry.", ""), headers: { "Idempotency-Key": "node 1" } });
printed.once = again.body.id === scored.body.id;

const accepted = await call("POST", "/v1/score", { body: group("Gladly.", "", "No."), query: { wait: "false" } });
printed.accepted = accepted.status;
const judged = await call("GET", "/v1/judgements/{id}", { path: { id: accepted.body.id }, query: { wait: "60" } });
printed.judged = judged.body.scores;

const member = (id, answer) =>
  call("POST", "/v1/groups/{group}/members", {
    path: { group: "step 7, task é" },
    body: { expected: 2, id, rubric: "- ends with a message to the customer", messages: messages(answer) },
  });
const members = await Promise.all([member("a", "I am sorry."), member("b", "")]);
printed.members = members.map((answer) => answer.body.score);
const asked = await call("GET", "/v1/groups/{group}/members/{id}", { path: { group: "step 7, task é", id: "a" } });
printed.member = asked.body.score;

const lines = [group("Gladly.", ""), { ...group("x"), trajectories: group("a", "b").trajectories, judge: "no/such" }, group("Yes.", "No.")];
const batch = await call("POST", "/v1/score/batch", { lines });
printed.batch = batch.lines.sort((one, other) => one.index - other.index).map((line) => line.scores ?? line.type);

const page = await call("GET", "/v1/judgements", { query: { status: "finished", limit: "2" } });
printed.page = page.body.judgements.length;
const deleted = await call("DELETE", "/v1/judgements/{id}", { path: { id: scored.body.id } });
printed.deleted = deleted.status;
const gone = await call("GET", "/v1/judgements/{id}", { path: { id: scored.body.id } });
printed.gone = [gone.status, gone.body.type, Boolean(gone.body.remedy)];
console.log(JSON.stringify(printed));
