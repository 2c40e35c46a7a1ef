// The documented use of node-redlock 4 with ioredis: PORT [tokens]. With `tokens` the server gives each holder its fencing token.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const Redlock = require("redlock-4");

const [port, tokens] = [Number(process.argv[2]), process.argv[3] === "tokens"];

async function main() {
  const [client, other] = [new Redis(port), new Redis(port)];
  const redlock = new Redlock([client], { driftFactor: 0.01, retryCount: 10, retryDelay: 200, retryJitter: 200 });
  const impatient = new Redlock([other], { retryCount: 0 });
  const patient = new Redlock([other], { retryCount: -1, retryDelay: 20, retryJitter: 10 });
  const token = (name, lock) => client.call("LOCK", "TOKEN", name, lock.value);
  let errors = [];
  impatient.on("clientError", (error) => errors.push(error));

  // Lock, extend, unlock.
  let lock = await redlock.lock("node4-a", 60000);
  const first = tokens ? await token("node4-a", lock) : 0;
  lock = await lock.extend(120000);
  const left = await client.pttl("node4-a");
  assert.ok(left > 60000 && left <= 120000, `${left} ms are left`);
  await assert.rejects(impatient.lock("node4-a", 60000), Redlock.LockError);

  // A client that tries again gets the lock after the release, with a greater token.
  const waiting = patient.lock("node4-a", 60000);
  await lock.unlock();
  const later = await waiting;
  if (tokens) {
    assert.ok((await token("node4-a", later)) > first);
  }
  await assert.rejects(lock.unlock(), Redlock.LockError);
  assert.equal(await client.get("node4-a"), later.value, "an earlier holder releases nothing");
  await later.unlock();

  // Several locks are granted together or not at all.
  const pair = await redlock.lock(["node4-b", "node4-c"], 60000);
  await assert.rejects(impatient.lock(["node4-c", "node4-d"], 60000), Redlock.LockError);
  assert.equal(await client.exists("node4-d"), 0);
  await pair.unlock();
  assert.equal(await client.exists("node4-b", "node4-c"), 0);

  // The disposer releases the lock at the end of its block.
  const Promise = require("bluebird");
  await Promise.using(redlock.disposer("node4-e", 60000), async (held) => {
    assert.equal(await client.get("node4-e"), held.value);
  });
  assert.equal(await client.exists("node4-e"), 0);

  assert.deepEqual(errors, [], "the server answered with errors");
  await redlock.quit();
  await patient.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
