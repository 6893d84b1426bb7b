// OpenAI's client for JavaScript, as its users write it, against the server at ARIL_URL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.ARIL_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model: "tiny", messages, temperature: 0, max_tokens: 12 };

test("models are listed", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids, ["tiny", "red"]);
  assert.equal((await client.models.retrieve("red")).id, "red");
});

test("a stream brings the whole answer", async () => {
  const whole = await client.chat.completions.create(greedy);
  const stream = await client.chat.completions.create({
    ...greedy,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const piece of stream) {
    text += piece.choices[0]?.delta?.content ?? "";
    usage = piece.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the stream helper tells what comes", async () => {
  let heard = "";
  const runner = client.chat.completions
    .stream({ ...greedy, max_tokens: 100, response_format: { type: "json_schema", json_schema: seed } })
    .on("content", (delta) => (heard += delta));
  const said = await runner.finalContent();
  assert.equal(heard, said);
  assert.ok(["red", "green"].includes(JSON.parse(said).colour));
});

test("an answer is parsed", async () => {
  const answer = await client.chat.completions.parse({
    ...greedy,
    max_tokens: 100,
    response_format: { type: "json_schema", json_schema: seed },
  });
  assert.equal(answer.choices[0].finish_reason, "stop");
  JSON.parse(answer.choices[0].message.content);
});

test("a text is completed and streamed", async () => {
  const asked = { model: "tiny", prompt: "The quick", temperature: 0, max_tokens: 12 };
  const whole = await client.completions.create(asked);
  let text = "";
  for await (const piece of await client.completions.create({ ...asked, stream: true })) text += piece.choices[0].text;
  assert.equal(text, whole.choices[0].text);
});

test("errors are of their classes", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, temperature: 9 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...greedy, model: "gpt-4o" }), OpenAI.NotFoundError);
});

test("the answer's headers can be read", async () => {
  const { data, response } = await client.chat.completions.create(greedy).withResponse();
  assert.equal(response.headers.get("x-request-id"), data._request_id);
});

const seed = {
  name: "seed",
  strict: true,
  schema: {
    type: "object",
    properties: { colour: { enum: ["red", "green"] } },
    required: ["colour"],
    additionalProperties: false,
  },
};
