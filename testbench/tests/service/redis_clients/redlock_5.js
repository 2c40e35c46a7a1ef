// The documented use of node-redlock 5 with ioredis: PORT [tokens]. With `tokens` the server gives each holder its fencing token.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

const [port, tokens] = [Number(process.argv[2]), process.argv[3] === "tokens"];

/** Counts the automatic extensions of `using`. */
class Counting extends Redlock {
  extensions = 0;
  extended = () => {};

  async extend(...request) {
    const lock = await super.extend(...request);
    this.extensions += 1;
    this.extended();
    return lock;
  }

  async untilExtended(times) {
    while (this.extensions < times) {
      await new Promise((resolve) => (this.extended = resolve));
    }
  }
}

async function main() {
  const [client, other] = [new Redis(port), new Redis(port)];
  const redlock = new Counting([client], { retryDelay: 20, retryJitter: 10 });
  const impatient = new Redlock([other], { retryCount: 0 });
  const patient = new Redlock([other], { retryCount: -1, retryDelay: 20, retryJitter: 10 });
  const token = (name, lock) => client.call("LOCK", "TOKEN", name, lock.value);

  // Acquire, extend, release.
  let lock = await redlock.acquire(["node-a"], 60000);
  const first = tokens ? await token("node-a", lock) : 0;
  lock = await lock.extend(120000);
  const left = await client.pttl("node-a");
  assert.ok(left > 60000 && left <= 120000, `${left} ms are left`);
  if (tokens) {
    assert.equal(await token("node-a", lock), first, "extending keeps the token");
  }

  // Another client is refused, and told why.
  let errors = [];
  impatient.on("error", (error) => errors.push(error));
  await assert.rejects(impatient.acquire(["node-a"], 60000), (error) => error instanceof ExecutionError);
  assert.ok(errors.length > 0 && errors.every((error) => error instanceof ResourceLockedError), `${errors}`);

  // A client that tries again gets the lock after the release, with a greater token.
  const waiting = patient.acquire(["node-a"], 60000);
  await lock.release();
  const later = await waiting;
  if (tokens) {
    assert.ok((await token("node-a", later)) > first);
  }
  await assert.rejects(impatient.release(lock), (error) => error instanceof ExecutionError);
  assert.equal(await client.get("node-a"), later.value, "an earlier holder releases nothing");
  await later.release();
  assert.equal(await client.get("node-a"), null);

  // Several locks are granted together or not at all.
  const pair = await redlock.acquire(["node-b", "node-c"], 60000);
  await assert.rejects(impatient.acquire(["node-c", "node-d"], 60000), ExecutionError);
  assert.equal(await client.exists("node-d"), 0);
  if (tokens) {
    assert.equal(await token("node-b", pair), await token("node-c", pair));
  }
  await (await pair.extend(60000)).release();
  assert.equal(await client.exists("node-b", "node-c"), 0);

  // A lost lock cannot be extended.
  const lost = await redlock.acquire(["node-e"], 60000);
  await client.del("node-e");
  await assert.rejects(impatient.extend(lost, 60000), ExecutionError);

  // `using` extends the lock until its routine ends. Seven extensions take longer than the first duration, and the machine may stand
  // still for ten seconds.
  redlock.extensions = 0;
  const settings = { automaticExtensionThreshold: 10_000 };
  const value = await redlock.using(["node-f"], 12_000, settings, async (signal) => {
    await redlock.untilExtended(7);
    await assert.rejects(impatient.acquire(["node-f"], 60000), ExecutionError);
    assert.equal(signal.aborted, false, `${signal.error}`);
    return "done";
  });
  assert.equal(value, "done");
  assert.equal(await client.exists("node-f"), 0);

  // `using` tells its routine that the lock was lost.
  await assert.rejects(
    redlock.using(["node-g"], 1000, { automaticExtensionThreshold: 800 }, async (signal) => {
      const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
      await client.del("node-g");
      await aborted;
      throw signal.error;
    }),
    ExecutionError,
  );

  await redlock.quit();
  await patient.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
