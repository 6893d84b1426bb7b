// Tools with OpenAI's client for JavaScript: calls, whole and streamed, and the runner that makes them.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.ARIL_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Plant a seed." }];
const parameters = {
  type: "object",
  properties: { colour: { enum: ["red", "green"] } },
  required: ["colour"],
  additionalProperties: false,
};
const plant = { name: "plant", description: "Plants a seed.", parameters };
const asked = { model: "tiny", messages, tools: [{ type: "function", function: plant }], max_tokens: 200, seed: 3 };

test("a call that is required comes", async () => {
  const answer = await client.chat.completions.create({ ...asked, tool_choice: "required" });
  const [choice] = answer.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.tool_calls[0].function.name, "plant");
  assert.ok(["red", "green"].includes(JSON.parse(choice.message.tool_calls[0].function.arguments).colour));
});

test("a call is streamed in pieces that make it up", async () => {
  const named = { type: "function", function: { name: "plant" } };
  const stream = client.chat.completions.stream({ ...asked, tool_choice: named });
  let heard = "";
  stream.on("tool_calls.function.arguments.delta", (piece) => (heard += piece.arguments_delta));
  const { choices } = await stream.finalChatCompletion();
  assert.equal(choices[0].message.tool_calls[0].function.arguments, heard);
  assert.ok(["red", "green"].includes(JSON.parse(heard).colour));
});

test("the runner makes the calls, and tells of them", async () => {
  const made = [];
  const tool = {
    type: "function",
    function: { ...plant, parse: JSON.parse, function: (wish) => (made.push(wish), `planted ${wish.colour}`) },
  };
  const named = { type: "function", function: { name: "plant" } };
  const runner = client.chat.completions.runTools({ ...asked, tools: [tool], tool_choice: named });
  const said = await runner.finalFunctionToolCallResult();
  assert.equal(said, `planted ${made[0].colour}`);
});
